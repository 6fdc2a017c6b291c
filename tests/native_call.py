"""Calls of compiled functions, as the engine's kernels make them, with arrays for memory."""

from __future__ import annotations

import ctypes
import mmap
import tempfile

import numpy as np
import numpy.typing as npt

from engine.jit import Native

Array = npt.NDArray[np.generic]


def call(function: Native, *args: int | Array) -> None:
    """Of an array it takes the address."""
    numbers = [a if isinstance(a, int) else a.ctypes.data for a in args]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(numbers))(function.address)(*numbers)


def at_the_end(data: Array) -> Array:
    """A copy whose last byte is the last one of a file's mapped pages; the next page is past the
    end of the file, and to touch it is a bus error.
    """
    page = mmap.PAGESIZE
    n_bytes = -(-data.nbytes // page) * page
    with tempfile.TemporaryFile() as file:
        file.truncate(n_bytes + page)
        memory = mmap.mmap(file.fileno(), n_bytes + page)
        file.truncate(n_bytes)
    start = n_bytes - data.nbytes
    copy = np.frombuffer(memory, data.dtype, data.size, start).reshape(data.shape)
    copy[...] = data
    return copy
