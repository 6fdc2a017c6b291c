"""Looks at the free memory now and then, and as soon as anybody has to wait for memory, and has the
cache shrink before anything else suffers.

Other programs may come and take what was free when the engine started. Then chats that nobody is
using leave, and in the end requests are refused: better than the system killing the process.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable

from engine.memory.free_memory import FreeMemory
from engine.memory.stalls import Stalls

log = logging.getLogger("rushlight.engine")

EVERY_S = 2.0
_SHORT_S = 0.25  # while memory is short
_MARGIN = 64 << 20


class Level(enum.IntEnum):
    """How short memory is."""

    ENOUGH = 0
    LOW = 1  # the page cache is about to lose weights: idle chats leave
    CRITICAL = 2  # next the system would kill somebody: no page more, requests are refused


class Watch:
    """A thread that sleeps nearly always.

    look:      what is free now.
    weights:   bytes that the page cache should keep.
    on_change: called with the level and the bytes that are missing, whenever memory is short, and
               once when it is no more.
    stalls:    tells when to look at once; closed with the watch.
    """

    def __init__(
        self,
        look: Callable[[], FreeMemory],
        weights: int,
        on_change: Callable[[Level, int], None],
        every_s: float = EVERY_S,
        stalls: Stalls | None = None,
    ) -> None:
        self._look, self._on_change, self._every_s = look, on_change, every_s
        self._stalls = stalls or Stalls()
        free = look().n_bytes
        # Where they never fitted, there is no more to defend than the process itself.
        self._wanted = weights + _MARGIN if weights + 2 * _MARGIN <= free else 2 * _MARGIN
        self._level = Level.ENOUGH
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="rushlight-memory", daemon=True)
        self._thread.start()

    @property
    def level(self) -> Level:
        return self._level

    def close(self) -> None:
        """End the thread. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._stalls.end()
            self._thread.join()
            self._stalls.close()

    def look(self, is_stalled: bool = False) -> None:
        """Look once, and tell. is_stalled: somebody had to wait for memory."""
        free = self._look()
        before, self._level = self._level, self._judge(free.n_bytes, is_stalled)
        if self._level != before:
            tell = log.warning if self._level else log.info
            n_mib = free.n_bytes >> 20
            tell("memory: %s, %d MiB %s", self._level.name.lower(), n_mib, free.reason)
        if self._level or before:
            self._on_change(self._level, max(self._wanted + _MARGIN - free.n_bytes, 0))

    def _judge(self, free: int, is_stalled: bool) -> Level:
        if free < _MARGIN:
            return Level.CRITICAL
        # Once it is low, it must grow clearly before it counts as enough.
        is_tight = is_stalled or self._level is not Level.ENOUGH
        return Level.LOW if free < self._wanted + _MARGIN * is_tight else Level.ENOUGH

    def _run(self) -> None:
        while not self._is_closed:
            is_stalled = self._stalls.wait(_SHORT_S if self._level else self._every_s)
            if not self._is_closed:
                self.look(is_stalled)
