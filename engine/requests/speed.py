"""How fast this engine reads and writes, from what it did lately; and what that makes of work to
come. Knows durations only. None where nothing was measured yet.
"""

from __future__ import annotations

_KEEP = 0.9  # of what was known, at each new measurement
_USUAL_REPLY = 200.0  # tokens, until replies were seen


class _Rate:
    """Tokens per second, recent ones counting more."""

    def __init__(self) -> None:
        self._n = self._s = 0.0

    def note(self, n: float, duration_s: float) -> None:
        self._n = _KEEP * self._n + n
        self._s = _KEEP * self._s + duration_s

    @property
    def per_s(self) -> float | None:
        return self._n / self._s if self._s > 0 else None


class Speed:
    """Written by the engine thread; any thread may ask."""

    def __init__(self) -> None:
        self._prefill, self._decode = _Rate(), _Rate()
        self._reply = _USUAL_REPLY

    def note_prefill(self, n_tokens: int, duration_s: float) -> None:
        self._prefill.note(n_tokens, duration_s)

    def note_decode(self, n_tokens: float, duration_s: float) -> None:
        """One step: so many tokens for each of the running chats, in the mean."""
        self._decode.note(n_tokens, duration_s)

    def note_reply(self, n_tokens: int) -> None:
        self._reply = _KEEP * self._reply + (1 - _KEEP) * n_tokens

    def prefill_s(self, n_tokens: int) -> float | None:
        """Seconds to read a prompt's tokens. The last of them is read as decoding reads."""
        rate = self._prefill.per_s or self._decode.per_s
        return n_tokens / rate if rate else None

    def prefill_tokens_in(self, duration_s: float) -> int:
        """Tokens that can be read in that time; many where nothing is known."""
        rate = self._prefill.per_s
        return int(rate * duration_s) if rate else 1 << 30

    def decode_s(self, n_tokens: int) -> float | None:
        """Seconds to write a reply."""
        rate = self._decode.per_s
        return n_tokens / rate if rate else None

    def usual_reply(self, n_max: int, n_decoded: int = 0) -> int:
        """Tokens that a reply is going to have from here: as others had, at most n_max."""
        return round(min(n_max, max(self._reply - n_decoded, self._reply / 4)))

    def work_s(self, n_to_read: int, n_to_write: int) -> float | None:
        """Seconds for both."""
        read_s, write_s = self.prefill_s(n_to_read), self.decode_s(n_to_write)
        return read_s + write_s if read_s is not None and write_s is not None else None
