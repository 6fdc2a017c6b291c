"""The persistent plan: op records over buffers that are allocated once, and the batch that changes
from step to step.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.jit import Native
from engine.kernels.op import BATCH, OP
from engine.memory.residency import resident_bytes


class Memory:
    """Anonymous memory that the system commits page by page when it is first written."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = max(n_bytes, 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._map = mmap.mmap(-1, self.n_bytes, flags=flags)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self.view = memoryview(self._map)

    def give_back(self, offset: int, n_bytes: int) -> None:
        """Return a page-aligned range to the system; it reads as zeros afterwards."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, offset, n_bytes)


class Workspace:
    """The buffers of a plan.

    They are reused by all layers, and only what is written to costs memory.
    """

    def __init__(self) -> None:
        self._buffers: list[Memory] = []

    def reserve(self, n_bytes: int) -> int:
        """Address of a new buffer, page-aligned, zero until written."""
        self._buffers.append(Memory(n_bytes))
        return self._buffers[-1].address

    def array(self, address: int, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The buffer at an address as an array that shares its memory."""
        buffer = next(b for b in self._buffers if b.address == address)
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return buffer.bytes[:n_bytes].view(dtype).reshape(shape)

    def resident_bytes(self) -> int:
        """How much of them is in memory."""
        found = (resident_bytes(buffer.address, buffer.n_bytes) for buffer in self._buffers)
        return sum(n or 0 for n in found)

    def release(self) -> None:
        """Give all memory back to the system; the buffers read as zeros afterwards."""
        for buffer in self._buffers:
            buffer.give_back(0, buffer.n_bytes)

    @property
    def n_bytes(self) -> int:
        """Size of all buffers together, written to or not."""
        return sum(b.n_bytes for b in self._buffers)


@dataclass(frozen=True, slots=True)
class Part:
    """One chat's rows in a batch: its next tokens, in order.

    first_pos: the first one's place in the chat; pages: address of the chat's page table;
    rows_out: those of the part's rows whose logits are wanted.
    """

    tokens: Sequence[int]
    first_pos: int
    pages: int
    rows_out: Sequence[int]


class Batch:
    """What changes from one run of the plan to the next: tokens, positions, page tables, rows
    whose logits are wanted.
    """

    def __init__(self, max_rows: int) -> None:
        self.tokens = np.zeros(max_rows, np.int32)
        self.positions = np.zeros(max_rows, np.int32)
        self.pages = np.zeros(max_rows, np.int64)
        self.rows_out = np.zeros(max_rows, np.int32)
        self.record = np.zeros(1, BATCH)
        self.record["token"] = self.tokens.ctypes.data
        self.record["pos"] = self.positions.ctypes.data
        self.record["pages"] = self.pages.ctypes.data
        self.record["row_out"] = self.rows_out.ctypes.data
        self.address = int(self.record.ctypes.data)
        self._cancel = self.record["cancel"]
        self._op_done = self.record["op_done"]

    def fill(self, parts: Sequence[Part], planes: int) -> None:
        """Rows of one or several chats. planes: precision (kernels/activation.py)."""
        row = n_out = 0
        for part in parts:
            n = len(part.tokens)
            self.tokens[row : row + n] = part.tokens
            self.positions[row : row + n] = range(part.first_pos, part.first_pos + n)
            self.pages[row : row + n] = part.pages
            for i in part.rows_out:
                self.rows_out[n_out] = row + i
                n_out += 1
            row += n
        self.record["n_rows"] = row
        self.record["n_rows_out"] = n_out
        self.record["planes"] = planes

    def cancel(self) -> None:
        """Stop the run at its next op or tile, and every later one until `allow`. Any thread."""
        self._cancel[0] = 1

    def allow(self) -> None:
        """Take `cancel` back, for the next request."""
        self._cancel[0] = 0

    @property
    def cancelled(self) -> bool:
        return bool(self._cancel[0])

    def rewind(self) -> None:
        """Forget how far the last run came."""
        self._op_done[0] = 0

    @property
    def n_ops_done(self) -> int:
        """Ops of the current run that are finished. Any thread."""
        return int(self._op_done[0])


class Plan:
    """Op records in the order in which they run."""

    def __init__(self) -> None:
        self._ops: list[tuple[Native, dict[str, Any]]] = []
        self.records = np.zeros(0, OP)

    def emit(self, kernel: Native, *, meet: bool = True, **fields: Any) -> None:
        """Append an op. Of a field that is a Native or an array the address is meant, which is 0
        for None; the plan keeps the array.

        meet: the threads meet after it, as a later op reads what it writes.
        """
        self._ops.append((kernel, {"meet": int(meet), **fields}))

    def functions(self) -> list[Native]:
        """All compiled functions that the plan needs, each once."""
        found: dict[int, Native] = {}
        for kernel, fields in self._ops:
            for function in (kernel, *(v for v in fields.values() if isinstance(v, Native))):
                found[id(function)] = function
        return list(found.values())

    def finish(self) -> None:
        """Write the records; compiles every function that is not in the cache yet."""
        self.records = np.zeros(len(self._ops), OP)
        for record, (kernel, fields) in zip(self.records, self._ops, strict=True):
            record["kernel"] = kernel.address
            for name, value in fields.items():
                record[name] = _number(value)

    @property
    def address(self) -> int:
        return int(self.records.ctypes.data)

    def __len__(self) -> int:
        return len(self._ops)


def _number(value: Any) -> Any:
    """What stands in a record for the value of a field."""
    if isinstance(value, Native):
        return value.address
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return 0 if value is None else value
