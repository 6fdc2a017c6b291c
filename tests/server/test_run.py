"""The process: start, failure to start, and signals in every state."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.run import GIVE_UP_S, _for_good
from tests.server.test_listen import has_ipv6
from tests.server.wire import RawConnection

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
STOP_S = 2.0


class Process:
    """A server process whose output is read as it comes."""

    def __init__(self, **arguments: Any) -> None:
        server = {"port": 0, **arguments.pop("server", {})}
        self.popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.server.fake_serve",
                json.dumps({"server": server, **arguments}),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output = ""
        self.port = 0

    def read_until(self, pattern: str) -> re.Match[str]:
        """Read lines of standard output until one matches."""
        assert self.popen.stdout
        for line in self.popen.stdout:
            self.output += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no {pattern!r} in {self.output!r} {self.popen.communicate()}")

    def listening(self) -> Process:
        """Wait until it listens."""
        self.port = int(self.read_until(r"listening on http://.*:(\d+)")[1])
        return self

    def ready(self) -> Process:
        """Wait until the model is there."""
        self.listening()
        self.read_until("^curl ")
        return self

    def stop(self, *signals: signal.Signals) -> tuple[int, float, str]:
        """Send signals; returns exit status, seconds that it took, and standard error."""
        began = time.monotonic()
        for number in signals:
            self.popen.send_signal(number)
            time.sleep(0.1)  # one that is still pending would swallow the next
        _, errors = self.popen.communicate(timeout=60)
        return self.popen.returncode, time.monotonic() - began, errors


@pytest.fixture
def run() -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def run_one(**arguments: Any) -> Process:
        processes.append(Process(**arguments))
        return processes[-1]

    yield run_one
    for process in processes:
        process.popen.kill()
        process.popen.communicate()


def paste(line: str) -> str:
    """The output of a curl command; where there is no curl, the reply to what it would send."""
    if shutil.which("curl"):
        return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30).stdout
    curl, url, header_flag, header, data_flag, data = shlex.split(line)
    assert (curl, header_flag, data_flag) == ("curl", "-H", "-d")
    name, _, value = header.partition(": ")
    return httpx.post(url, headers={name: value}, content=data, timeout=30).text


def test_ready_and_the_curl_line_works_as_pasted(run: Any) -> None:
    process = run().listening()
    line = process.read_until("^curl .*").string
    reply = json.loads(paste(line))
    assert reply["choices"][0]["message"]["content"] == "Paris."
    status, took_s, errors = process.stop(signal.SIGTERM)
    assert (status, errors) == (0, "")
    assert took_s < STOP_S
    assert "uvicorn" not in process.output


def states() -> list[Any]:
    """Every state with both signals; one each is enough while developing."""
    names = ["loading", "idle", "prefill", "decode", "reads nothing"]
    numbers = [signal.SIGINT, signal.SIGTERM]
    return [
        pytest.param(name, number, marks=[pytest.mark.slow] if (i + j) % 2 else [])
        for i, name in enumerate(names)
        for j, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(("state", "number"), states())
def test_a_signal_ends_it_in_every_state(run: Any, state: str, number: signal.Signals) -> None:
    script = {"prefill": "prefill", "decode": "endless", "reads nothing": "flood"}.get(state)
    process = run(
        mode="stuck" if state == "loading" else "ok",
        script=script or "usual",
    )
    process.listening() if state == "loading" else process.ready()
    clients = [RawConnection(process.port) for _ in range(3 if script else 0)]
    for i, client in enumerate(clients):  # the first runs, the others wait, one of them unstreamed
        client.post(CHAT, {**HELLO, "stream": i < 2})
    if clients:
        assert clients[0].head()[0] == 200
        clients[0].chunk()
    if state == "reads nothing":
        time.sleep(0.5)
    status, took_s, errors = process.stop(number)
    assert (status, errors) == (0, "")
    assert took_s < STOP_S
    if state in ("prefill", "decode"):
        stream = b""
        while chunk := clients[0].chunk():
            stream += chunk
        assert b"[DONE]" not in stream
        assert json.loads(stream.split(b"data: ")[-1])["error"]["code"] == "server_closing"
        assert clients[2].reply().status == 503
    for client in clients:
        client.socket.close()


def test_a_second_interrupt_ends_it_at_once(run: Any) -> None:
    process = run(mode="stubborn").ready()
    client = RawConnection(process.port)
    client.post(CHAT, {**HELLO, "stream": True})
    assert client.head()[0] == 200
    status, took_s, errors = process.stop(signal.SIGINT, signal.SIGINT)
    assert (status, errors) == (0, "")
    assert took_s < GIVE_UP_S  # when one alone would have ended it
    client.socket.close()


@pytest.mark.slow
def test_idle_connections_do_not_hold_it_up(run: Any) -> None:
    process = run().ready()
    with RawConnection(process.port) as kept, RawConnection(process.port) as half:
        kept.post(CHAT, HELLO)
        assert kept.reply().status == 200
        half.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.1)
        status, took_s, errors = process.stop(signal.SIGTERM)
    assert (status, errors) == (0, "")
    assert took_s < STOP_S


@pytest.mark.parametrize(
    ("mode", "line"),
    [
        ("damaged", "x.gguf: tensor 'output.weight' lies outside the file"),
        ("bug", r"KeyError: 'llama.\ncontext_length'"),
    ],
)
def test_a_load_that_fails_ends_it(run: Any, mode: str, line: str) -> None:
    process = run(mode=mode)
    status, _, errors = process.stop()
    assert status == 1
    assert errors == f"rushlight: error: {line}\n"


def test_no_model_is_a_failure(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from server.config_sources import load_config\n"
        "from server.run import serve\n"
        "sys.exit(serve(load_config()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "rushlight: error: no model to serve: name a GGUF file (engine.model_path)\n"
    )


def test_a_start_imports_nothing_that_a_first_chat_does_not_need() -> None:
    code = (
        "import sys, server.run, server.config_sources, server.app, server.http_server\n"
        "from engine import Engine\n"
        "late = {'gguf', 'llguidance', 'httpx', 'rich', 'typer', 'dotenv', 'pydantic_settings'}\n"
        "print(*sorted(late & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_what_is_imported_stays_and_garbage_is_looked_for_again() -> None:
    before = gc.get_freeze_count()
    with _for_good():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()  # which tests make, and may leave


def test_taken_port(run: Any) -> None:
    first = run().listening()
    first.read_until("^curl ")
    second = run(mode="stuck", server={"port": first.port})  # would never end if it came to loading
    status, _, errors = second.stop()
    assert status == 1
    assert errors.startswith(f"rushlight: error: 127.0.0.1:{first.port} is in use already")
    assert errors.count("\n") == 1
    assert httpx.get(f"http://127.0.0.1:{first.port}/health").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::1"])
def test_hosts(run: Any, host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    process = run(server={"host": host}).ready()
    shown = {"::1": "[::1]", "0.0.0.0": "127.0.0.1"}.get(host, host)
    assert f"listening on http://{shown}:{process.port}" in process.output
    assert httpx.get(f"http://{shown}:{process.port}/health").status_code == 200


@pytest.mark.slow
def test_it_listens_while_it_loads(run: Any) -> None:
    process = run(mode="stuck").listening()
    process.read_until("compiling kernels")
    health = httpx.get(f"http://127.0.0.1:{process.port}/health")
    assert health.status_code == 503
    assert health.json() == {
        "status": "loading",
        "stage": "compiling kernels",
        "done": 1,
        "total": 2,
    }


@pytest.mark.slow
def test_idle_costs_nothing(run: Any) -> None:
    process = run().ready()
    stat = Path(f"/proc/{process.popen.pid}/stat")
    if not stat.exists():
        pytest.skip("no /proc here")

    def cpu_ticks() -> int:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    time.sleep(0.2)
    before = cpu_ticks()
    time.sleep(1.5)
    assert cpu_ticks() - before <= 2


@pytest.mark.slow
def test_a_closed_port_is_free_again(run: Any) -> None:
    first = run().ready()
    with RawConnection(first.port) as client:
        client.post(CHAT, HELLO)
        client.reply()
        first.stop(signal.SIGTERM)
    second = run(server={"port": first.port}).ready()
    assert second.port == first.port
    socket.create_connection(("127.0.0.1", second.port), timeout=5).close()
