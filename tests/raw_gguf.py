"""GGUF files made byte by byte, sound or not."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from engine.files.gguf_file import GGUFFile

# Value types of the specification.
U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def entry(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + u32(type_id) + value


def tensor(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    shape = b"".join(u64(dim) for dim in dims)
    return text(name) + u32(len(dims)) + shape + u32(type_id) + u64(offset)


def raw_gguf(
    metadata: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    alignment: int = 32,
    version: int = 3,
    n_metadata: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A file made of the given pieces; the counts may lie."""
    metadata, tensors = metadata or [], tensors or []
    header = b"GGUF" + u32(version)
    header += u64(len(tensors) if n_tensors is None else n_tensors)
    header += u64(len(metadata) if n_metadata is None else n_metadata)
    header += b"".join(metadata) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data


def open_raw(path: Path, *args: Any, **options: Any) -> GGUFFile:
    path.write_bytes(raw_gguf(*args, **options))
    return GGUFFile(path)
