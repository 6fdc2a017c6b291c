"""StringArray: the strings of a GGUF array where they lie in the file, decoded on demand.

A vocabulary and its merges are half a million strings: 30 MB as Python objects, 8 bytes each here.
Does not know what the strings mean.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Self, overload

import numpy as np

_LENGTH = Struct("<Q")  # stands before each string's bytes
_SEPARATOR = 0xFF


class StringArray(Sequence[str]):
    """A sequence of str over the mapping; readable while the file is open.

    Bytes that are not UTF-8 become lone surrogates (`surrogateescape`):
    `text.encode("utf-8", "surrogateescape")` gives the exact bytes back, as does `bytes_at`.
    """

    __slots__ = ("_data", "_starts")

    def __init__(self, data: mmap.mmap, starts: array[int]) -> None:
        self._data = data
        self._starts = starts  # n + 1 offsets in `data`; a string ends where the next length stands

    @classmethod
    def scan(cls, data: mmap.mmap, pos: int, n: int) -> Self | int:
        """Find `n` strings from offset `pos` on, or the index of the first that is cut off."""
        # The hot loop of opening a file, so nothing is tested inside it. A damaged length only
        # moves `pos` past the end (Python integers do not wrap): the next read or last test fails.
        starts = array("Q")
        read_length, append, n_length = _LENGTH.unpack_from, starts.append, _LENGTH.size
        try:
            for _ in range(n):
                (n_bytes,) = read_length(data, pos)
                pos += n_length
                append(pos)
                pos += n_bytes
            append(pos + n_length)
        except (StructError, OverflowError):
            return max(len(starts) - 1, 0)
        return cls(data, starts) if pos <= len(data) else n - 1

    @property
    def end(self) -> int:
        """Offset of the byte behind the last string."""
        return self._starts[-1] - _LENGTH.size

    def __len__(self) -> int:
        return len(self._starts) - 1

    def bytes_at(self, index: int) -> bytes:
        """The bytes of one string, undecoded; `index` may be negative. Raises IndexError."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of {n}")
        index %= n
        return self._data[self._starts[index] : self._starts[index + 1] - _LENGTH.size]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.bytes_at(index).decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def to_list(self) -> list[str]:
        """All strings, about 0.15 us each; they outlive the file.

        Decoded in one go, with a byte that no UTF-8 has in place of each length, and split there.
        """
        if not len(self):
            return []
        first = self._starts[0] - _LENGTH.size
        data = np.frombuffer(self._data, np.uint8, self.end - first, first).copy()
        lengths = np.frombuffer(self._starts, np.uint64)[:-1].astype(np.intp) - first - _LENGTH.size
        keep = np.ones(len(data), np.bool_)
        for i in range(1, _LENGTH.size):
            keep[lengths + i] = False
        data[lengths] = _SEPARATOR
        text = data[keep].tobytes().decode("utf-8", "surrogateescape")
        strings = text.split(chr(0xDC00 + _SEPARATOR))[1:]
        # A damaged string may hold that byte.
        return strings if len(strings) == len(self) else [self[i] for i in range(len(self))]

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"
