"""llama.cpp as a contestant: a child process in a Python that has llama-cpp-python, told what to
measure in lines of JSON (llama_cpp_child.py). It waits while we measure, and we while it does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from engine.bench.contestant import Times
from engine.errors import EngineError

_CHILD = Path(__file__).with_name("llama_cpp_child.py")
_SETTLE_S = 0.05  # after which the other side's threads have stopped spinning


class PeerFailed(EngineError):
    """llama.cpp is not there, or does not run this model."""


class LlamaCpp:
    """llama.cpp with a model loaded; a context manager that ends it.

    python: the interpreter that can import llama_cpp; "" = this one. facts: what it told when it
    was ready: its version and how long it took to load. Raises PeerFailed.
    """

    def __init__(self, python: str, model_path: str | Path, n_threads: int, n_ctx: int) -> None:
        arguments = [str(model_path), str(n_threads), str(n_ctx)]
        try:
            self._child = subprocess.Popen(
                [python or sys.executable, str(_CHILD), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise PeerFailed(f"llama.cpp: {python}: {error.strerror}") from None
        try:
            self.facts = self._hear()
        except BaseException:
            self.close()
            raise

    def measure(self, depth: int, n_prompt: int, n_decode: int) -> Times:
        """Contestant.measure. Raises PeerFailed."""
        time.sleep(_SETTLE_S)
        told = self._ask({"depth": depth, "n_prompt": n_prompt, "n_decode": n_decode})
        time.sleep(_SETTLE_S)
        return Times(told["prefill_s"], told["decode_s"])

    def resident_mib(self) -> dict[str, int]:
        """Its RssAnon and RssFile now."""
        return self._ask({"memory": True})

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin
        try:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and what it said last tells why
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout
        assert self._child.stderr
        line = self._child.stdout.readline()
        if not line:
            said = self._child.stderr.read().strip().splitlines()
            last = said[-1] if said else "it ended without a word"
            if "No module named 'llama_cpp'" in last:
                last = "this needs a Python that has llama-cpp-python: --llama-cpp-python PYTHON"
            raise PeerFailed(f"llama.cpp: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer
