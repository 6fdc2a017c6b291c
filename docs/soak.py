"""Keeps a server busy for minutes as several people would, and then checks what it said.

    python docs/soak.py MODEL [--minutes 5] [--clients 4] [--max-memory 1200MB] [--disk 300MiB]

Clients have chats that grow, edit and regenerate turns, ask for titles between them, and leave in
the middle of replies. The cache is too small for all of them, so that chats go to the disk and come
back. Afterwards some replies are asked for again, each alone of a new server without a cache: it
must be the same, but for words that the model found equally likely to within its noise. Counts as
failed, too: a server that ends, an error, more memory than max_memory. Prints one JSON record;
status 1 when anything failed. What limits a process's memory, such as `systemd-run --scope -p
MemoryMax=1G`, may be put before the command.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from processes import served

_TOP = 5  # logprobs asked for
_NOISE = 0.1  # in logprobs, between a prompt read at once and one that was read in parts
_MIB = 1 << 20
_WORDS = ("the", "old", "mill", "by", "a", "river", "kept", "turning", "while", "seven", "birds")

Record = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """tops: of each token, the most likely ones and their logprobs."""

    tokens: list[str]
    tops: list[dict[str, float]]
    n_cached: int

    @classmethod
    def of(cls, body: Any) -> Reply:
        logprobs = body["choices"][0]["logprobs"]
        details = body["usage"].get("prompt_tokens_details") or {}
        return cls(logprobs["tokens"], logprobs["top_logprobs"], details.get("cached_tokens", 0))


@dataclass
class Said:
    """What all clients heard."""

    replies: list[tuple[str, Reply]] = field(default_factory=list)  # with their prompts
    n_titles: int = 0
    n_cancelled: int = 0
    n_refused: int = 0  # by a 503: too little memory, which is allowed
    n_prompt: int = 0
    n_cached: int = 0
    errors: list[str] = field(default_factory=list)


class Person:
    """One client: a chat that grows to about n_most words, and what else people do."""

    def __init__(self, url: str, said: Said, seed: int, n_most: int, n_reply: int) -> None:
        self._http = httpx.Client(base_url=url, timeout=300)
        self._said, self._random = said, random.Random(seed)
        self._n_most, self._n_reply = n_most, n_reply
        self._turns: list[str] = []

    def live(self, end_s: float) -> None:
        """Until a moment of the clock."""
        with self._http:
            while time.monotonic() < end_s:
                try:
                    self._act()
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self._said.errors.append(f"{type(error).__name__}: {error}")
                    time.sleep(1)

    def _act(self) -> None:
        chance = self._random.random()
        if sum(map(len, self._turns)) // 5 > self._n_most:
            self._turns = self._turns[:1] if chance < 0.5 else []
        if chance < 0.1 and self._turns:  # edits a turn
            del self._turns[self._random.randrange(len(self._turns)) :]
        if chance > 0.9:
            self._ask("Title: " + self._words(40), n=8)
            self._said.n_titles += 1
            return
        first = not self._turns
        self._turns.append(self._words(self._n_most // 4 if first else self._n_most // 12))
        if chance > 0.78:
            self._leave("".join(self._turns), self._random.uniform(0.1, 4))
            return
        reply = self._ask("".join(self._turns), self._n_reply)
        if reply:
            self._turns.append("".join(reply.tokens))

    def _ask(self, prompt: str, n: int) -> Reply | None:
        response = self._http.post("/v1/completions", json=_body(prompt, n))
        if response.status_code == 503:
            self._said.n_refused += 1
            time.sleep(1)
            return None
        response.raise_for_status()
        body = response.json()
        reply = Reply.of(body)
        self._said.replies.append((prompt, reply))
        self._said.n_prompt += body["usage"]["prompt_tokens"]
        self._said.n_cached += reply.n_cached
        return reply

    def _leave(self, prompt: str, after_s: float) -> None:
        """Ask, and be gone before the end."""
        self._said.n_cancelled += 1
        with contextlib.suppress(httpx.TimeoutException):
            self._http.post("/v1/completions", json=_body(prompt, 200), timeout=after_s)

    def _words(self, n: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=n)) + ". "


@dataclass
class Memory:
    """The most that a process had, in MiB, and how far its own account was off, seen from outside.

    worst_account: the largest difference between /v1/memory and the system's word, as a share.
    """

    pid: int
    url: str
    most_anonymous: int = 0
    most_resident: int = 0
    worst_account: float = 0.0

    def watch(self, ended: threading.Event) -> None:
        n = 0
        while not ended.wait(0.05):
            with contextlib.suppress(OSError):
                self._look()
                n += 1
                if n % 40 == 0:
                    self._compare()

    def _look(self) -> tuple[int, int]:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = dict(re.findall(r"^(RssAnon|VmRSS):\s+(\d+) kB$", status, re.MULTILINE))
        anonymous, resident = (int(found.get(k, 0)) << 10 for k in ("RssAnon", "VmRSS"))
        self.most_anonymous = max(self.most_anonymous, anonymous // _MIB)
        self.most_resident = max(self.most_resident, resident // _MIB)
        return anonymous, resident

    def _compare(self) -> None:
        """It moves while it is looked at: it may be off only from what it was before and after."""
        with contextlib.suppress(httpx.HTTPError):
            before = self._look()[1]
            told = httpx.get(f"{self.url}/v1/memory", timeout=30).json()["rss"]
            after = self._look()[1]
            off = min(abs(told - before), abs(told - after)) / after
            self.worst_account = max(self.worst_account, round(off, 4))


def run(model: Path, args: argparse.Namespace) -> Record:
    """One flat record."""
    said = Said()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, object] = {
            "engine__n_ctx": args.n_ctx,
            "engine__n_threads": args.n_threads,
            "scheduler__max_running": args.max_running,
            "memory__max_memory": args.max_memory,
            "cache__disk": args.disk,
            "cache__folder": folder,
            "cache__memory": args.cache,
        }
        with _serving(model, settings) as (server, url, told):
            memory = Memory(server.pid, url)
            _busy(url, said, memory, args)
            report = httpx.get(f"{url}/v1/memory", timeout=30).json()
            status = server.poll()
    checked = _check(model, said, args) if args.check else {}
    budget = _bytes(args.max_memory) // _MIB
    failures = [
        *said.errors[:5],
        *([f"the server ended with status {status}"] if status is not None else []),
        *([f"{checked['wrong']} replies are wrong"] if checked.get("wrong") else []),
        *(["more memory than max_memory"] if memory.most_anonymous > budget else []),
        *(["/v1/memory is off by more than 5 %"] if memory.worst_account > 0.05 else []),
    ]
    return {
        "model": model.name,
        "minutes": args.minutes,
        "replies": len(said.replies),
        "titles": said.n_titles,
        "cancelled": said.n_cancelled,
        "refused": said.n_refused,
        "errors": len(said.errors),
        "cached_share": round(said.n_cached / max(said.n_prompt, 1), 3),
        "longest_prompt": max((len(p.split()) for p, _ in said.replies), default=0),
        "disk_mib": report["disk_cache"] // _MIB,
        **{k: v for k, v in dataclasses.asdict(memory).items() if k not in ("pid", "url")},
        "budget_anonymous": budget,
        **checked,
        "warnings": told[-5:],
        "failures": failures,
    }


def _busy(url: str, said: Said, memory: Memory, args: argparse.Namespace) -> None:
    """All that people do."""
    ended = threading.Event()
    end_s = time.monotonic() + 60 * args.minutes
    people = [Person(url, said, seed, args.words, args.n_reply) for seed in range(args.clients)]
    watcher = threading.Thread(target=memory.watch, args=(ended,))
    threads = [threading.Thread(target=person.live, args=(end_s,)) for person in people]
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    watcher.join()


def _check(model: Path, said: Said, args: argparse.Namespace) -> Record:
    """Ask for some replies again, alone: the longest prompts, and others as they come."""
    by_length = sorted(said.replies, key=lambda r: -len(r[0]))
    others = random.Random(1).sample(said.replies, len(said.replies))
    chosen = dict([*by_length[:2], *others][: args.check])
    counts = {"checked": 0, "same": 0, "tied": 0, "wrong": 0}
    settings: dict[str, object] = {
        "engine__n_ctx": args.n_ctx,
        "engine__n_threads": args.n_threads,
        "cache__disk": 0,
    }
    with _serving(model, settings) as (_, url, _):
        for prompt, reply in chosen.items():
            body = _body(prompt, len(reply.tokens))
            alone = Reply.of(httpx.post(f"{url}/v1/completions", json=body, timeout=600).json())
            while httpx.post(f"{url}/slots/0?action=erase", timeout=30).status_code == 200:
                pass
            counts["checked"] += 1
            counts[compare(reply, alone)] += 1
    return counts


def compare(reply: Reply, alone: Reply) -> str:
    """same, tied (up to a place where both continuations were about equally likely) or wrong."""
    pairs = list(zip(reply.tokens, alone.tokens, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return "same" if len(reply.tokens) == len(alone.tokens) else "wrong"
    token, top = reply.tokens[at], alone.tops[at]
    best = max(top.values())
    return "tied" if best - top.get(token, float("-inf")) < _NOISE else "wrong"


def _body(prompt: str, n: int) -> Record:
    return {
        "prompt": prompt,
        "max_tokens": n,
        "temperature": 0,
        "logprobs": _TOP,
        "ignore_eos": True,
    }


@contextlib.contextmanager
def _serving(
    model: Path, settings: dict[str, object]
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """(a server, its address, the lines that it goes on to print)"""
    with served(model, settings={**settings, "log__level": "warning"}) as (server, _):
        lines = server.stdout
        assert lines
        found = re.search(r"http://[^/']+", next(lines))  # in the command behind its being ready
        assert found, "the server prints its address"
        told: list[str] = []  # read at once, so that the pipe is never full
        threading.Thread(target=lambda: told.extend(map(str.strip, lines)), daemon=True).start()
        yield server, found[0], told


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([MG]i?)B", text).groups()  # type: ignore[union-attr]
    step = 1024 if unit.endswith("i") else 1000
    return int(number) * step ** (2 if unit[0] == "M" else 3)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="docs/soak.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--max-running", type=int, default=3)
    parser.add_argument("--max-memory", default="1000MiB")
    parser.add_argument("--cache", default="300MiB")
    parser.add_argument("--disk", default="200MiB")
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument("--n-threads", type=int, default=0)
    parser.add_argument("--words", type=int, default=1500, help="of a chat, at most")
    parser.add_argument("--n-reply", type=int, default=16, help="tokens of a reply")
    parser.add_argument("--check", type=int, default=6, help="replies to ask for again")
    args = parser.parse_args(argv)
    record = run(args.model.resolve(), args)
    print(json.dumps(record, indent=1))
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
