"""Measures what a grammar costs at each token, on a vocabulary alone: no model is needed.

Replies are made up: tokens are drawn by their rank, as those of low numbers were merged first and
are the frequent ones. Times are of the thread's CPU, so that other programs do not count.

    python -m engine.bench.grammars vocabulary.gguf schemas.json        a list of JSON schemas
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.files.gguf_file import GGUFFile
from engine.grammar.grammar import Grammar
from engine.kernels.sampling import apply_bitmask
from engine.text.tokenizer import Tokenizer

_SEED = 20
_REPLIES, _LONGEST = 2, 150  # of each schema; tokens
_LIMIT_MS = 0.3

Record = dict[str, Any]


def run(tokenizer: Tokenizer, schemas: Sequence[Any]) -> Record:
    """Returns milliseconds per token, the first of a reply left out: to find the tokens without a
    choice, to compute the mask, to lay it over the logits, to take the token, and all of that; how
    many tokens had no choice; and the milliseconds that the first schema took, and the others.
    """
    rng = np.random.default_rng(_SEED)
    likely = -1.2 * np.log(np.arange(tokenizer.n_vocab, dtype=np.float32) + 20)
    compile_ms: list[float] = []
    times: list[tuple[float, ...]] = []
    n_forced = 0
    for schema in schemas:
        start = time.thread_time()
        grammar = Grammar.compile("json_schema", schema, tokenizer)
        compile_ms.append(1e3 * (time.thread_time() - start))
        for _ in range(_REPLIES):
            found, n = _reply(grammar, likely, tokenizer, rng)
            times += found[1:]
            n_forced += n
    steps = 1e3 * np.array(times)
    names = ("forced", "mask", "apply", "accept")
    return {
        "n_vocab": tokenizer.n_vocab,
        "n_tokens": len(steps),
        "n_forced": n_forced,
        "first_schema_ms": round(compile_ms[0], 1),
        "next_schema_ms": round(float(np.mean(compile_ms[1:])), 1),
        **{name: _summary(steps[:, i]) for i, name in enumerate(names)},
        "all": _summary(steps.sum(1)),
        "above_limit": round(float(np.mean(steps.sum(1) > _LIMIT_MS)), 4),
    }


def _reply(
    grammar: Grammar, likely: Any, tokenizer: Tokenizer, rng: np.random.Generator
) -> tuple[list[tuple[float, ...]], int]:
    """Seconds of each token that was chosen; how many others there were."""
    times: list[tuple[float, ...]] = []
    state, n_forced = grammar.start(), 0
    while len(times) < _LONGEST and not state.is_over:
        begin = time.thread_time()
        forced = state.forced()
        for token_id in forced:
            state.accept(token_id)
        n_forced += len(forced)
        if state.is_over:
            break
        after_forced = time.thread_time()
        allowed = state.allowed()
        after_mask = time.thread_time()
        logits = likely + rng.gumbel(size=len(likely)).astype(np.float32)
        before_apply = time.thread_time()
        apply_bitmask(logits, allowed)
        after_apply = time.thread_time()
        token_id = int(logits.argmax())
        if token_id in tokenizer.eog_ids:
            break
        before_accept = time.thread_time()
        state.accept(token_id)
        _ = state.is_over
        times.append((
            after_forced - begin,
            after_mask - after_forced,
            after_apply - before_apply,
            time.thread_time() - before_accept,
        ))  # fmt: skip
    return times, n_forced


def _summary(ms: Any) -> dict[str, float]:
    found = {"mean": ms.mean(), "p50": np.median(ms), "p99": np.quantile(ms, 0.99), "max": ms.max()}
    return {name: round(float(value), 3) for name, value in found.items()}


if __name__ == "__main__":
    vocabulary, schemas = Path(sys.argv[1]), Path(sys.argv[2])
    with GGUFFile(vocabulary) as gguf:
        record = run(Tokenizer.from_gguf(gguf), json.loads(schemas.read_text()))
    for name, value in record.items():
        print(f"{name:16}", value)
