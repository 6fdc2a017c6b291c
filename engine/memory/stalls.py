"""Tells when programs have to wait for memory, as soon as they do: Linux's pressure stall
information, of the machine and of this process's control groups. Costs nothing while none waits.

Knows when it is time to look, not how much memory there is.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

from engine.memory.cgroups import cgroup_directories

_ROOT = Path("/")
# Some task waited for 0.1 s within 2 s, in microseconds. Who is not root may ask for whole windows
# of 2 s only; the word comes as soon as the sum is reached.
_TRIGGER = b"some 100000 2000000"


class Stalls:
    """Where the system does not tell, `wait` only waits.

    root: where to look for /proc and the cgroups.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._poll = select.poll()
        self._triggers: set[int] = set()
        for path in _pressure_files(root):
            with contextlib.suppress(OSError):  # an old kernel, or one that does not let us
                self._add(path)
        self._end_read, self._end_write = os.pipe()
        self._poll.register(self._end_read, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Until somebody has to wait for memory: then True. Or so long, or until `end`."""
        for descriptor, event in self._poll.poll(1000 * timeout_s):
            if event & select.POLLERR and descriptor in self._triggers:  # its group is gone
                self._drop(descriptor)
            elif event & select.POLLPRI:
                return True
        return False

    def end(self) -> None:
        """Have `wait` return at once, now and later. Any thread."""
        os.write(self._end_write, b"\0")

    def close(self) -> None:
        """Nobody waits any more."""
        for descriptor in list(self._triggers):
            self._drop(descriptor)
        os.close(self._end_read)
        os.close(self._end_write)

    def _add(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, _TRIGGER + b"\0")
        except OSError:
            os.close(descriptor)
            raise
        self._triggers.add(descriptor)
        self._poll.register(descriptor, select.POLLPRI)

    def _drop(self, descriptor: int) -> None:
        self._triggers.remove(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _pressure_files(root: Path) -> list[Path]:
    groups = (folder / "memory.pressure" for folder in cgroup_directories(root, "memory"))
    return [root / "proc/pressure/memory", *groups]
