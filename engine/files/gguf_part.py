"""GGUFPart: one file of a model, mapped read-only. Most models are one file, some are several.

Nothing of a tensor is ever copied: kernels read the page cache. Replacing the file by rename is
safe while it is open, as the old one stays mapped. Truncating or overwriting it in place is not:
the process then dies of SIGBUS or reads the new bytes, and no program that maps a file can prevent
that.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError
from engine.files.gguf_header import TensorInfo, read_header
from engine.files.gguf_metadata import Metadata

PREFETCH_BYTES: Final = 4 << 20  # at a time, so that a file that is closed is soon left alone
# Where it can only be asked for: Linux reads no more than the device's largest request for one call
# and drops the rest, so a large file takes many calls. Devices rarely take less in one request.
ASK_BYTES: Final = 256 << 10
_POPULATE_READ = 22  # Linux 5.14; Python's mmap does not name it


class GGUFPart(Metadata):
    """An open file.

    version:     2 or 3.
    alignment:   bytes; each tensor's address is a multiple of it.
    modified_ns: when the file was last written to, since the epoch.
    tensors:     those of this file, by name, in file order.

    Raises GGUFError when the file cannot be opened or is damaged, UnsupportedModel when it holds a
    tensor type that GGML does not have.
    """

    def __init__(self, path: Path) -> None:
        self._map, self.modified_ns = _open_and_map(path)
        self._bytes = np.frombuffer(self._map, np.uint8)
        try:
            header = read_header(path, self._map)
        except BaseException:
            self.close()
            raise
        super().__init__(path, header.metadata)
        self.version: Final = header.version
        self.alignment: Final = header.alignment
        self.tensors: Final[dict[str, TensorInfo]] = header.tensors
        self._data_start = min((t.offset for t in self.tensors.values()), default=self.n_bytes)

    @property
    def n_bytes(self) -> int:
        """Size of the file; 0 after close()."""
        return len(self._bytes)

    @property
    def header_bytes(self) -> npt.NDArray[np.uint8]:
        """u8 view of all before the first tensor's data: metadata and tensor directory."""
        return self._bytes[: self._data_start]

    @property
    def data_bytes(self) -> npt.NDArray[np.uint8]:
        """u8 view of all tensors' data."""
        return self._bytes[self._data_start :]

    @property
    def extent(self) -> tuple[int, int]:
        """Address and size of the whole mapping."""
        return int(self._bytes.ctypes.data), self.n_bytes

    def bytes_of(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """u8[n_bytes] read-only view of the data of a tensor of this file; keeps the mapping alive.

        Raises ValueError after close().
        """
        if not self.n_bytes:
            raise ValueError(f"{self.path} is closed")
        return self._bytes[tensor.offset : tensor.offset + tensor.n_bytes]

    def prefetch(self) -> None:
        """Read the whole file into the page cache and map it; returns when that is done.

        For a cold start: the disk reads on while kernels compile, instead of a little per page
        fault. Call it from a thread. Costs little for what is cached already. Where the system
        cannot do it, it is asked to read all (and goes on with that), or nothing is done.
        """
        madvise = _libc_madvise()
        if madvise is None:
            return
        address, n_bytes = self.extent
        for start in range(0, n_bytes, PREFETCH_BYTES):
            piece = address + start, min(PREFETCH_BYTES, n_bytes - start)
            # If it is closed between look and call, the advice is for nobody, which is harmless.
            if not self.n_bytes:
                return
            if madvise(*piece, _POPULATE_READ) != 0:
                _ask_for(madvise, *piece)

    def close(self) -> None:
        """Unmap the file, once the last view of it is gone. Idempotent."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view is in use; its end unmaps the file
            self._map.close()


def _ask_for(madvise: Callable[[int, int, int], int], address: int, n_bytes: int) -> None:
    for start in range(0, n_bytes, ASK_BYTES):
        madvise(address + start, min(ASK_BYTES, n_bytes - start), mmap.MADV_WILLNEED)


def _libc_madvise() -> Callable[[int, int, int], int] | None:
    """libc's own: mmap.madvise holds the GIL while it waits for the disk's queue, a call through
    ctypes does not. None where there is no such function.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError, TypeError):  # no such function, no such library, no POSIX
        return None
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return madvise if hasattr(mmap, "MADV_WILLNEED") else None


def _open_and_map(path: Path) -> tuple[mmap.mmap, int]:
    """All of the file, mapped read-only, and when it was last written to. Raises GGUFError.

    Linux is to read it in huge pages, where its file system has them (ext4 since 6.16, XFS): each
    token passes through all weights, and so many small pages take time to look up.
    """
    try:
        mode = path.stat().st_mode  # before open(), which would wait for ever on a pipe
        if not stat.S_ISREG(mode):
            raise GGUFError(path, "not a file")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size == 0:  # which mmap refuses
                raise GGUFError(path, "the file is empty")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with contextlib.suppress(OSError, AttributeError):  # a kernel without; not Linux
                mapped.madvise(mmap.MADV_HUGEPAGE)
            return mapped, found.st_mtime_ns
    except OSError as error:
        raise GGUFError(path, f"cannot be opened: {error.strerror}") from error
