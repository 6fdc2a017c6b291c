"""How fast this machine reads memory: the ceiling of decoding, which reads every weight once."""

from __future__ import annotations

import time

import numpy as np

from engine.kernels.op import OP
from engine.kernels.read import CHUNK, read_memory
from engine.kernels.team import Team
from engine.model.plan import Batch


class PlainRead:
    """A team that reads n_bytes at an address and does nothing with them.

    n_bytes: at least CHUNK; what a last chunk would lack is left out.
    """

    def __init__(self, team: Team, batch: Batch, address: int, n_bytes: int) -> None:
        self._team, self._batch = team, batch
        self._n_chunks = n_bytes // CHUNK
        self._scratch = np.zeros(8 * team.n_threads, np.int64)
        self._op = np.zeros(1, OP)
        self._op["kernel"] = read_memory.address
        self._op["meet"] = 1
        self._op["n_out"] = self._n_chunks
        self._op["weight"] = address
        self._op["scratch"] = self._scratch.ctypes.data

    def gb_per_s(self) -> float:
        """Read all of it once; returns 1e9 bytes per second."""
        start = time.perf_counter()
        self._team.run(int(self._op.ctypes.data), 1, self._batch.address)
        return self._n_chunks * CHUNK / (time.perf_counter() - start) / 1e9
