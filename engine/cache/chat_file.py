"""A chat in a file: its token ids and the KV pages that hold them, checked by sums.

    header     HEADER, little-endian
    ids        i32[n_tokens]
    sizes      u32[n_pages]     bytes of each page; 0 = it is not here
    sums       u32[n_pages]     CRC-32 of each page
    (zeros up to a multiple of 4096)
    pages      one after the other

A file appears whole or not at all: it is written under another name and renamed. Knows nothing of
models, nor of what is in a page: `key` says which files belong to one (fingerprint.py).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

KEY_BYTES: Final = 32
UNFINISHED: Final = ".part"  # suffix of a file that is being written

HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("key", f"V{KEY_BYTES}"),
        ("n_tokens", "<u4"),
        ("n_pages", "<u4"),
        ("sum", "<u4"),  # CRC-32 of the header with a 0 here, the ids, the sizes and the sums
    ]
)
_MAGIC = b"RLCHAT2\n"
_ALIGNMENT = 4096
_MOST = 1 << 24  # tokens or pages

Ids = npt.NDArray[np.int32]
Views = Sequence[memoryview | None]  # a chat's pages; None: it does without this one


class BadChatFile(Exception):
    """The file is damaged, or not a chat's."""


@dataclass(frozen=True, slots=True)
class ChatHeader:
    """All of a chat's file but its pages.

    sizes, sums: of the pages; n_bytes: size of the file.
    """

    key: bytes
    ids: Ids
    sizes: npt.NDArray[np.uint32]
    sums: npt.NDArray[np.uint32]
    n_bytes: int


def file_bytes(n_tokens: int, pages: Views) -> int:
    """Size of a chat's file."""
    return _first_page(n_tokens, len(pages)) + sum(len(page) for page in pages if page)


class NotWanted(Exception):
    """The chat is not to be written any more."""


def write_chat(
    path: Path,
    key: bytes,
    ids: Sequence[int] | Ids,
    pages: Views,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Write a chat. Replaces a file of that name at once, or leaves it as it was.

    is_wanted: asked before each page and at the end. Raises OSError (disk full, folder read-only)
    and NotWanted.
    """
    sizes = np.array([len(page or b"") for page in pages], "<u4")
    sums = np.zeros(len(pages), "<u4")
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED, ".", path.parent)  # nobody else's to read
    try:
        with open(descriptor, "wb", buffering=0) as file:
            file.seek(_first_page(len(ids), len(pages)))
            for i, page in enumerate(pages):
                if not is_wanted():
                    raise NotWanted
                if page is not None:
                    sums[i] = zlib.crc32(page)
                    _write(file, page)
            file.seek(0)
            _write(file, memoryview(_pack(key, ids, sizes, sums)))
        if not is_wanted():
            raise NotWanted
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def read_header(path: Path) -> ChatHeader:
    """Everything but the pages. Raises BadChatFile, or OSError when it cannot be read."""
    with FileIO(path) as file:
        return _read_header(file)


def read_pages(path: Path, header: ChatHeader, pages: Views, first: int = 0) -> None:
    """Fill memory with pages of the file, as many as are given from number `first` on, but for
    None.

    header: what the caller believes of the file. Raises BadChatFile when it is damaged or another
    chat's by now (what was filled is then worthless), OSError when it cannot be read.
    """
    with FileIO(path) as file:
        found = _read_header(file)
        same = np.array_equal(found.ids, header.ids) and np.array_equal(found.sizes, header.sizes)
        if found.key != header.key or not same:
            raise BadChatFile("holds another chat by now")
        if first + len(pages) > len(found.sums):
            raise ValueError(f"pages up to {first + len(pages)} asked for of {len(found.sums)}")
        place = _first_page(len(found.ids), len(found.sums))
        place += int(found.sizes[:first].sum(dtype=np.int64))
        for i, page in enumerate(pages, first):
            size = int(found.sizes[i])
            if page is not None:
                if len(page) != size:
                    raise ValueError(f"a page of {len(page)} bytes, not {size}")
                file.seek(place)
                _fill(file, page)
                if zlib.crc32(page) != found.sums[i]:
                    raise BadChatFile(f"page {i} is damaged")
            place += size


def _pack(
    key: bytes,
    ids: Sequence[int] | Ids,
    sizes: npt.NDArray[np.uint32],
    sums: npt.NDArray[np.uint32],
) -> bytes:
    """Everything before the pages."""
    header = np.zeros((), HEADER)
    header["magic"], header["key"] = _MAGIC, key
    header["n_tokens"], header["n_pages"] = len(ids), len(sizes)
    assert len(key) == KEY_BYTES, "a key of another length"
    rest = np.asarray(ids, "<i4").tobytes() + sizes.tobytes() + sums.tobytes()
    header["sum"] = zlib.crc32(rest, zlib.crc32(header.tobytes()))
    packed = header.tobytes() + rest
    return packed.ljust(_first_page(len(ids), len(sizes)), b"\0")


def _read_header(file: FileIO) -> ChatHeader:
    n_bytes = os.fstat(file.fileno()).st_size
    header = np.frombuffer(_read(file, HEADER.itemsize), HEADER)[0]
    n_tokens, n_pages, expected = (int(header[f]) for f in ("n_tokens", "n_pages", "sum"))
    if header["magic"] != _MAGIC or not 0 < n_tokens <= _MOST or not 0 < n_pages <= _MOST:
        raise BadChatFile("not a chat")
    first = _first_page(n_tokens, n_pages)
    if n_bytes < first:
        raise BadChatFile("not complete")
    rest = _read(file, 4 * (n_tokens + 2 * n_pages))
    header["sum"] = 0
    if zlib.crc32(rest, zlib.crc32(header.tobytes())) != expected:
        raise BadChatFile("its header is damaged")
    ids = np.frombuffer(rest, "<i4", n_tokens)
    sizes = np.frombuffer(rest, "<u4", n_pages, 4 * n_tokens)
    sums = np.frombuffer(rest, "<u4", n_pages, 4 * (n_tokens + n_pages))
    if n_bytes != first + int(sizes.sum(dtype=np.int64)):
        raise BadChatFile("not complete")
    return ChatHeader(header["key"].tobytes(), ids, sizes, sums, n_bytes)


def _first_page(n_tokens: int, n_pages: int) -> int:
    """Where the pages begin, in bytes."""
    n_bytes = HEADER.itemsize + 4 * (n_tokens + 2 * n_pages)
    return (n_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _read(file: FileIO, n_bytes: int) -> bytearray:
    found = bytearray(n_bytes)
    _fill(file, memoryview(found))
    return found


def _fill(file: FileIO, memory: memoryview) -> None:
    while memory:
        n = file.readinto(memory)
        if not n:
            raise BadChatFile("shorter than it says")
        memory = memory[n:]


def _write(file: FileIO, memory: memoryview) -> None:
    while memory:
        memory = memory[file.write(memory) :]
