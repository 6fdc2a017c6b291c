"""A server that sleeps while nobody asks, tells the right time, and ends when it is told to."""

from __future__ import annotations

import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.config import AppConfig
from server.http_server import HttpServer
from server.listen import listen
from server.loader import EngineLoader
from tests.fake_engine import FakeEngine
from tests.server.test_run import run

__all__ = ["run"]  # the fixture

SOON_S = 0.5


def make_server() -> tuple[HttpServer, threading.Thread, int]:
    """A server, the thread that is going to run it, and its port."""
    [socket] = listen("127.0.0.1", 0, 8)
    loader = EngineLoader(lambda on_load: FakeEngine())  # type: ignore[arg-type, return-value]
    server = HttpServer(create_app(AppConfig(), loader), loader)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    return server, thread, socket.getsockname()[1]


def test_replies_carry_the_date(http: httpx.Client) -> None:
    dates = []
    for _ in range(2):
        reply = http.get("/v1/models")
        assert len(reply.headers.get_list("date")) == 1
        dates.append(parsedate_to_datetime(reply.headers["date"]).timestamp())
        assert abs(dates[-1] - time.time()) < 1.5
        time.sleep(1.1)
    assert dates[1] > dates[0]


def test_another_thread_ends_it_at_once() -> None:
    server, thread, port = make_server()
    thread.start()
    while not server.started:
        time.sleep(0.01)
    assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 200
    began = time.monotonic()
    server.should_exit = True
    thread.join(10)
    assert time.monotonic() - began < SOON_S


def test_one_that_is_to_end_before_it_runs_does_so() -> None:
    server, thread, _ = make_server()
    server.should_exit = True
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_it_sleeps_while_nobody_asks(run: Any) -> None:
    process = run().ready()
    main_thread = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/status")
    if not main_thread.exists():
        pytest.skip("the system does not tell how often a thread wakes")

    def wakes() -> int:
        fields = dict(line.split(":\t", 1) for line in main_thread.read_text().splitlines())
        return int(fields["voluntary_ctxt_switches"])

    time.sleep(0.5)  # what the start left to do
    before = wakes()
    time.sleep(1.5)
    assert wakes() - before <= 2  # ten times a second would be 15
