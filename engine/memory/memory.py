"""The memory budget: what an engine is going to take, against what there is, before it takes it.

Chooses the context and the size of the cache, and refuses what cannot fit. Knows sizes only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.memory.free_memory import FreeMemory

log = logging.getLogger("rushlight.engine")

# What a loaded process grows to above what it has when the budget is made: kernels, Numba, text.
_PROCESS_GROWTH: Final = 150 << 20
_SHARE: Final = 0.5  # of the free memory that the cache may take unasked: others need some too
_LEAST: Final = 0.25  # of all that is free may be ours even where the weights would fill it
_FULL_CHATS: Final = 2  # that the cache holds at least, where n_ctx is chosen
_MOST_CHATS: Final = 16  # full contexts that the cache holds at most, unasked
_USABLE_TOKENS: Final = 2048  # of context, for which the cache may take more than its share
_UNIT_TOKENS: Final = 64  # an n_ctx chosen here is a multiple of it


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of a model before it runs. Bytes.

    process: anonymous memory of the process as it is; chat_bytes: keys and values that a cache
    must have room for, at least, for a context of so many tokens.
    """

    weights: int
    workspace: int
    process: int
    chat_bytes: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the engine may take. Bytes, but for n_ctx."""

    n_ctx: int
    cache: int  # keys and values of all chats
    weights: int  # mapped
    workspace: int
    chat: int  # of it, one full context
    process: int
    free: FreeMemory
    limit: int  # of anonymous memory

    @property
    def anonymous(self) -> int:
        return self.workspace + self.cache + self.process

    def table(self) -> str:
        """For people."""
        rows = {
            "weights, mapped": self.weights,
            "workspace": self.workspace,
            f"one chat of {self.n_ctx} tokens": self.chat,
            "other chats": self.cache - self.chat,
            "process": self.process,
            "all, at most": self.weights + self.anonymous,
            self.free.reason: self.free.n_bytes,
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}} {n / 2**20:8.0f} MiB" for name, n in rows.items())


def plan_memory(config: EngineConfig, n_ctx_train: int, sizes: Sizes, free: FreeMemory) -> Budget:
    """Choose n_ctx and the size of the cache. free: what the process could still take.

    Raises ConfigError naming the setting that cannot be kept, and the number that could.
    """
    process = sizes.process + _PROCESS_GROWTH
    usable = min(_USABLE_TOKENS, config.n_ctx or n_ctx_train)
    least = _PROCESS_GROWTH + sizes.workspace + sizes.chat_bytes(usable)
    limit = sizes.process + _room_of_machine(sizes, free.n_bytes, least)
    if config.max_memory_bytes:
        limit = min(limit, config.max_memory_bytes)
    room = limit - process - sizes.workspace  # for keys and values
    _check_room(config, sizes, limit, room)

    share = config.cache_bytes or int(room * _SHARE)
    available = config.cache_bytes or room
    n_ctx = config.n_ctx or max(
        _longest(sizes, share // _FULL_CHATS, n_ctx_train), _longest(sizes, available, usable)
    )
    _log_n_ctx(config, n_ctx, n_ctx_train)
    needed = sizes.chat_bytes(n_ctx)
    if needed > available:
        setting = "cache.memory" if config.cache_bytes else "the memory there is"
        raise ConfigError(
            f"n_ctx = {n_ctx} needs {_mib(needed)} for keys and values, but "
            f"{setting} leaves {_mib(available)}; n_ctx = "
            f"{_longest(sizes, available, n_ctx)} would fit"
        )
    cache = max(share, needed)
    if not config.cache_bytes:
        cache = min(cache, _MOST_CHATS * needed)
    budget = Budget(
        n_ctx=n_ctx,
        cache=cache,
        weights=sizes.weights,
        workspace=sizes.workspace,
        chat=needed,
        process=process,
        free=free,
        limit=limit,
    )
    for row in budget.table().splitlines():
        log.info("memory: %s", row)
    return budget


def _log_n_ctx(config: EngineConfig, n_ctx: int, n_ctx_train: int) -> None:
    if not config.n_ctx:
        reason = "the model's own" if n_ctx == n_ctx_train else "what fits into memory"
        log.info("n_ctx = %d: %s (the model was made for %d)", n_ctx, reason, n_ctx_train)
    elif n_ctx > n_ctx_train:
        log.warning(
            "n_ctx = %d is more than the %d tokens that the model was made for", n_ctx, n_ctx_train
        )


def _room_of_machine(sizes: Sizes, free: int, least: int) -> int:
    """Anonymous memory that leaves the weights in the page cache, where that is possible.

    least: what an engine of any use takes.
    """
    if sizes.weights > free:
        log.warning(
            "the weights (%s) do not fit into the free memory (%s): they are read from the disk "
            "again and again, which is slow",
            _mib(sizes.weights),
            _mib(free),
        )
    return max(free - sizes.weights, int(free * _LEAST), min(least, free))


def _check_room(config: EngineConfig, sizes: Sizes, limit: int, room: int) -> None:
    """The least that an engine needs, and a cache of the size that is asked for."""
    least = sizes.chat_bytes(1)
    if room < least:
        setting = "max_memory" if limit == config.max_memory_bytes else "the free memory"
        raise ConfigError(
            f"{setting} of {_mib(limit)} is too small: this model needs at least "
            f"{_mib(limit - room + least)} beside its weights"
        )
    if config.cache_bytes > room:
        raise ConfigError(
            f"cache.memory = {_mib(config.cache_bytes)} does not fit: at most "
            f"{_mib(room)} are left for it"
        )


def _longest(sizes: Sizes, n_bytes: int, n_ctx: int) -> int:
    """The longest context of up to n_ctx tokens for which so much memory is enough."""
    low, high = 0, n_ctx // _UNIT_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if sizes.chat_bytes(middle * _UNIT_TOKENS) <= n_bytes:
            low = middle
        else:
            high = middle - 1
    fits = sizes.chat_bytes(n_ctx) <= n_bytes  # n_ctx itself may be no multiple
    return n_ctx if fits else max(low * _UNIT_TOKENS, 1)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"
