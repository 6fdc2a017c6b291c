"""Measures what a reply waits for its next token while a big chat leaves memory for the disk, and
while it comes back.

    python -m engine.bench.storing MODEL [--chat-mib 300] [--n-threads 2]

The big chats are made up: what lies in their pages does not change how long they take.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.config import EngineConfig
from engine.engine import Engine
from engine.kernels.kv_page import PAGE
from engine.requests.generation import Event, Finished, Token
from engine.sampling.sampling_params import SamplingParams

_N_ALONE = 20  # tokens of the reply before anything else happens
_SPARE = 64  # pages of the pool beside one big chat


class _Reply:
    """Hears a request: when its tokens came."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.n_cached = 0
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Token):
            self.times_s.append(time.perf_counter())
        else:
            self.n_cached = event.n_cached if isinstance(event, Finished) else 0
            self.ended.set()

    def wait_for(self, n: int) -> None:
        """Until so many tokens have come."""
        while len(self.times_s) < n:
            if self.ended.wait(0.01):
                raise RuntimeError(f"the reply ended after {len(self.times_s)} of {n} tokens")

    def gaps_s(self, start_s: float, end_s: float) -> list[float]:
        """Between tokens of which one came in that time."""
        times = [t for t in self.times_s if start_s <= t]
        n = sum(t <= end_s for t in times)
        return [b - a for a, b in itertools.pairwise(times[: n + 1])]


def run(model_path: str | Path, chat_bytes: int, n_threads: int) -> dict[str, object]:
    """Returns one flat record; gaps are between tokens of a reply. Raises what Engine raises."""
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(model_path, n_ctx=256, n_threads=n_threads, disk_bytes=0)
        with Engine(config) as engine:
            page_bytes = sum(engine._pool.page_bytes)
        n_pages = chat_bytes // page_bytes
        n_tokens = n_pages * PAGE
        config = EngineConfig(
            model_path,
            n_ctx=n_tokens + 2 * PAGE,
            n_threads=n_threads,
            max_running=2,
            cache_bytes=(n_pages + _SPARE) * page_bytes,
            disk_folder=folder,
        )
        with Engine(config) as engine:
            return {
                "model": str(model_path),
                "chat_mib": n_pages * page_bytes >> 20,
                **_measure(engine, n_tokens),
            }


def _measure(engine: Engine, n_tokens: int) -> dict[str, object]:
    big = _text(engine, n_tokens, 1)
    _make_up(engine, big)
    reply = _Reply()
    running = engine.submit(_text(engine, 40, 2), _params(1 << 20), reply)
    reply.wait_for(_N_ALONE + 1)
    median_s = statistics.median(reply.gaps_s(reply.times_s[0], time.perf_counter()))

    def store() -> None:
        """Another chat takes all pages there are."""
        n_slots = len(engine._pool.page_bytes)
        n_others = engine._pool.free_bytes // sum(engine._pool.page_bytes) + 1
        held = [True] * n_others * n_slots
        pages = engine._worker.call_with_room(lambda: engine._cache.take(n_others * PAGE, held))
        engine._worker.call(lambda: engine._cache.give_back(pages))

    again = _Reply()

    def restore() -> None:
        engine.submit([*big, 1, 2], _params(1), again)
        again.ended.wait()

    stored_s, stored = _beside(reply, store)
    restored_s, restored = _beside(reply, restore)
    running.cancel()
    reply.ended.wait()
    assert again.n_cached == n_tokens, f"{again.n_cached} of {n_tokens} tokens came back"
    return {
        "median_gap_ms": round(1000 * median_s, 1),
        "stored_in_ms": round(1000 * stored_s),
        "longest_gap_while_stored_ms": round(1000 * max(stored), 1),
        "restored_in_ms": round(1000 * restored_s),
        "longest_gap_while_restored_ms": round(1000 * max(restored), 1),
    }


def _beside(reply: _Reply, act: Callable[[], None]) -> tuple[float, list[float]]:
    """(seconds that it takes, gaps of the reply meanwhile)"""
    start_s = time.perf_counter()
    act()
    end_s = time.perf_counter()
    reply.wait_for(len(reply.times_s) + 2)  # the gap that the end is in, at least
    return end_s - start_s, reply.gaps_s(start_s, end_s) or reply.gaps_s(0, end_s)[-1:]


def _make_up(engine: Engine, ids: list[int]) -> None:
    """A chat in memory that nobody has read."""
    held = [True] * (len(ids) // PAGE * len(engine._pool.page_bytes))
    pages = engine._worker.call_with_room(lambda: engine._cache.take(len(ids), held))
    for view in filter(None, engine._cache.views(pages)):
        view[:] = b"\x2c" * len(view)  # 0.065 in f16: a number, which noise is not always
    engine._worker.call(lambda: engine._cache.add(ids, pages)).result()


def _text(engine: Engine, n: int, seed: int) -> list[int]:
    """Tokens that no other text here begins with."""
    return [(i * 7919 + seed * 104729 + 13) % engine.model.n_vocab for i in range(n)]


def _params(n_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="engine.bench.storing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--chat-mib", type=int, default=300)
    parser.add_argument("--n-threads", type=int, default=0)
    args = parser.parse_args()
    print(json.dumps(run(args.model, args.chat_mib << 20, args.n_threads), indent=1))


if __name__ == "__main__":
    main()
