"""The steps themselves: a chunk of a prompt, or the next token of some replies.

For the engine thread only. Who is stepped, and what becomes of a request afterwards, is decided by
its caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ids
from functools import partial
from itertools import compress

from engine.cache.chat import Chat, next_of_runs
from engine.cache.chat_cache import ChatCache
from engine.cache.resident_chats import NoRoom, RoomComing
from engine.errors import EngineError
from engine.kernels.op import FEW
from engine.model.model import Cancelled, Model
from engine.requests.generation import Difference, Phase
from engine.requests.scheduler import Step
from engine.requests.sequence import Sequence
from engine.requests.speed import Speed
from engine.text.tokenizer import Tokenizer

# How long a chunk of a prompt may take, and tokens below which it costs more than it gains to cut
# it shorter: alone, what is lost when it is cancelled; beside others, what their replies wait.
_ALONE_S, _ALONE_LEAST = 1.0, 128
_OTHERS_WAIT_S, _OTHERS_WAIT_LEAST = 0.5, 32
_LOAD_S = 0.1  # that reading a stored chat may take at once
_SCORE_BYTES = 1 << 24  # of logits at once, when all are wanted: they grow with the vocabulary
_IDLE_CHUNK = 64  # tokens: what is lost when a request comes in the middle


class Runner:
    """Steps sequences, and tells `speed` how long it took."""

    def __init__(self, model: Model, cache: ChatCache, tokenizer: Tokenizer, speed: Speed) -> None:
        self._model, self._cache, self._tokenizer, self._speed = model, cache, tokenizer, speed

    def open(self, sequence: Sequence) -> None:
        """Give a request its chat: with all of its beginning that is in memory."""
        is_new = not sequence.n_decoded  # and not a reply that goes on after a pause
        if is_new and (parting := self._cache.parting(sequence.cacheable_ids)):
            decode = self._tokenizer.decode
            sequence.generation.difference = Difference(
                parting.at, decode(parting.cached_ids), decode(parting.prompt_ids)
            )
        sequence.run_on(self._cache.open(sequence.cacheable_ids, is_request=is_new))

    def run(self, step: Step) -> None:
        """Raises Cancelled when the batch was cancelled, NoRoom or RoomComing when too few pages
        are free; then nothing has changed.
        """
        if step.is_prefill:
            self._prefill(step.sequences[0], step.others_wait)
        else:
            self._decode(step.sequences)

    def prepare(self, ids: Ids[int]) -> bool:
        """Read a chunk of a prompt that is going to come. Returns whether there is more to read.

        Raises Cancelled when the batch was cancelled.
        """
        n = self._cache.longest_prefix(ids)[1]
        if n >= len(ids) - 1:
            return False
        chat = self._cache.open(ids, is_request=False)
        try:
            while self._cache.load(chat, ids):
                if self._model.batch.cancelled:
                    raise Cancelled
            chunk = ids[len(chat.ids) :][:_IDLE_CHUNK]
            self._cache.make_room([chat], len(chunk), len(ids))
            chat.prefill(chunk, want_logits=False)
        except (NoRoom, RoomComing):
            return False
        finally:
            self._cache.close(chat)
        return True

    def _prefill(self, sequence: Sequence, others_wait: bool) -> None:
        """Read a chunk of the prompt, from the store if it is there: all but its last token, which
        is read as decoding reads.
        """
        chat = _chat(sequence)
        if self._load(chat, sequence):
            return
        limit_s, least = (
            (_OTHERS_WAIT_S, _OTHERS_WAIT_LEAST) if others_wait else (_ALONE_S, _ALONE_LEAST)
        )
        most = min(max(self._speed.prefill_tokens_in(limit_s), least), self._model.max_rows)
        is_scored = sequence.is_scored
        if not is_scored:
            most = min(most, max(_SCORE_BYTES // (4 * self._tokenizer.n_vocab), 1))
        n = min(sequence.n_to_prefill, most)
        first = len(chat.ids)
        self._cache.make_room([chat], n, len(sequence.ids))
        if not sequence.precise_until:
            sequence.precise_until = self._model.precise_until(
                first, len(sequence.prompt_ids) - first
            )
        self._model.batch.rewind()
        sequence.n_reading = n
        start = time.perf_counter()
        try:
            chunk = sequence.ids[first : first + n]
            if is_scored:
                chat.prefill(chunk, False, sequence.precise_until)
            else:
                sequence.score(first, chat.score(chunk)[:, : self._tokenizer.n_vocab])
        finally:
            sequence.n_reading = 0
        if is_scored:
            self._speed.note_prefill(n, time.perf_counter() - start)
        sequence.n_prefilled = max(sequence.n_prefilled, len(chat.ids))

    def _load(self, chat: Chat, sequence: Sequence) -> bool:
        """Take what the store has of it, for a while. Returns whether there was anything."""
        end_s = time.perf_counter() + _LOAD_S
        n_before, ids = len(chat.ids), sequence.cacheable_ids
        while is_loading := self._cache.load(chat, ids):
            if time.perf_counter() > end_s:
                break
        n_loaded = len(chat.ids) - n_before
        sequence.note_loaded(n_loaded)
        return is_loading or n_loaded > 0

    def _decode(self, sequences: tuple[Sequence, ...]) -> None:
        """The next token of each, and those before it that a grammar has forced."""
        for sequence in sequences:
            if sequence.n_left == 1:
                _choose(sequence, sequence.choose_forced)
        sequences = tuple(s for s in sequences if s.phase is not Phase.DONE)
        if not sequences:
            return
        chats = [_chat(sequence) for sequence in sequences]
        runs = _runs(sequences, chats)
        # A run stays in the pages of its first token.
        self._cache.make_room(chats, 1, max(len(s.ids) for s in sequences))
        is_next = [len(run) == s.n_left for s, run in zip(sequences, runs, strict=True)]
        start = time.perf_counter()
        logits = iter(next_of_runs(chats, runs, is_next))
        n_tokens = sum(map(len, runs)) / len(runs)
        self._speed.note_decode(n_tokens, time.perf_counter() - start)
        for sequence in compress(sequences, is_next):
            sequence.n_prefilled = len(sequence.prompt_ids)
            row = next(logits)[: self._tokenizer.n_vocab]
            _choose(sequence, partial(sequence.choose, row))


def _runs(sequences: tuple[Sequence, ...], chats: Ids[Chat]) -> list[list[int]]:
    """What a step reads of each: one token at least; more as long as all are few, so that a run
    costs little more than one token and no chat can tell that it was one.
    """
    spare = max(FEW - len(sequences), 0)
    runs = []
    for sequence, chat in zip(sequences, chats, strict=True):
        n = chat.n_alike(min(sequence.n_left, 1 + spare))
        spare -= n - 1
        runs.append(sequence.ids[len(chat.ids) :][:n])
    return runs


def _choose(sequence: Sequence, choose: Callable[[], None]) -> None:
    try:
        choose()
    except EngineError as error:  # this request's own: no token may be chosen
        sequence.fail(error)


def _chat(sequence: Sequence) -> Chat:
    assert sequence.chat is not None, "a request that waits is not stepped"
    return sequence.chat
