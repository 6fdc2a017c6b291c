"""private_server with a stand-in for `rushlight serve` that loads, fails, hangs or outlives."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from clients import private_server as module
from clients.client import Health
from clients.errors import UserError
from clients.private_server import private_server

ROOT = Path(__file__).resolve().parents[2]

SERVING = """
import http.server, json, os, pathlib, sys
pathlib.Path("pid").write_text(str(os.getpid()))
pathlib.Path("argv").write_text(" ".join(sys.argv[1:]))
pathlib.Path("keys").write_text(os.environ["RUSHLIGHT_SERVER__API_KEYS"])
pathlib.Path("path").write_text(os.environ["PYTHONPATH"])
answers = [(503, {"status": "loading", "stage": "compiling", "done": 1, "total": 2}),
           (200, {"status": "ok"})]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pathlib.Path("sent").write_text(str(self.headers["Authorization"]))
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"rushlight: listening on http://127.0.0.1:{server.server_port}, loading ...", flush=True)
server.serve_forever()
"""


@pytest.fixture(autouse=True)
def in_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in takes the place of our packages and writes beside itself."""
    (tmp_path / "clients").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_PACKAGES", tmp_path)


def stand_in(code: str) -> None:
    Path("clients/__main__.py").write_text(textwrap.dedent(code))


def ignore(health: Health) -> None:
    """Nobody watches."""


def has_ended(pid: int, within_s: float = 5.0) -> bool:
    """True once the process is gone, or a zombie that nobody has collected yet."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if " Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_the_client_comes_when_the_server_is_ready_and_the_server_ends_with_it() -> None:
    stand_in(SERVING)
    seen: list[str] = []
    with private_server(
        ["m.gguf", "--threads", "1"], lambda health: seen.append(str(health))
    ) as client:
        assert client.health().ready
        pid = int(Path("pid").read_text())
        assert not has_ended(pid, within_s=0.05)
    assert has_ended(pid)
    assert seen == ["compiling 1/2"]
    assert Path("argv").read_text() == "serve m.gguf --threads 1 --host 127.0.0.1 --port 0"


def test_its_key_is_its_own_whatever_keys_the_settings_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUSHLIGHT_SERVER__API_KEYS", "of,the,user")
    stand_in(SERVING)
    with private_server([], ignore):
        key = Path("keys").read_text()
        assert len(key) == 32
        assert Path("sent").read_text() == f"Bearer {key}"


def test_the_users_own_path_still_counts_after_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    stand_in(SERVING)
    with private_server([], ignore):
        assert Path("path").read_text() == f"{tmp_path}{os.pathsep}/of/the/user"


def test_what_the_server_failed_on_is_told_in_its_words() -> None:
    stand_in("""
        import sys
        print("rushlight: error: m.gguf: not a GGUF file", file=sys.stderr)
        sys.exit(1)
        """)
    with pytest.raises(UserError, match=r"^m\.gguf: not a GGUF file$"), private_server([], ignore):
        pass


def test_a_failure_while_loading_is_told_too() -> None:
    stand_in("""
        import socket, sys
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        print(f"rushlight: listening on http://127.0.0.1:{port}, loading ...", flush=True)
        listener.accept()
        print("rushlight: error: out of memory", file=sys.stderr)
        sys.exit(1)
        """)
    with pytest.raises(UserError, match=r"^out of memory$"), private_server([], ignore):
        pass


def test_a_silent_death_is_told_by_its_status() -> None:
    stand_in("raise SystemExit(7)")
    with (
        pytest.raises(UserError, match="ended with status 7; it said nothing"),
        private_server([], ignore),
    ):
        pass


def test_a_server_that_will_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.2)
    stand_in("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVING)
    with private_server([], ignore):
        pid = int(Path("pid").read_text())
    assert has_ended(pid)


def test_the_server_does_not_outlive_a_killed_command(tmp_path: Path) -> None:
    stand_in(SERVING)
    code = f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from clients import private_server as module
        module._PACKAGES = Path({str(tmp_path)!r})
        with module.private_server([], lambda health: None):
            print("ready", flush=True)
            time.sleep(60)
        """
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert has_ended(int(Path("pid").read_text()))
