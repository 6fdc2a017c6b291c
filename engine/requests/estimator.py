"""How long requests will take: the work before them and their own, by the speeds measured so far.

Only looks; any thread may ask. Its numbers are for people and for who comes first: they may be off.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

from engine.cache.chat_cache import ChatCache
from engine.requests.generation import Estimate, Phase, Progress
from engine.requests.scheduler import Scheduler
from engine.requests.sequence import Sequence
from engine.requests.speed import Speed


class Estimator:
    """Whoever passes a list of sequences has taken it from the scheduler under the lock."""

    def __init__(self, scheduler: Scheduler, cache: ChatCache, speed: Speed) -> None:
        self._scheduler, self._cache, self._speed = scheduler, cache, speed

    def of_prompt(
        self, prompt_ids: Ids[int], n_max: int, use_cache: bool, ahead: list[Sequence]
    ) -> Estimate:
        """What a request would cost if it came now, behind those ahead."""
        n_cached = self._cache.longest_prefix(prompt_ids)[1] if use_cache else 0
        return Estimate(
            n_prompt=len(prompt_ids),
            n_cached=n_cached,
            n_ahead=len(ahead),
            queue_s=self._queue_s(ahead),
            prefill_s=self._speed.prefill_s(len(prompt_ids) - n_cached),
            decode_s=self._speed.decode_s(n_max),
        )

    def progress(self, sequence: Sequence, ahead: list[Sequence], fraction: float) -> Progress:
        """Where a request is. fraction: how much of the chunk that it reads is done."""
        n_in_chunk = int(sequence.n_reading * fraction)
        queue_s = prefill_s = None
        if sequence.phase is Phase.QUEUED:
            queue_s = self._queue_s(ahead)
        if sequence.phase in (Phase.QUEUED, Phase.PREFILL):
            prefill_s = self._speed.prefill_s(self._n_to_read(sequence) - n_in_chunk)
        return sequence.progress(len(ahead), n_in_chunk, queue_s, prefill_s)

    def read_s(self, sequence: Sequence) -> float:
        """To read what is not in the cache; 0 where no speed is known."""
        return self._speed.prefill_s(self._n_to_read(sequence)) or 0.0

    def retry_after_s(self) -> float:
        """Until a place in the queue is likely to be free: when the first running one ends. Under
        the lock.
        """
        first = self._scheduler.first_waiting()
        next_ones = self._scheduler.running or ([first] if first else [])
        rests = [self._rest_s(sequence) for sequence in next_ones]
        return max(1.0, min((s for s in rests if s is not None), default=1.0))

    def _queue_s(self, ahead: list[Sequence]) -> float | None:
        """Until those ahead leave a place."""
        if len(ahead) < self._scheduler.max_running:
            return 0.0
        work = [self._rest_s(sequence) for sequence in ahead]
        known = [seconds for seconds in work if seconds is not None]
        return sum(known) / self._scheduler.max_running if len(known) == len(work) else None

    def _rest_s(self, sequence: Sequence) -> float | None:
        n_max = sequence.n_max - sequence.n_decoded
        n_to_write = self._speed.usual_reply(n_max, sequence.n_decoded)
        return self._speed.work_s(self._n_to_read(sequence), n_to_write)

    def _n_to_read(self, sequence: Sequence) -> int:
        """Tokens that are not in the cache."""
        if sequence.chat is not None:
            return sequence.n_left
        return len(sequence.ids) - self._cache.longest_prefix(sequence.cacheable_ids)[1]
