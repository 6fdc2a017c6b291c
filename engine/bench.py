"""Measures a model: prefill and decode speed beside the ceiling that memory sets, and the memory it
takes.

The model must first answer a question right: speed without sense is worth nothing.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.chat import Chat
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.kernels.kv_page import PAGE
from engine.kernels.op import OP
from engine.kernels.read import CHUNK, read_memory
from engine.sampling_params import SamplingParams

_QUESTION = "What is the capital of France?"
_ANSWER = "Paris"
_LEAST_CHUNKS = 64  # MiB that a read of memory takes at least, to be one


class WrongAnswer(EngineError):
    """The model does not know what it should: nothing was measured."""


def run(
    model_path: str | Path,
    n_threads: int,
    n_prompt: int,
    n_decode: int,
    reps: int,
    answer_check: bool,
    tokenizer_pre: str = "",
) -> dict[str, Any]:
    """Prefill n_prompt tokens and decode n_decode, reps times after a warm-up; speeds are medians.

    Returns one flat record: *_tok_per_s, *_s, *_gb_per_s (1e9 bytes), RssAnon and RssFile in MiB,
    of_ceiling (bytes that decoding reads in a second, to a plain read of the same memory on as many
    threads). Raises WrongAnswer and what Engine raises.
    """
    start = time.perf_counter()
    n_ctx = max(n_prompt + n_decode + 8, 256 if answer_check else 0)
    config = EngineConfig(model_path, n_ctx=n_ctx, n_threads=n_threads, tokenizer_pre=tokenizer_pre)
    with Engine(config) as engine:
        load_s = time.perf_counter() - start
        if answer_check:
            _check_answer(engine)
        engine._cache.clear()
        chat = engine._new_chat()
        engine._model.batch.allow()  # whatever became of the question
        prefill_s, decode_s = [], []
        for rep in range(reps + 1):
            chat.restart()
            a, b = _one_rep(chat, engine.model.n_vocab, n_prompt, n_decode)
            if rep:  # the first one warms up
                prefill_s.append(a)
                decode_s.append(b)
        decode_tok_per_s = n_decode / statistics.median(decode_s)
        decode_gb_per_s = decode_tok_per_s * bytes_per_token(engine, n_prompt + n_decode // 2) / 1e9
        bandwidth = max(_read_gb_per_s(engine) for _ in range(3))
        return {
            "engine": "rushlight",
            "model": str(model_path),
            "threads": engine._model.team.n_threads,
            "prefill_tok_per_s": round(n_prompt / statistics.median(prefill_s), 2),
            "decode_tok_per_s": round(decode_tok_per_s, 2),
            "load_s": round(load_s, 2),
            **_resident_mib(),
            "bandwidth_gb_per_s": round(bandwidth, 2),
            "decode_gb_per_s": round(decode_gb_per_s, 2),
            "of_ceiling": round(decode_gb_per_s / bandwidth, 3),
        }


def bytes_per_token(engine: Engine, n_past: int) -> int:
    """Bytes that decoding one token reads: every matrix once, and the cache of n_past tokens."""
    weights = engine._model.weights
    matrices = [weights.output]
    for w in weights.blk:
        matrices += w.matrices()
    kv = engine._model.page_bytes * n_past // PAGE
    return sum(m.n_bytes for m in matrices) + kv


def _check_answer(engine: Engine) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": _QUESTION}])
    params = SamplingParams(temperature=0, max_tokens=64)
    reply = "".join(event.text for event in engine.generate(prompt, params))
    if _ANSWER not in reply:
        raise WrongAnswer(f"{_QUESTION} The model should say {_ANSWER}; it said: {reply!r}")


def _one_rep(chat: Chat, n_vocab: int, n_prompt: int, n_decode: int) -> tuple[float, float]:
    """(seconds of prefill, seconds of decode)"""
    prompt = [(i * 7919 + 13) % n_vocab for i in range(n_prompt)]
    start = time.perf_counter()
    for first in range(0, n_prompt, chat.max_rows):
        chunk = prompt[first : first + chat.max_rows]
        chat.prefill(chunk, want_logits=first + len(chunk) == n_prompt)
    between = time.perf_counter()
    for i in range(n_decode):
        chat.next((i * 104729 + 7) % n_vocab)
    return between - start, time.perf_counter() - between


def _read_gb_per_s(engine: Engine) -> float:
    """Speed of reading memory with the engine's threads, in 1e9 bytes per second.

    The mapped weights themselves, or where they are so few that a cache holds them, other memory.
    """
    first = min(engine._gguf.tensors.values(), key=lambda t: t.offset)
    n_chunks = min((engine._gguf.n_bytes - first.offset) // CHUNK, 1024)
    address = engine._gguf.address(first.name)
    if n_chunks < _LEAST_CHUNKS:
        n_chunks = _LEAST_CHUNKS
        stand_in = np.ones(n_chunks * CHUNK, np.uint8)
        address = int(stand_in.ctypes.data)
    team = engine._model.team
    scratch = np.zeros(8 * team.n_threads, np.int64)
    op = np.zeros(1, OP)
    op["kernel"] = read_memory.address
    op["meet"] = 1
    op["n_out"] = n_chunks
    op["weight"] = address
    op["scratch"] = scratch.ctypes.data
    batch = engine._model.batch
    batch.allow()
    start = time.perf_counter()
    team.run(int(op.ctypes.data), 1, batch.address)
    return n_chunks * CHUNK / (time.perf_counter() - start) / 1e9


def _resident_mib() -> dict[str, int]:
    """Anonymous and file-backed memory of this process, where the system tells."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {"RssAnon": -1, "RssFile": -1}
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) // 1024 for name in ("RssAnon", "RssFile")}
