"""Measures what chats cost when they go on: the time to a reply's first token beside the one of a
prompt that nobody has read before. And replies written together beside one alone.

    python -m engine.bench.chats MODEL [--n-prompt 1500] [--n-threads 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.requests.generation import Event, Failed, Token
from engine.sampling.sampling_params import SamplingParams

_N_REPLY = 24  # tokens of a chat's replies
_N_LONG_REPLY = 64  # of those that are written together
_N_TITLE = 120  # tokens of a title request
_TOGETHER = 4


class _Clock:
    """Hears a request: which tokens came, and when."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.ids: list[int] = []
        self.ended = threading.Event()
        self._error: EngineError | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Token):
            self.times_s.append(time.perf_counter())
            self.ids.append(event.token_id)
        else:
            self._error = event.error if isinstance(event, Failed) else None
            self.ended.set()

    def wait(self) -> None:
        """Until its end. Raises what it failed with."""
        self.ended.wait()
        if self._error:
            raise self._error


class _Bench:
    """One chat of n_prompt tokens, which goes on after this and that."""

    def __init__(self, engine: Engine, n_prompt: int) -> None:
        self.engine = engine
        self.prompt = self._text(n_prompt, 1)
        self.first_s = 0.0

    def first_turn(self) -> float:
        """Seconds to the first token of a prompt that is not in the cache."""
        self.first_s, reply = self._ask(self.prompt)
        self.prompt = [*self.prompt, *reply]
        return self.first_s

    def next_turn(self) -> float:
        """The same for the chat's next turn, as a share of the first one's."""
        self.prompt += self._text(20, len(self.prompt))
        seconds, reply = self._ask(self.prompt)
        self.prompt += reply
        return round(seconds / self.first_s, 4)

    def others(self, n: int, n_tokens: int) -> None:
        """Requests of other chats."""
        for i in range(n):
            self._ask(self._text(n_tokens, 1000 + i))

    def retry_after_cancel(self, n_prompt: int) -> tuple[float, float]:
        """(how much of a prompt was read when it was cancelled, what the retry took as a share of
        reading all of it)
        """
        prompt = self._text(n_prompt, 77)
        clock = _Clock()
        generation = self.engine.submit(prompt, _params(1), clock)
        while (n := generation.progress().n_prefilled) < 0.6 * n_prompt:
            if clock.ended.wait(0.001):
                break
        generation.cancel()
        clock.wait()
        return round(n / n_prompt, 3), round(self._ask(prompt)[0] / self.first_s, 3)

    def together(self, seeds: Sequence[int]) -> tuple[float, list[list[int]]]:
        """Tokens per second of replies that are written together, and the replies."""
        clocks = [_Clock() for _ in seeds]
        for seed, clock in zip(seeds, clocks, strict=True):
            self.engine.submit(self._text(40, seed), _params(_N_LONG_REPLY), clock)
        for clock in clocks:
            clock.wait()
        start = max(clock.times_s[0] for clock in clocks)
        end = min(clock.times_s[-1] for clock in clocks)
        n = sum(start < moment <= end for clock in clocks for moment in clock.times_s)
        return n / (end - start), [clock.ids for clock in clocks]

    def _ask(self, prompt: Sequence[int]) -> tuple[float, list[int]]:
        clock = _Clock()
        start = time.perf_counter()
        self.engine.submit(prompt, _params(_N_REPLY), clock)
        clock.wait()
        return clock.times_s[0] - start, clock.ids

    def _text(self, n: int, seed: int) -> list[int]:
        """Tokens that no other text here begins with."""
        return [(i * 7919 + seed * 104729 + 13) % self.engine.model.n_vocab for i in range(n)]


def run(model_path: str | Path, n_prompt: int, n_threads: int) -> dict[str, object]:
    """Returns one flat record. *_of_first: time to the first token, as a share of the first turn's.
    Raises what Engine raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(
            model_path, n_ctx=2 * n_prompt + 512, n_threads=n_threads, disk_folder=folder
        )
        with Engine(config) as engine:
            bench = _Bench(engine, n_prompt)
            bench.others(1, 64)  # warms up
            record: dict[str, object] = {
                "model": str(model_path),
                "n_prompt": n_prompt,
                "first_turn_s": round(bench.first_turn(), 3),
                "second_turn_of_first": bench.next_turn(),
            }
            bench.others(1, _N_TITLE)
            record["after_title_of_first"] = bench.next_turn()
            bench.others(4, n_prompt // 2)
            record["after_4_chats_of_first"] = bench.next_turn()
        with Engine(config) as engine:
            bench.engine = engine
            bench.others(1, 64)
            record["after_restart_of_first"] = bench.next_turn()
            done, retry = bench.retry_after_cancel(n_prompt)
            record |= {"cancelled_at": done, "retry_of_first": retry}
    return record | _together(dataclasses.replace(config, disk_bytes=0, n_ctx=512))


def _together(config: EngineConfig) -> dict[str, object]:
    """Replies written one after the other, and the same ones together."""
    seeds = range(500, 500 + _TOGETHER)
    with Engine(config) as engine:
        bench = _Bench(engine, 1)
        alone = [bench.together([seed]) for seed in (*seeds, seeds[0])][1:]  # the first warms up
    with Engine(dataclasses.replace(config, max_running=_TOGETHER)) as engine:
        speed, replies = _Bench(engine, 1).together([*seeds[1:], seeds[0]])
    alone_speed = statistics.median(one for one, _ in alone)
    equal = sum(own == [reply] for (_, own), reply in zip(alone, replies, strict=True))
    return {
        "alone_tok_per_s": round(alone_speed, 2),
        f"{_TOGETHER}_together_tok_per_s": round(speed, 2),
        "together_of_alone": round(speed / alone_speed, 2),
        "equal_replies": equal,
    }


def _params(n_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="engine.bench.chats",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--n-prompt", type=int, default=1500)
    parser.add_argument("--n-threads", type=int, default=0)
    args = parser.parse_args()
    print(json.dumps(run(args.model, args.n_prompt, args.n_threads), indent=1))


if __name__ == "__main__":
    main()
