"""What is printed: loading on a terminal and elsewhere, failures as one line."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import pytest

from engine import EngineError, GGUFError, LoadProgress
from server.console import LoadingLines, LogHandler, fail, load_failure

STEPS = [
    LoadProgress("opening model", 0, 1),
    LoadProgress("compiling kernels", 0, 4),
    LoadProgress("compiling kernels", 2, 4),
    LoadProgress("compiling kernels", 4, 4),
]


def show_all() -> None:
    lines = LoadingLines()
    for step in STEPS:
        lines.show(step)
    lines.end()


def test_loading_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    show_all()
    assert capsys.readouterr().out == (
        "rushlight: opening model ...\nrushlight: compiling kernels ...\n"
    )


def test_loading_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_all()
    redrawn = capsys.readouterr().out.split("\r\x1b[K")
    assert redrawn == [
        "",
        "rushlight: opening model\n",
        f"rushlight: compiling kernels [{' ' * 30}] 0/4",
        f"rushlight: compiling kernels [{'#' * 15}{' ' * 15}] 2/4",
        f"rushlight: compiling kernels [{'#' * 30}] 4/4\n",
    ]


def test_failures(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert load_failure(GGUFError(Path("m.gguf"), "it is cut off")) == "m.gguf: it is cut off"
    assert load_failure(EngineError("two\nlines")) == "two lines"
    assert load_failure(FileNotFoundError(2, "No such file", "m.gguf")) == (
        "[Errno 2] No such file: 'm.gguf'"
    )
    assert load_failure(ZeroDivisionError("by zero")) == "ZeroDivisionError: by zero"
    assert not caplog.records  # a traceback shows with log.level = "debug" only
    assert fail("reason") == 1
    assert capsys.readouterr().err == "rushlight: error: reason\n"


RECORD = logging.LogRecord("x", logging.INFO, __file__, 1, "a request", None, None)


def test_log_lines_that_nobody_reads(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True)
    LogHandler(broken).handle(RECORD)  # BrokenPipeError inside
    broken.close()
    LogHandler(broken).handle(RECORD)  # ValueError inside
    assert capsys.readouterr().err == ""


def test_a_broken_log_call_still_shows(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = logging.LogRecord("x", logging.INFO, __file__, 1, "%d", ("no number",), None)
    LogHandler(io.StringIO()).handle(wrong)
    assert "TypeError" in capsys.readouterr().err
