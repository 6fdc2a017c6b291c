"""A server of our own for the length of one command: started on a free port, stopped at the end.

The child runs `rushlight serve`; what it prints goes to files, since the terminal is the command's.
It ends with this process however that ends, so no model stays in memory behind the user's back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from clients.errors import UserError

if TYPE_CHECKING:
    from clients.client import Client, Health

_ADDRESS = re.compile(r"listening on (http://\S+?),")
_POLL_S = 0.02
_STOP_S = 5.0  # the server promises two
_PR_SET_PDEATHSIG = 1
_PACKAGES = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def private_server(
    arguments: Sequence[str], on_loading: Callable[[Health], None]
) -> Iterator[Client]:
    """A Client of a server that is ready.

    arguments: of `rushlight serve`, but for host and port, which are chosen here.
    Raises: UserError with the server's own words when it does not start.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        # -P: a folder called `clients` where the user happens to be is not ours.
        command = [sys.executable, "-P", "-m", "clients", "serve", *arguments]
        api_key = secrets.token_hex(16)  # it is private, and the settings may want a key
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={
                **os.environ,
                "PYTHONPATH": _python_path(),
                "RUSHLIGHT_SERVER__API_KEYS": api_key,
            },
            preexec_fn=_die_with_parent,
        )
        try:
            # Here, and not above: this takes a moment, in which the child starts.
            from clients.client import Client, ServerUnreachable

            with Client(_address(process, out, err), api_key=api_key) as client:
                try:
                    for health in client.until_ready():
                        on_loading(health)
                except ServerUnreachable:
                    raise _failure(process, err) from None
                yield client
        finally:
            _stop(process)


def _python_path() -> str:
    """Our packages before whatever the user's own path names."""
    return os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))


def _address(process: subprocess.Popen[bytes], out: IO[str], err: IO[str]) -> str:
    """Where the child listens, as it says at its start."""
    while True:
        has_ended = process.poll() is not None
        if found := _ADDRESS.search(_contents(out)):
            return found[1]
        if has_ended:
            raise _failure(process, err)
        time.sleep(_POLL_S)


def _failure(process: subprocess.Popen[bytes], err: IO[str]) -> UserError:
    """The last line that the server left on its stderr."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    lines = _contents(err).strip().splitlines()
    said = lines[-1].removeprefix("rushlight: error: ") if lines else "it said nothing"
    return UserError(
        said if lines else f"the server ended with status {process.returncode}; {said}"
    )


def _contents(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _die_with_parent() -> None:
    """Runs in the child before the server does; Linux only, elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
