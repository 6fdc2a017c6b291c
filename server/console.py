"""What the process prints: to standard output what it does, to standard error why it failed.

Logging goes to standard output too, so that standard error holds that one line and no other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, TextIO

from engine import EngineError, LoadProgress

if TYPE_CHECKING:
    from engine import Engine

log = logging.getLogger("rushlight.server")


def set_up_logging(level: str) -> None:
    """level: as in [log]. The libraries' own lines show only from warnings on, or with debug."""
    logging.basicConfig(
        handlers=[LogHandler(sys.stdout)],
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    if level != "debug":
        for library in ("uvicorn", "asyncio"):
            logging.getLogger(library).setLevel(logging.WARNING)


class LogHandler(logging.StreamHandler[TextIO]):
    """Lines that nobody can read any more are dropped: each would put a traceback on stderr."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called while the error of writing `record` is handled."""
        if not (isinstance(sys.exception(), BrokenPipeError) or self.stream.closed):
            super().handleError(record)


def say(text: str) -> None:
    """One line about what goes on."""
    with contextlib.suppress(BrokenPipeError):
        print(f"rushlight: {text}", flush=True)


def say_ready(engine: Engine, url: str) -> None:
    """The model is there; a command to try it, which works as pasted."""
    question = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }
    say(f"{engine.model.name} is ready, {engine.model.n_ctx} tokens of context. Try:")
    with contextlib.suppress(BrokenPipeError):
        print(
            f"curl '{url}/v1/chat/completions' -H 'Content-Type: application/json' "
            f"-d '{json.dumps(question)}'",
            flush=True,
        )


def fail(reason: str) -> int:
    """Why the process cannot go on, as one line; returns its exit status."""
    print(f"rushlight: error: {reason}", file=sys.stderr, flush=True)
    return 1


def load_failure(error: Exception) -> str:
    """One line. An error that the engine does not raise on purpose shows its type as well."""
    log.debug("loading failed", exc_info=error)
    text = " ".join(str(error).split())
    return text if isinstance(error, EngineError | OSError) else f"{type(error).__name__}: {text}"


class LoadingLines:
    """Shows loading: a line that redraws itself on a terminal, one line per stage elsewhere."""

    WIDTH = 30

    def __init__(self) -> None:
        self._stage = ""
        self._is_terminal = sys.stdout.isatty()

    def show(self, progress: LoadProgress) -> None:
        """Called from the loading thread."""
        if self._is_terminal:
            self._redraw(progress)
        elif progress.stage != self._stage:
            say(f"{progress.stage} ...")
        self._stage = progress.stage

    def end(self) -> None:
        """Leave the line that was redrawn."""
        if self._is_terminal and self._stage:
            print(flush=True)

    def _redraw(self, progress: LoadProgress) -> None:
        if progress.stage != self._stage:
            self.end()
        bar = ""
        if progress.total > 1:
            filled = self.WIDTH * progress.done // progress.total
            bar = f" [{'#' * filled:<{self.WIDTH}}] {progress.done}/{progress.total}"
        print(f"\r\x1b[Krushlight: {progress.stage}{bar}", end="", flush=True)
