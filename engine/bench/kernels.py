"""Measures the products of every tensor type with no model at all: decoding's dot product, of one
input row and of four, beside a plain read of the same memory, and prefill's tiles.

The weights are random, in anonymous memory, and larger than the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bench.bandwidth import PlainRead
from engine.jit import PROFILE
from engine.kernels.op import FEW
from engine.kernels.team import Team
from engine.model.plan import Batch, Memory, Part, Plan, Workspace
from engine.model.plan_writer import PlanWriter
from engine.model.weights import Matrix
from engine.quants import QUANTS
from engine.quants.base import QuantType

_N_IN = 4096
_LEAST_BYTES, _CACHES = 128 << 20, 4  # of weights: so many, and so many times the largest cache
_FOUR, _PREFILL = 4, 128  # input rows
_PREFILL_OUT = 1024  # weight rows that meet so many input rows: arithmetic is the limit, not memory
_SOUND = 1e-3, 1.0  # sizes of a block's largest weight
_SEED = 20

Record = dict[str, Any]


def run(
    threads: Sequence[int],
    reps: int = 5,
    on_type: Callable[[str], None] = lambda name: None,
    n_bytes: int = 0,
) -> Record:
    """Measure every tensor type with each number of threads.

    Returns the CPU profile and a record for each type and number of threads: *_gb_per_s (1e9 bytes
    of weights), dot_of_read (medians of pairs), four_rows_cost (time of four input rows to one's),
    prefill_gflop_per_s. on_type: hears what is measured next. n_bytes: of the weights of a type;
    0 = more than the caches hold.
    """
    memory = Memory(n_bytes or max(_LEAST_BYTES, _CACHES * _largest_cache()))
    teams = [Team(n) for n in threads]
    try:
        rows = []
        for quant in QUANTS.values():
            on_type(quant.name)
            matrix = _random_matrix(quant, memory)
            rows += [_measure(matrix, memory, team, reps) for team in teams]
    finally:
        for team in teams:
            team.close()
    return {"profile": PROFILE.name, "n_bytes": memory.n_bytes, "n_in": _N_IN, "types": rows}


class _Product:
    """A matrix times some input rows, by the op that models use."""

    def __init__(self, matrix: Matrix, n_rows: int, team: Team) -> None:
        self._team = team
        self._batch = Batch(n_rows)
        planes = 0 if n_rows <= FEW else 1
        self._batch.fill([Part([0] * n_rows, 0, 0, [])], planes)
        self._plan, inputs, self._workspace = Plan(), Plan(), Workspace()
        writer = PlanWriter(
            self._plan,
            self._workspace,
            max_rows=n_rows,
            widest=_N_IN,
            n_threads=team.n_threads,
            scratch_bytes=0,
            centred=False,
        )
        x = writer.floats(_N_IN)
        self.x = self._workspace.array(x, np.float32, (n_rows, _N_IN))
        self.x[:] = np.random.default_rng(_SEED).standard_normal(self.x.shape)
        n_out = (matrix.n_out + 15) // 16 * 16
        self._out = writer.floats(n_out)
        writer.matmul(matrix, x, self._out)
        self._plan.finish()
        if matrix.quant.group:  # others take the floats
            writer.plan = inputs
            writer.quantise(x, matrix)
            inputs.finish()
            team.run(inputs.address, len(inputs), self._batch.address)
        self.result = self._workspace.array(self._out, np.float32, (n_rows, n_out))

    def seconds(self) -> float:
        """Compute it once."""
        start = time.perf_counter()
        self._team.run(self._plan.address, len(self._plan), self._batch.address)
        return time.perf_counter() - start


def _measure(matrix: Matrix, memory: Memory, team: Team, reps: int) -> Record:
    one, four = _Product(matrix, 1, team), _Product(matrix, _FOUR, team)
    few = matrix.rows(0, min(_PREFILL_OUT, matrix.n_out))
    prefill = _Product(few, _PREFILL, team)
    read = PlainRead(team, Batch(1), memory.address, memory.n_bytes)
    times = np.array(  # in turn, as the machine's speed drifts; the first ones warm up
        [
            (matrix.n_bytes / 1e9 / read.gb_per_s(), *(p.seconds() for p in (one, four, prefill)))
            for _ in range(reps + 1)
        ][1:]
    )
    read_s, one_s, four_s, prefill_s = np.median(times, axis=0).tolist()
    gigabytes = matrix.n_bytes / 1e9
    return {
        "type": matrix.quant.name,
        "threads": team.n_threads,
        "read_gb_per_s": round(gigabytes / read_s, 2),
        "dot_gb_per_s": round(gigabytes / one_s, 2),
        "dot_of_read": round(float(np.median(times[:, 0] / times[:, 1])), 3),
        "dot4_gb_per_s": round(gigabytes / four_s, 2),
        "four_rows_cost": round(float(np.median(times[:, 2] / times[:, 1])), 3),
        "prefill_gflop_per_s": round(2 * few.n_in * few.n_out * _PREFILL / prefill_s / 1e9, 1),
    }


def _random_matrix(quant: QuantType, memory: Memory) -> Matrix:
    """As many rows as the memory holds: a few random ones, again and again."""
    row_bytes = quant.row_bytes(_N_IN)
    n_out = memory.n_bytes // row_bytes // 16 * 16
    some = _random_rows(quant, 64)
    rows = memory.bytes[: n_out * row_bytes].reshape(n_out, row_bytes)
    for first in range(0, n_out, len(some)):
        rows[first : first + len(some)] = some[: n_out - first]
    return Matrix("random", quant.ggml_type, memory.address, _N_IN, n_out)


def _random_rows(quant: QuantType, n: int) -> npt.NDArray[np.uint8]:
    """u8[n, row_bytes]. Of blocks of random bits those whose weights are sound numbers: most bit
    patterns of a scale are far too large, or none at all.
    """
    rng = np.random.default_rng(_SEED)
    n_blocks = n * _N_IN // quant.block_size
    found = np.zeros(0, quant.block)
    with np.errstate(all="ignore"):
        while len(found) < n_blocks:
            bits = rng.integers(0, 256, (8 * n_blocks, quant.block_bytes), dtype=np.uint8)
            blocks = bits.view(quant.block).reshape(-1)
            largest = np.abs(quant.dequantize(blocks)).reshape(len(blocks), -1).max(-1)
            found = np.concatenate([found, blocks[(largest > _SOUND[0]) & (largest < _SOUND[1])]])
    return found[:n_blocks].view(np.uint8).reshape(n, -1)


def _largest_cache() -> int:
    """Bytes; 0 where the system does not tell."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) << 10)
    return max(sizes)
