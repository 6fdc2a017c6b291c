"""What is measured: an engine that holds one chat, reads tokens into it and decodes after them.

Ours here; peer.py puts another one behind the same verb, so that both do the same work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.cache.chat import Chat, next_of
from engine.cache.common_prefix import count_common
from engine.engine import Engine

_CHAT_TOKENS = 64  # that each of several chats holds before they decode together


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one measurement."""

    prefill_s: float
    decode_s: float


class Contestant(Protocol):
    """An engine under measurement."""

    def measure(self, depth: int, n_prompt: int, n_decode: int) -> Times:
        """Have depth tokens in the cache (not timed), read n_prompt, then decode n_decode."""
        ...


class Ours:
    """This engine, step by step, without its worker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chat: Chat = engine._new_chat()
        self._others: list[Chat] = []

    def measure(self, depth: int, n_prompt: int, n_decode: int) -> Times:
        """Contestant.measure"""
        self._fill(self._chat, depth)
        start = time.perf_counter()
        self._read(self._chat, self._prompt(n_prompt))
        between = time.perf_counter()
        for i in range(n_decode):
            self._chat.next(self._token(i))
        return Times(between - start, time.perf_counter() - between)

    def decode_together(self, n_chats: int, n_decode: int) -> float:
        """Seconds that n_decode steps of n_chats take, each after a short context of its own."""
        self._chat.restart()
        while len(self._others) < n_chats:
            self._others.append(self._engine._new_chat())
        chats = self._others[:n_chats]
        for chat in chats:
            self._fill(chat, _CHAT_TOKENS)
        start = time.perf_counter()
        for i in range(n_decode):
            next_of(chats, [self._token(i + k) for k in range(n_chats)])
        return time.perf_counter() - start

    def _fill(self, chat: Chat, depth: int) -> None:
        """Make a chat hold depth tokens; what it holds already of them is not read again."""
        prompt = self._prompt(depth)
        chat.truncate_to(chat.restart_at(count_common(chat.ids, prompt)))
        self._read(chat, prompt[len(chat.ids) :])

    def _read(self, chat: Chat, tokens: Sequence[int]) -> None:
        """In chunks, as the worker reads a prompt that is alone."""
        precise_until = self._engine._model.precise_until(len(chat.ids), len(tokens))
        for first in range(0, len(tokens), chat.max_rows):
            chunk = tokens[first : first + chat.max_rows]
            self._engine._cache.make_room([chat], len(chunk), len(tokens))
            chat.prefill(chunk, first + len(chunk) == len(tokens), precise_until)

    def _prompt(self, n: int) -> list[int]:
        return [(i * 7919 + 13) % self._engine.model.n_vocab for i in range(n)]

    def _token(self, i: int) -> int:
        return (i * 104729 + 7) % self._engine.model.n_vocab


def tokens_at_most(depths: Sequence[int], batches: Sequence[int], n: int) -> int:
    """Tokens that the cache must hold for measurements of n tokens at these depths, and of so many
    chats. Each chat's last page may be all but empty.
    """
    from engine.kernels.kv_page import PAGE

    deepest = max(depths, default=0) + n
    return max(deepest, *(b * (_CHAT_TOKENS + n + PAGE) for b in batches), 0)
