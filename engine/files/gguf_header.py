"""The header pass: bytes -> metadata and tensor directory. GGUF versions 2 and 3, little-endian.

Trusts nothing: every count, length, type id, size and offset is checked before it is used, so an
address made from a TensorInfo stays inside the file. Does not know what any key or tensor means,
except `general.alignment`, which belongs to the format.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from engine.errors import GGUFError, UnsupportedModel
from engine.files.ggml_types import GGML_TYPES
from engine.files.string_array import StringArray

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENTS: Final = tuple(1 << i for i in range(3, 31))
MAX_DIMS: Final = 4

# Bounds far above any real model. They keep a damaged count from costing seconds or gigabytes
# before the damage is noticed; the bytes left in the file bound everything as well.
MAX_METADATA: Final = 1 << 16
MAX_TENSORS: Final = 1 << 17
MAX_ARRAY: Final = 1 << 23  # elements of one metadata array
MAX_NAME_BYTES: Final = (1 << 16) - 1  # keys and tensor names; the specification's limit for keys

U32: Final = Struct("<I")
U64: Final = Struct("<Q")
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS: Final = {  # value type id -> how one is read
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: U32, 5: Struct("<i"),
    6: Struct("<f"), BOOL: Struct("<B"), 10: U64, 11: Struct("<q"), 12: Struct("<d"),
}  # fmt: skip
# Smallest bytes one entry takes, to test a count against the bytes that are left.
MIN_METADATA_BYTES: Final = U64.size + 1 + U32.size + 1  # key length, key, type, smallest value
MIN_TENSOR_BYTES: Final = U64.size + 1 + U32.size + U64.size + U32.size + U64.size


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in GGUF order: shape[0] is the length of a row."""

    name: str
    ggml_type: int  # a key of GGML_TYPES
    shape: tuple[int, ...]  # 1 to 4 sizes, each at least 1
    n_bytes: int
    offset: int  # bytes from the start of the file; offset + n_bytes is inside it

    @property
    def n_in(self) -> int:
        """Weights in a row: what a matrix is multiplied over."""
        return self.shape[0]

    @property
    def n_rows(self) -> int:
        """Rows, all outer dimensions taken together; 1 for a vector."""
        return math.prod(self.shape[1:])

    @property
    def n_weights(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        """GGML's name of the type, such as 'Q4_K'."""
        return GGML_TYPES[self.ggml_type].name


class Header(NamedTuple):
    """What the header pass finds."""

    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]  # in file order


def read_header(path: Path, data: mmap.mmap) -> Header:
    """Read the header. Raises GGUFError; UnsupportedModel for a tensor type that GGML has not."""
    return _HeaderPass(path, data).run()


class _HeaderPass:
    """A position in the file, and one method per kind of thing that can stand there.

    `what` names the field being read, for the error message.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.n_bytes = len(data)
        self.pos = 0

    def run(self) -> Header:
        version = self.version()
        n_tensors = self.count("tensor count", MAX_TENSORS, MIN_TENSOR_BYTES)
        n_metadata = self.count("metadata count", MAX_METADATA, MIN_METADATA_BYTES)
        metadata: dict[str, Any] = {}
        for i in range(n_metadata):
            key = self.name(f"key of metadata entry {i}")
            if key in metadata:
                raise self.error(f"metadata key {key!r} stands there twice")
            metadata[key] = self.value(f"metadata {key!r}")
        alignment = self.alignment(metadata)
        tensors = self.tensors(n_tensors, alignment)
        return Header(version, alignment, metadata, tensors)

    def error(self, what: str) -> GGUFError:
        return GGUFError(self.path, what)

    def version(self) -> int:
        magic = self.data[:4]
        if magic != MAGIC:
            raise self.error(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
        self.pos = len(MAGIC)
        version: int = self.scalar(U32, "version")
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *VERSIONS):
            raise self.error("a big-endian GGUF file; only little-endian files are supported")
        if version == 1:
            raise self.error("GGUF version 1 is not supported; convert the model to version 3")
        raise self.error(f"unknown GGUF version {version}; versions 2 and 3 are supported")

    def scalar(self, layout: Struct, what: str) -> Any:
        if self.pos + layout.size > self.n_bytes:
            raise self.error(f"{what}: the file ends here; is the download complete?")
        (value,) = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return value

    def count(self, what: str, limit: int, min_bytes: int) -> int:
        """A u64 count of things of at least `min_bytes` bytes each."""
        count: int = self.scalar(U64, what)
        if count > limit:
            raise self.error(f"{what} is {count}, more than {limit}: the file is damaged")
        if count * min_bytes > self.n_bytes - self.pos:
            raise self.error(f"{what} is {count}, more than the file has room for")
        return count

    def string(self, what: str) -> bytes:
        n_bytes: int = self.scalar(U64, f"length of {what}")
        if n_bytes > self.n_bytes - self.pos:
            raise self.error(f"{what}: {n_bytes} bytes long, more than the file has left")
        self.pos += n_bytes
        return self.data[self.pos - n_bytes : self.pos]

    def name(self, what: str) -> str:
        """A key or tensor name: short, not empty, valid UTF-8."""
        raw = self.string(what)
        if not 0 < len(raw) <= MAX_NAME_BYTES:
            raise self.error(f"{what}: {len(raw)} bytes long, outside 1..{MAX_NAME_BYTES}")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what}: {raw[:80]!r} is not UTF-8") from None

    def value(self, what: str) -> Any:
        type_id: int = self.scalar(U32, f"type of {what}")
        if type_id == STRING:
            return self.string(what).decode("utf-8", "surrogateescape")
        if type_id == ARRAY:
            return self.array(what)
        if type_id not in SCALARS:
            raise self.error(f"{what}: unknown value type {type_id}")
        value = self.scalar(SCALARS[type_id], what)
        if type_id != BOOL:
            return value
        if value > 1:
            raise self.error(f"{what}: a boolean is 0 or 1, not {value}")
        return bool(value)

    def array(self, what: str) -> StringArray | np.ndarray[Any, Any]:
        type_id: int = self.scalar(U32, f"element type of {what}")
        if type_id == STRING:
            return self.string_array(self.count(f"length of {what}", MAX_ARRAY, U64.size), what)
        if type_id == ARRAY:
            raise self.error(f"{what}: an array of arrays, which no known model uses")
        if type_id not in SCALARS:
            raise self.error(f"{what}: unknown element type {type_id}")
        layout = SCALARS[type_id]
        n = self.count(f"length of {what}", MAX_ARRAY, layout.size)
        # A copy: aligned, and it neither pins the mapping nor dies with it.
        values = np.frombuffer(self.data, layout.format, n, self.pos).copy()
        self.pos += values.nbytes
        if type_id != BOOL:
            return values
        if values.max(initial=0) > 1:
            raise self.error(f"{what}: a boolean is 0 or 1, not {values.max()}")
        return values.view(np.bool_)

    def string_array(self, n: int, what: str) -> StringArray:
        strings = StringArray.scan(self.data, self.pos, n)
        if isinstance(strings, int):
            raise self.error(f"{what}: string {strings} of {n} reaches past the end of the file")
        self.pos = strings.end
        return strings

    def alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment not in ALIGNMENTS:
            raise self.error(f"general.alignment is {alignment!r}, not a power of two from 8 up")
        return alignment

    def tensors(self, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
        # Offsets count from the data section, which begins behind the last entry: two passes.
        entries: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for i in range(n_tensors):
            name = self.name(f"name of tensor {i}")
            if name in entries:
                raise self.error(f"tensor {name!r} stands there twice")
            entries[name] = self.tensor_entry(f"tensor {name!r}")
        data_start = (self.pos + alignment - 1) // alignment * alignment
        tensors = {}
        for name, (ggml_type, shape, offset) in entries.items():
            if offset % alignment:
                raise self.error(f"tensor {name!r}: offset {offset} is not aligned to {alignment}")
            n_bytes = self.tensor_bytes(name, ggml_type, shape)
            end = data_start + offset + n_bytes
            if end > self.n_bytes:
                raise self.error(
                    f"tensor {name!r} ends at byte {end}, but the file has {self.n_bytes};"
                    " is the download complete?"
                )
            tensors[name] = TensorInfo(name, ggml_type, shape, n_bytes, data_start + offset)
        return tensors

    def tensor_entry(self, what: str) -> tuple[int, tuple[int, ...], int]:
        """(ggml_type, shape, offset in the data section); only the shape is checked yet."""
        n_dims: int = self.scalar(U32, f"{what}: dimension count")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.error(f"{what}: {n_dims} dimensions, outside 1..{MAX_DIMS}")
        shape = tuple(self.scalar(U64, f"{what}: dimension {i}") for i in range(n_dims))
        if 0 in shape:
            raise self.error(f"{what}: shape {list(shape)} has a dimension of 0")
        return self.scalar(U32, f"{what}: type"), shape, self.scalar(U64, f"{what}: offset")

    def tensor_bytes(self, name: str, ggml_type: int, shape: tuple[int, ...]) -> int:
        if ggml_type not in GGML_TYPES:
            where = f"tensor {name!r} in {self.path} has it"
            raise UnsupportedModel("tensor type", str(ggml_type), hint=where)
        layout = GGML_TYPES[ggml_type]
        if shape[0] % layout.block_size:
            raise self.error(
                f"tensor {name!r}: rows of {shape[0]} weights do not divide into"
                f" {layout.name} blocks of {layout.block_size}"
            )
        return layout.bytes_of(math.prod(shape))
