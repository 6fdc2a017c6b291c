"""How much of a mapping is in memory, and keeping it there: mincore and mlock.

What the page cache holds of the weights decides whether a token takes a tenth of a second or ten.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from engine.errors import ConfigError


def resident_bytes(address: int, n_bytes: int) -> int | None:
    """How much of a page-aligned range is in memory: in the page cache for a file, whoever brought
    it there. None where the system does not tell.
    """
    libc = _libc()
    if libc is None or not n_bytes:
        return None if n_bytes else 0
    pages = np.zeros((n_bytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE, np.uint8)
    if libc.mincore(address, n_bytes, ctypes.c_void_p(pages.ctypes.data)) != 0:
        return None
    return min(int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE, n_bytes)


def lock(address: int, n_bytes: int) -> None:
    """Keep a range in memory, reading what is not there yet.

    Raises ConfigError when the system refuses it.
    """
    libc = _libc()
    if libc is None:
        raise ConfigError("lock_weights: this system cannot lock memory")
    if libc.mlock(address, n_bytes) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise ConfigError(
            f"lock_weights: the system refuses to lock {n_bytes / 2**20:.0f} MiB ({reason}); raise "
            "the limit (ulimit -l, LimitMEMLOCK= of a systemd unit, --ulimit memlock=-1 of a "
            "container) or leave lock_weights off"
        )


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    except (AttributeError, OSError, TypeError):  # no such function, no such library, no POSIX
        return None
    return libc
