"""Measures a model: prefill and decode beside the ceiling that memory sets, decoding after long
contexts and of several chats at once, llama.cpp in turn with us, and the memory it takes.

The model must first answer a question right: speed without sense is worth nothing.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.bench.bandwidth import PlainRead
from engine.bench.contestant import Contestant, Ours, Times, tokens_at_most
from engine.bench.peer import LlamaCpp
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.jit import PROFILE, n_compiled
from engine.kernels.kv_page import PAGE
from engine.kernels.read import CHUNK
from engine.memory.free_memory import resident
from engine.sampling.sampling_params import SamplingParams

_QUESTION = "What is the capital of France?"
_ANSWER = "Paris"
_LEAST_READ = 64 * CHUNK  # bytes that a read of memory takes at least, to be one
_MOST_READ = 1024 * CHUNK

Record = dict[str, Any]


class WrongAnswer(EngineError):
    """The model does not know what it should: nothing was measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured.

    n_prompt, n_decode: tokens to read and to decode. reps: how often, after a warm-up; medians
    count. depths: also decode with so many tokens in the cache already. batches: also decode so
    many chats together. llama_cpp: also measure llama.cpp, in this Python ("" = the one that runs
    us); None = do not.
    """

    n_prompt: int = 128
    n_decode: int = 32
    reps: int = 3
    depths: Sequence[int] = ()
    batches: Sequence[int] = ()
    llama_cpp: str | None = None


def run(
    model_path: str | Path,
    n_threads: int,
    work: Work,
    answer_check: bool = True,
    tokenizer_pre: str = "",
) -> Record:
    """Measure a model with n_threads (0 = as many as a server would use).

    Returns a record of *_tok_per_s, *_s, *_ms, *_gb_per_s (1e9 bytes), RssAnon and RssFile in MiB,
    of_ceiling (bytes that decoding reads in a second, to a plain read of the same memory on as many
    threads); "depths" and "batches" hold records of their own, "llama_cpp" one of the same names.
    Raises WrongAnswer, PeerFailed and what Engine raises.
    """
    start = time.perf_counter()
    n_most = max(
        tokens_at_most(work.depths, work.batches, work.n_decode), work.n_prompt + work.n_decode
    )
    config = EngineConfig(
        model_path,
        n_ctx=max(n_most + 8, 256 if answer_check else 0),
        n_threads=n_threads,
        tokenizer_pre=tokenizer_pre,
        max_running=max(work.batches, default=1),
        disk_bytes=0,
    )
    with Engine(config) as engine, contextlib.ExitStack() as stack:
        load_s = time.perf_counter() - start
        if answer_check:
            _check_answer(engine)
        engine._cache.clear()
        engine._model.batch.allow()  # whatever became of the question
        ours = Ours(engine)
        contestants: list[Contestant] = [ours]
        n_threads = engine._model.team.n_threads
        if work.llama_cpp is not None:
            peer = stack.enter_context(
                LlamaCpp(work.llama_cpp, model_path, n_threads, config.n_ctx)
            )
            contestants.append(peer)
        speeds = [_speeds(times, work) for times in _in_turn(contestants, work, 0, work.n_prompt)]
        ceiling = _Ceiling(engine)
        record: Record = {
            "engine": "rushlight",
            "model": str(model_path),
            "threads": n_threads,
            "profile": PROFILE.name,
            "prompt": work.n_prompt,
            "decode": work.n_decode,
            **speeds[0],
            "load_s": round(load_s, 2),
            "compiled": n_compiled(),
            **_resident_mib(),
            **ceiling.beside(speeds[0]["decode_tok_per_s"], work.n_prompt + work.n_decode // 2),
        }
        if work.llama_cpp is not None:
            record |= _beside(peer, *speeds)
        if work.depths:
            record["depths"] = _depths(contestants, work, ceiling)
        if work.batches:
            record["batches"] = _batches(ours, work, ceiling)
        return record


def _beside(peer: LlamaCpp, ours: Record, theirs: Record) -> Record:
    """What llama.cpp did, and our speeds as multiples of its."""
    return {
        "llama_cpp": {**peer.facts, **theirs, **peer.resident_mib()},
        "prefill_ratio": round(ours["prefill_tok_per_s"] / theirs["prefill_tok_per_s"], 2),
        "decode_ratio": round(ours["decode_tok_per_s"] / theirs["decode_tok_per_s"], 2),
    }


class _Ceiling:
    """What memory allows: decoding reads every matrix once, and each chat's keys and values."""

    def __init__(self, engine: Engine) -> None:
        weights, config = engine._model.weights, engine._model.config
        matrices = [weights.output, *(m for w in weights.blk for m in w.matrices())]
        self._weights_bytes = sum(m.n_bytes for m in matrices)
        self._token_bytes = sum(engine._model.page_bytes) // PAGE  # of all layers
        self._config = config
        self.gb_per_s = max(_read_gb_per_s(engine) for _ in range(3))

    def step_bytes(self, n_past: int, n_chats: int = 1) -> int:
        """That one step of n_chats reads, each with n_past tokens in the cache."""
        c = self._config
        seen = sum(
            min(n_past, c.window) if c.has_window(i) else n_past for i in range(c.n_layer)
        )  # tokens that each layer looks back on, summed
        return self._weights_bytes + n_chats * seen * self._token_bytes // c.n_layer

    def step_ms(self, n_past: int, n_chats: int = 1) -> float:
        """The least that it can take."""
        return round(self.step_bytes(n_past, n_chats) / self.gb_per_s / 1e6, 3)

    def beside(self, tok_per_s: float, n_past: int) -> Record:
        """A speed of one chat as a share of this."""
        decode = tok_per_s * self.step_bytes(n_past) / 1e9
        return {
            "bandwidth_gb_per_s": round(self.gb_per_s, 2),
            "decode_gb_per_s": round(decode, 2),
            "of_ceiling": round(decode / self.gb_per_s, 3),
        }


def _in_turn(
    contestants: Sequence[Contestant], work: Work, depth: int, n_prompt: int
) -> list[list[Times]]:
    """Times of each contestant: one after the other, pair by pair, as the machine's speed drifts.
    The first pair warms up.
    """
    pairs = [
        [one.measure(depth, n_prompt, work.n_decode) for one in contestants]
        for _ in range(work.reps + 1)
    ]
    return [list(times) for times in zip(*pairs[1:], strict=True)]


def _speeds(times: Sequence[Times], work: Work) -> Record:
    prefill_s = statistics.median(t.prefill_s for t in times)
    decode_s = statistics.median(t.decode_s for t in times)
    return {
        "prefill_tok_per_s": round(work.n_prompt / prefill_s, 2),
        "decode_tok_per_s": round(work.n_decode / decode_s, 2),
    }


def _depths(contestants: Sequence[Contestant], work: Work, ceiling: _Ceiling) -> list[Record]:
    """Decoding with more and more tokens in the cache; each context is the last one, gone on."""
    records: list[Record] = []
    first_ms: list[float] = []
    for depth in sorted(work.depths):
        times = _in_turn(contestants, work, depth, 0)
        ms = [1e3 * statistics.median(t.decode_s for t in one) / work.n_decode for one in times]
        first_ms = first_ms or ms
        record = {
            "depth": depth,
            "decode_tok_per_s": round(1e3 / ms[0], 2),
            "token_ms": round(ms[0], 3),
            "ceiling_ms": ceiling.step_ms(depth + work.n_decode // 2),
            "speed_of_first": round(first_ms[0] / ms[0], 3),
        }
        if len(ms) > 1:
            record["llama_cpp_token_ms"] = round(ms[1], 3)
            record["llama_cpp_speed_of_first"] = round(first_ms[1] / ms[1], 3)
        records.append(record)
    return records


def _batches(ours: Ours, work: Work, ceiling: _Ceiling) -> list[Record]:
    """Decoding of several chats in one step, beside one."""
    batches = sorted({1, *work.batches})
    seconds: dict[int, list[float]] = {n: [] for n in batches}
    for rep in range(work.reps + 1):
        for n in batches:
            took = ours.decode_together(n, work.n_decode)
            if rep:
                seconds[n].append(took)
    ms = {n: 1e3 * statistics.median(took) / work.n_decode for n, took in seconds.items()}
    return [
        {
            "batch": n,
            "tok_per_s": round(n * 1e3 / ms[n], 2),
            "tok_per_s_of_each": round(1e3 / ms[n], 2),
            "step_ms": round(ms[n], 3),
            "ceiling_ms": ceiling.step_ms(work.n_decode // 2, n),
            "cost_of_one": round(ms[n] / ms[1], 3),
        }
        for n in batches
    ]


def _check_answer(engine: Engine) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": _QUESTION}])
    params = SamplingParams(temperature=0, max_tokens=64)
    reply = "".join(event.text for event in engine.generate(prompt, params))
    if _ANSWER not in reply:
        raise WrongAnswer(f"{_QUESTION} The model should say {_ANSWER}; it said: {reply!r}")


def _read_gb_per_s(engine: Engine) -> float:
    """Speed of reading memory with the engine's threads.

    The mapped weights themselves, or where they are so few that a cache holds them, other memory.
    """
    data = max((part.data_bytes for part in engine._file.gguf.parts), key=len)
    address, n_bytes = int(data.ctypes.data), len(data)
    if n_bytes < _LEAST_READ:
        stand_in = np.ones(_LEAST_READ, np.uint8)
        address, n_bytes = int(stand_in.ctypes.data), _LEAST_READ
    model = engine._model
    return PlainRead(model.team, model.batch, address, min(n_bytes, _MOST_READ)).gb_per_s()


def _resident_mib() -> Record:
    used = resident()
    return {"RssAnon": used.anonymous >> 20, "RssFile": used.file >> 20}
