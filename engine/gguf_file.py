"""GGUFFile: a model file mapped read-only, its metadata with checked getters, and its tensors.

Knows the format, not the models. Nothing of a tensor is ever copied: kernels read the page cache.
Replacing the file by rename is safe while it is open, as the old one stays mapped. Truncating or
overwriting it in place is not: the process then dies of SIGBUS or reads the new bytes, and no
program that maps a file can prevent that.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError, UnsupportedModel
from engine.gguf_header import GGML_TYPES, GGMLType, TensorInfo, read_header
from engine.string_array import StringArray

__all__ = ["GGML_TYPES", "GGMLType", "GGUFFile", "StringArray", "TensorInfo"]

Default = TypeVar("Default")
_REQUIRED: Final[Any] = object()

# Linux reads no more than the device's largest request for one call of madvise and drops the rest,
# so a large file takes many calls. Devices rarely take less than this in one request.
PREFETCH_BYTES: Final = 256 << 10


class GGUFFile:
    """An open GGUF file.

    path:      as given.
    version:   2 or 3.
    alignment: bytes; each tensor's address is a multiple of it.
    modified_ns: when the file was last written to, since the epoch.
    metadata:  scalars and strings as Python values, numeric arrays as NumPy arrays (own memory),
               string arrays as StringArray (read from the mapping).
    tensors:   by name, in file order.

    Raises GGUFError when the file cannot be opened or is damaged, UnsupportedModel when it is one
    part of a split model or holds a tensor type that GGML does not have.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Final = Path(path)
        self._map, self.modified_ns = _open_and_map(self.path)
        self._bytes = np.frombuffer(self._map, np.uint8)
        try:
            header = read_header(self.path, self._map)
            self.version: Final = header.version
            self.alignment: Final = header.alignment
            self.metadata: Final[dict[str, Any]] = header.metadata
            self.tensors: Final[dict[str, TensorInfo]] = header.tensors
            self._refuse_split()
        except BaseException:
            self.close()
            raise

    @property
    def n_bytes(self) -> int:
        """Size of the file; 0 after close()."""
        return len(self._bytes)

    @property
    def header_bytes(self) -> npt.NDArray[np.uint8]:
        """u8 view of all before the first tensor's data: metadata and tensor directory."""
        return self._bytes[: min((t.offset for t in self.tensors.values()), default=self.n_bytes)]

    @property
    def extent(self) -> tuple[int, int]:
        """Address and size of the whole mapping."""
        return int(self._bytes.ctypes.data), self.n_bytes

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        """u8[n_bytes] read-only view of a tensor's data in the mapping; keeps the mapping alive.

        Raises GGUFError when there is no such tensor, ValueError after close().
        """
        tensor = self.tensor(name)
        if not self.n_bytes:
            raise ValueError(f"{self.path} is closed")
        return self._bytes[tensor.offset : tensor.offset + tensor.n_bytes]

    def address(self, name: str) -> int:
        """Memory address of a tensor's data. Valid until close()."""
        return int(self.bytes_of(name).ctypes.data)

    def tensor(self, name: str) -> TensorInfo:
        """The named tensor. Raises GGUFError when there is none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(self.path, f"tensor {name!r} is missing") from None

    def prefetch(self) -> None:
        """Ask the system to read the whole file into the page cache; returns when all is asked for.

        For a cold start: the disk reads on while kernels compile, instead of a little per page
        fault. Waits when the disk's queue is full: call it from a thread. Costs next to nothing for
        what is cached already, and does nothing where the system has no such call.
        """
        madvise = _libc_madvise()
        if madvise is None:
            return
        address, n_bytes = self._bytes.ctypes.data, self.n_bytes
        for start in range(0, n_bytes, PREFETCH_BYTES):
            # If it is closed between look and call, the advice is for nobody, which is harmless.
            if not self.n_bytes:
                return
            length = min(PREFETCH_BYTES, n_bytes - start)
            madvise(address + start, length, mmap.MADV_WILLNEED)

    def close(self) -> None:
        """Unmap the file, once the last view from bytes_of is gone. Idempotent."""
        self._bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):  # a view is in use; its end unmaps the file
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The getters return the value, checked, or the default when the key is missing. They raise
    # GGUFError naming the key when there is no default, or when the value is of another type.

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: Default) -> int | Default: ...
    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width."""
        return self._get(key, default, "an integer", lambda value: type(value) is int)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: Default) -> float | Default: ...
    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """A finite number; an integer is taken as one."""
        value = self._get(key, default, "a finite number", _is_finite_number)
        return float(value) if type(value) is int else value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: Default) -> bool | Default: ...
    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        return self._get(key, default, "a boolean", lambda value: type(value) is bool)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: Default) -> str | Default: ...
    def get_str(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string; bytes that are not UTF-8 become lone surrogates, as in StringArray."""
        return self._get(key, default, "a string", lambda value: type(value) is str)

    @overload
    def get_strings(self, key: str) -> StringArray: ...
    @overload
    def get_strings(self, key: str, default: Default) -> StringArray | Default: ...
    def get_strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of strings; `to_list()` decodes them all."""
        return self._get(key, default, "an array of strings", lambda v: type(v) is StringArray)

    @overload
    def get_array(self, key: str) -> npt.NDArray[Any]: ...
    @overload
    def get_array(self, key: str, default: Default) -> npt.NDArray[Any] | Default: ...
    def get_array(self, key: str, default: Any = _REQUIRED) -> Any:
        """A one-dimensional array of numbers or booleans."""
        return self._get(key, default, "an array of numbers", lambda v: type(v) is np.ndarray)

    def _get(self, key: str, default: Any, kind: str, is_kind: Callable[[Any], bool]) -> Any:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(self.path, f"metadata {key!r} is missing; it should be {kind}")
            return default
        value = self.metadata[key]
        if not is_kind(value):
            raise GGUFError(self.path, f"metadata {key!r} should be {kind}, not {_shown(value)}")
        return value

    def _refuse_split(self) -> None:
        n_parts = self.get_int("split.count", 1)
        if n_parts > 1:
            part = self.get_int("split.no", 0) + 1
            raise UnsupportedModel(
                "split model",
                f"{self.path} (part {part} of {n_parts}); join the parts to one file first,"
                " for example with llama-gguf-split --merge",
            )


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


def _is_finite_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _shown(value: object) -> str:
    if isinstance(value, (StringArray, np.ndarray)):
        return f"an array of {len(value)}"
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."


def _open_and_map(path: Path) -> tuple[mmap.mmap, int]:
    """All of the file, mapped read-only, and when it was last written to. Raises GGUFError."""
    try:
        mode = path.stat().st_mode  # before open(), which would wait for ever on a pipe
        if not stat.S_ISREG(mode):
            raise GGUFError(path, "not a file")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size == 0:  # which mmap refuses
                raise GGUFError(path, "the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), found.st_mtime_ns
    except OSError as error:
        raise GGUFError(path, f"cannot be opened: {error.strerror}") from error
