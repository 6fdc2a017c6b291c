"""llama.cpp behind lines of JSON, for peer.py: a script for a Python that has llama-cpp-python. It
imports nothing of ours.

    python llama_cpp_child.py MODEL N_THREADS N_CTX

in   {"depth": 0, "n_prompt": 256, "n_decode": 48}   out   {"prefill_s": 0.8, "decode_s": 0.4}
in   {"memory": true}                                out   {"RssAnon": 58, "RssFile": 120}

The first line out tells that the model is loaded. Both engines read the same tokens.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp as lc

_N_BATCH = 512  # its own default: tokens that it reads at once


class _Context:
    """A model and one sequence of its tokens, through the C functions."""

    def __init__(self, path: str, n_threads: int, n_ctx: int) -> None:
        model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        if not model:
            sys.exit(f"it cannot load {path}")
        params = lc.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = _N_BATCH
        params.n_threads = params.n_threads_batch = n_threads
        self._context = lc.llama_init_from_model(model, params)
        if not self._context:
            sys.exit(f"it has no memory for {n_ctx} tokens")
        self._memory = lc.llama_get_memory(self._context)
        self._n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        self._n_past = 0  # tokens in the cache
        self._n_filled = 0  # of those, the ones that `_fill` has read

    def measure(self, depth: int, n_prompt: int, n_decode: int) -> dict[str, float]:
        """As Contestant.measure says."""
        self._fill(depth)
        start = time.perf_counter()
        self._read(self._prompt(n_prompt))
        between = time.perf_counter()
        for i in range(n_decode):
            self._read([(i * 104729 + 7) % self._n_vocab])
        return {"prefill_s": between - start, "decode_s": time.perf_counter() - between}

    def _fill(self, depth: int) -> None:
        """Make the cache hold depth tokens; what it holds already of them is not read again."""
        kept = min(depth, self._n_filled)
        if kept == 0:
            lc.llama_memory_clear(self._memory, True)
        elif not lc.llama_memory_seq_rm(self._memory, 0, kept, -1):
            sys.exit("it cannot shorten this model's cache")
        self._n_past, self._n_filled = kept, depth
        self._read(self._prompt(depth)[kept:])

    def _read(self, tokens: list[int]) -> None:
        for first in range(0, len(tokens), _N_BATCH):
            chunk = tokens[first : first + _N_BATCH]
            array = (lc.llama_token * len(chunk))(*chunk)
            if lc.llama_decode(self._context, lc.llama_batch_get_one(array, len(chunk))):
                sys.exit(f"llama_decode failed at token {self._n_past}")
            self._n_past += len(chunk)
        lc.llama_synchronize(self._context)

    def _prompt(self, n: int) -> list[int]:
        return [(i * 7919 + 13) % self._n_vocab for i in range(n)]


def _resident_mib() -> dict[str, int]:
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {name: int(fields[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}


def _tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    path, n_threads, n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    start = time.perf_counter()
    lc.llama_backend_init()
    silent = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(silent, ctypes.c_void_p(0))
    context = _Context(path, n_threads, n_ctx)
    _tell({"version": lc.__version__, "load_s": round(time.perf_counter() - start, 2)})
    for line in sys.stdin:
        asked = json.loads(line)
        _tell(_resident_mib() if "memory" in asked else context.measure(**asked))


if __name__ == "__main__":
    main()
