"""What all objects of one OpenAI reply share, whichever of the two routes it comes from."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from server.errors import ApiError, openai_error
from server.framing import ServerSentEvents
from server.notes import summary
from server.openai.fields import CompletionFields
from server.openai.schema import PromptProgress, Usage
from server.progress import Status
from server.reply_events import Ended, Piece, Totals
from server.schema import Error
from server.timings import WireTimings

if TYPE_CHECKING:
    from engine import Engine

SSE = ServerSentEvents(end=b"data: [DONE]\n\n")


class ReplyHead:
    """With usage in a stream a last chunk holds it, and every other one shows a null."""

    framing = SSE
    id_prefix: str

    def __init__(self, engine: Engine, body: CompletionFields) -> None:
        self._head: dict[str, Any] = {
            "id": self.id_prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": engine.model.name,
        }
        self._token_bytes = engine.token_bytes
        self._include_usage = body.include_usage
        self._include_progress = body.include_progress
        self._times_pieces = bool(body.timings_per_token)
        self._has_logprobs = body.wanted_probs is not None
        self._no_usage: dict[str, Any] = {"usage": None} if body.include_usage else {}

    def failed(self, error: ApiError) -> Iterator[Error]:
        yield openai_error(error)

    def _beside(self, piece: Piece) -> dict[str, Any]:
        """What stands beside the choices of a piece's object."""
        if not self._times_pieces:
            return self._no_usage
        return {**self._no_usage, "timings": WireTimings.so_far(piece.progress())}

    def _sums(self, ends: Sequence[Ended]) -> dict[str, Any]:
        """What stands in the last object of a reply."""
        totals = Totals.of(ends)
        return {"usage": Usage.of(totals), **summary(totals)}

    def _end(self, ends: Sequence[Ended] | None) -> dict[str, Any]:
        """What stands at the end of a choice. ends: given where it is the last one."""
        if ends is None or self._include_usage:
            return self._no_usage
        return summary(Totals.of(ends))

    def _progress(self, status: Status) -> dict[str, Any]:
        return {**self._no_usage, "prompt_progress": PromptProgress.of(status)}
