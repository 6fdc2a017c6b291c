"""The command line as a user meets it: statuses, one-line errors, which flags reach what."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from clients import bench, cli
from clients.errors import UserError
from clients.fetch_model import FetchError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Commands run in this process set a handler; the tests after them get the old one back."""
    previous = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, previous)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clients", *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `rushlight ...` in this process; its exit status."""
    monkeypatch.setattr(sys, "argv", ["rushlight", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("serve", "--port", "70000"),
        ("serve", "--port", "http"),
        ("prompt",),
        ("prompt", "m.gguf", "Hi", "--temperature", "-1"),
        ("prompt", "m.gguf", "Hi", "--raw", "--system", "Be brief."),
        ("bench",),
        ("bench", "m.gguf", "--reps", "0"),
        ("chat", "--nonsense"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_and_says_why(
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Error" in shown.err


def test_help_lists_the_commands() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in ("serve", "prompt", "chat", "bench", "fetch"):
        assert re.search(rf"^\W*{command} ", shown.stdout, re.MULTILINE), command


def test_a_checkout_that_is_not_installed_has_no_version_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == "rushlight unknown\n"


def test_an_output_that_is_not_utf_8_shows_what_it_can() -> None:
    code = "import os, sys; sys.argv[1:] = ['fetch']; from clients import cli, fetch_model\n"
    code += "fetch_model.fetch_model = lambda *_: 'caf\\u00e9 \\u4e16'\ncli.main()"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=60,
    )
    assert (shown.returncode, shown.stdout) == (0, b"caf\xe9 ?\n")


def test_a_closed_standard_output_is_no_error() -> None:
    """As with `rushlight serve m.gguf >&-`: refused in one line, not by a traceback."""
    command = f"{shlex.quote(sys.executable)} -m clients serve no-such.gguf --port 0 >&-"
    shown = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert shown.returncode == 1
    assert shown.stderr.startswith("rushlight: error: no-such.gguf: ")
    assert shown.stderr.count("\n") == 1


def test_sigterm_while_serve_still_imports_is_a_clean_end() -> None:
    code = "import os, signal, sys; sys.argv[1:] = ['serve', 'm.gguf']; from clients import cli\n"
    code += "cli.app = lambda **_: os.kill(os.getpid(), signal.SIGTERM) or sys.exit(9)\ncli.main()"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


def test_chat_without_a_server_is_one_line() -> None:
    shown = run("chat", "--url", "http://127.0.0.1:9")
    assert (shown.returncode, shown.stdout.strip()) == (1, "")
    assert shown.stderr == (
        "rushlight: error: no server answers at http://127.0.0.1:9; "
        "start one with `rushlight serve MODEL`\n"
    )


def test_serve_refuses_a_bad_setting_by_name() -> None:
    shown = run("serve", "m.gguf", "--log-level", "loud")
    assert shown.returncode == 1
    assert re.fullmatch(r"rushlight: error: .*log\.level.*\n", shown.stderr)


def test_serve_refuses_a_missing_settings_file() -> None:
    shown = run("serve", "m.gguf", "--config", "no/such.toml")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert re.fullmatch(r"rushlight: error: no/such\.toml: .*\n", shown.stderr)


def test_serve_passes_on_only_the_flags_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    import server.config_sources
    import server.run

    seen: list[Any] = []
    monkeypatch.setattr(
        server.config_sources,
        "load_config",
        lambda path, flags: seen.append((path, flags)) or "settings",
    )
    monkeypatch.setattr(server.run, "serve", lambda settings: seen.append(settings) or 3)
    arguments = ["serve", "m.gguf", "--port", "0", "--ctx", "512", "--config", "my.toml"]
    assert call(monkeypatch, *arguments) == 3
    flags = {
        "engine": {"model_path": "m.gguf", "n_ctx": 512},
        "server": {"port": 0},
        "log": {},
    }
    assert seen == [(Path("my.toml"), flags), "settings"]


def test_prompt_tells_in_one_line_what_its_server_failed_on(tmp_path: Path) -> None:
    not_a_model = tmp_path / "m.gguf"
    not_a_model.write_bytes(b"nothing of the kind")
    shown = run("prompt", str(not_a_model), "Hi")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert re.fullmatch(r"rushlight: error: .*m\.gguf: .*\n", shown.stderr)


def reports_of(
    model: Path, threads: tuple[int, ...], work: dict[str, Any], answer_check: bool, *_: Any
) -> Iterator[dict[str, Any]]:
    for n in threads:
        yield {
            "model": str(model),
            "threads": n,
            "prefill_tok_per_s": float(work["n_prompt"]),
            "decode_tok_per_s": float(work["n_decode"]),
            "load_s": float(work["reps"]),
            "compiled": 0,
            "RssAnon": int(answer_check),
            "RssFile": 0,
            "bandwidth_gb_per_s": 1.0,
            "decode_gb_per_s": 1.0,
            "of_ceiling": 1.0,
        }


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=str)
def test_bench_prints_one_json_line_for_each_number_of_threads(
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bench, "bench_model", reports_of)
    arguments = ["--threads", "1,2", "--prompt", "64", "--decode", "16", "--reps", "5"]
    assert call(monkeypatch, "bench", "m.gguf", *arguments, "--no-answer-check", *flags) == 0
    shown = capsys.readouterr()
    work = {"n_prompt": 64, "n_decode": 16, "reps": 5}
    expected = list(reports_of(Path("m.gguf"), (1, 2), work, False))
    assert [json.loads(line) for line in shown.out.splitlines()] == expected
    assert ("decode reads" in shown.err) == (not flags)


@pytest.mark.parametrize(
    ("flags", "work"),
    [
        ((), {"depths": (), "batches": (), "llama_cpp": None}),
        (("--depth", "0,512", "--batch", "4"), {"depths": (0, 512), "batches": (4,)}),
        (("--vs-llama-cpp",), {"llama_cpp": ""}),
        (("--llama-cpp-python", "/other/python"), {"llama_cpp": "/other/python"}),
    ],
    ids=str,
)
def test_bench_passes_on_what_is_to_be_measured(
    flags: tuple[str, ...], work: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def measure(*arguments: Any) -> Iterator[dict[str, Any]]:
        seen.append(arguments[2])
        return reports_of(*arguments)

    monkeypatch.setattr(bench, "bench_model", measure)
    assert call(monkeypatch, "bench", "m.gguf", *flags) == 0
    assert seen[0].items() >= work.items()


def test_bench_measures_kernels_without_a_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "bench_kernels", lambda threads, reps, _: {"reps": reps})
    assert call(monkeypatch, "bench", "--kernels", "--reps", "7", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"reps": 7}


def test_bench_takes_its_settings_from_where_serve_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure(*arguments: Any) -> Iterator[dict[str, Any]]:
        seen.append((arguments[1], arguments[4]))
        return reports_of(*arguments)

    monkeypatch.setattr(bench, "bench_model", measure)
    monkeypatch.setenv("RUSHLIGHT_ENGINE__TOKENIZER_PRE", "qwen2")
    settings = tmp_path / "my.toml"
    settings.write_text("[engine]\nn_threads = 3\ntokenizer_pre = 'gpt-2'\n")
    arguments = ["bench", "m.gguf", "--config", str(settings)]
    assert call(monkeypatch, *arguments) == 0
    assert call(monkeypatch, *arguments, "--threads", "1") == 0
    assert seen == [((3,), "qwen2"), ((1,), "qwen2")]


def test_bench_stops_on_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*arguments: Any) -> Iterator[dict[str, Any]]:
        raise UserError("the model said 'Rome'")

    monkeypatch.setattr(bench, "bench_model", wrong)
    assert call(monkeypatch, "bench", "m.gguf") == 1
    assert capsys.readouterr() == ("", "rushlight: error: the model said 'Rome'\n")


def test_commands_that_need_no_engine_start_fast() -> None:
    """By CPU time, as tests share the machine; the best of three."""
    start = (
        "import sys, time; import clients.cli, clients.chat, clients.fetch_model; "
        "slow = {'numpy', 'numba', 'gguf', 'pydantic', 'fastapi', 'engine', 'server'}; "
        "print(time.process_time(), *(slow & sys.modules.keys()))"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", start], cwd=ROOT, capture_output=True, text=True, check=True
        )
        taken, *brought = done.stdout.split()
        assert brought == []
        seconds.append(float(taken))
    assert min(seconds) < 0.3


def test_fetch_prints_the_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clients.fetch_model.fetch_model", lambda folder, show: folder / "m.gguf")
    assert call(monkeypatch, "fetch", "--dir", "elsewhere") == 0
    assert capsys.readouterr().out == "elsewhere/m.gguf\n"


def test_fetch_fails_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path, show: object) -> Path:
        raise FetchError("the disk is full")

    monkeypatch.setattr("clients.fetch_model.fetch_model", fail)
    assert call(monkeypatch, "fetch") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "rushlight: error: the disk is full"
