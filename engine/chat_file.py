"""A chat in a file: its token ids and the KV pages that hold them, checked by sums.

    header     HEADER, little-endian
    ids        i32[n_tokens]
    sums       u32[n_pages]     CRC-32 of each page
    (zeros up to a multiple of 4096)
    pages      [n_pages][page_bytes], the last one in use to a part

A file appears whole or not at all: it is written under another name and renamed. Knows nothing of
models: `key` says which files belong to one (fingerprint.py).
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

from engine.kernels.kv_page import PAGE

KEY_BYTES: Final = 32
UNFINISHED: Final = ".part"  # suffix of a file that is being written

HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("key", f"V{KEY_BYTES}"),
        ("page_bytes", "<u8"),
        ("n_tokens", "<u4"),
        ("sum", "<u4"),  # CRC-32 of the header with a 0 here, the ids and the sums
    ]
)
_MAGIC = b"RLCHAT1\n"
_ALIGNMENT = 4096
_MAX_TOKENS = 1 << 24

Ids = npt.NDArray[np.int32]


class BadChatFile(Exception):
    """The file is damaged, or not a chat's."""


@dataclass(frozen=True, slots=True)
class ChatHeader:
    """All of a chat's file but its pages.

    sums: u32[n_pages]; n_bytes: size of the file.
    """

    key: bytes
    page_bytes: int
    ids: Ids
    sums: npt.NDArray[np.uint32]
    n_bytes: int


def file_bytes(n_tokens: int, page_bytes: int) -> int:
    """Size of a chat's file."""
    return _first_page(n_tokens) + _n_pages(n_tokens) * page_bytes


class NotWanted(Exception):
    """The chat is not to be written any more."""


def write_chat(
    path: Path,
    key: bytes,
    ids: Sequence[int] | Ids,
    pages: Sequence[memoryview],
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Write a chat. Replaces a file of that name at once, or leaves it as it was.

    pages: those that hold the ids, all of one size. is_wanted: asked before each page and at the
    end. Raises OSError (disk full, folder read-only) and NotWanted.
    """
    assert len(pages) == _n_pages(len(ids)), f"{len(pages)} pages for {len(ids)} tokens"
    sums = np.zeros(len(pages), "<u4")
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED, ".", path.parent)  # nobody else's to read
    try:
        with open(descriptor, "wb", buffering=0) as file:
            file.seek(_first_page(len(ids)))
            for i, page in enumerate(pages):
                if not is_wanted():
                    raise NotWanted
                sums[i] = zlib.crc32(page)
                _write(file, page)
            file.seek(0)
            _write(file, memoryview(_pack(key, ids, len(pages[0]), sums)))
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


def read_pages(path: Path, header: ChatHeader, pages: Sequence[memoryview], first: int = 0) -> None:
    """Fill memory with pages of the file, as many as are given, from number `first` on.

    header: what the caller believes of the file. Raises BadChatFile when it is damaged or another
    chat's by now (what was filled is then worthless), OSError when it cannot be read.
    """
    with FileIO(path) as file:
        found = _read_header(file)
        if found.key != header.key or not np.array_equal(found.ids, header.ids):
            raise BadChatFile("holds another chat by now")
        if first + len(pages) > len(found.sums):
            raise ValueError(f"pages up to {first + len(pages)} asked for of {len(found.sums)}")
        file.seek(_first_page(len(found.ids)) + first * found.page_bytes)
        for i, page in enumerate(pages, first):
            if len(page) != found.page_bytes:
                raise ValueError(f"a page of {len(page)} bytes, not {found.page_bytes}")
            _fill(file, page)
            if zlib.crc32(page) != found.sums[i]:
                raise BadChatFile(f"page {i} is damaged")


def _pack(
    key: bytes, ids: Sequence[int] | Ids, page_bytes: int, sums: npt.NDArray[np.uint32]
) -> bytes:
    """Everything before the pages."""
    assert len(key) == KEY_BYTES, "a key of another length"
    header = np.zeros((), HEADER)
    header["magic"], header["key"] = _MAGIC, key
    header["page_bytes"], header["n_tokens"] = page_bytes, len(ids)
    rest = np.asarray(ids, "<i4").tobytes() + sums.tobytes()
    header["sum"] = zlib.crc32(rest, zlib.crc32(header.tobytes()))
    packed = header.tobytes() + rest
    return packed.ljust(_first_page(len(ids)), b"\0")


def _read_header(file: FileIO) -> ChatHeader:
    n_bytes = os.fstat(file.fileno()).st_size
    header = np.frombuffer(_read(file, HEADER.itemsize), HEADER)[0]
    n_tokens, page_bytes, expected = (int(header[f]) for f in ("n_tokens", "page_bytes", "sum"))
    if header["magic"] != _MAGIC or not 0 < n_tokens <= _MAX_TOKENS:
        raise BadChatFile("not a chat")
    if n_bytes != file_bytes(n_tokens, page_bytes):
        raise BadChatFile("not complete")
    n_pages = _n_pages(n_tokens)
    rest = _read(file, 4 * (n_tokens + n_pages))
    header["sum"] = 0
    if zlib.crc32(rest, zlib.crc32(header.tobytes())) != expected:
        raise BadChatFile("its header is damaged")
    ids = np.frombuffer(rest, "<i4", n_tokens)
    sums = np.frombuffer(rest, "<u4", n_pages, 4 * n_tokens)
    return ChatHeader(header["key"].tobytes(), page_bytes, ids, sums, n_bytes)


def _n_pages(n_tokens: int) -> int:
    return (n_tokens + PAGE - 1) // PAGE


def _first_page(n_tokens: int) -> int:
    """Where the pages begin, in bytes."""
    n_bytes = HEADER.itemsize + 4 * (n_tokens + _n_pages(n_tokens))
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
