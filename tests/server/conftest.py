"""A real uvicorn in a thread over a FakeEngine: in-process transports cannot show streaming."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.config import AppConfig
from server.http_server import HttpServer
from server.listen import listen
from server.loader import EngineLoader, OnLoad
from tests.fake_engine import FakeEngine, Script


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    port: int
    loader: EngineLoader
    loaded: threading.Event

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start(
    make_engine: Callable[[OnLoad], Any], **overrides: dict[str, Any]
) -> tuple[Running, Callable[[], None]]:
    """A server in a thread, and how to stop it."""
    config = AppConfig.model_validate(overrides)  # of no file: the one in the root is the user's
    [socket] = listen("127.0.0.1", 0, 128)
    loaded = threading.Event()
    loader = EngineLoader(make_engine, on_done=lambda engine: loaded.set())
    server = HttpServer(create_app(config, loader), loader)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not stop"

    return Running(socket.getsockname()[1], loader, loaded), stop


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers of the test's own: serve(engine, section={key: value})."""
    stops: list[Callable[[], None]] = []

    def serve_one(engine: Any, **overrides: dict[str, Any]) -> Running:
        make = engine if callable(engine) else lambda on_load: engine
        running, stop = start(make, **overrides)
        stops.append(stop)
        if not callable(engine):
            wait_until_ready(running)
        return running

    yield serve_one
    for stop in stops:
        stop()


def wait_until_ready(running: Running) -> None:
    assert running.loaded.wait(20), "the engine does not load"


@pytest.fixture(scope="session")
def _shared() -> Iterator[tuple[Running, FakeEngine]]:
    engine = FakeEngine()
    running, stop = start(lambda on_load: engine)
    wait_until_ready(running)
    yield running, engine
    stop()


@pytest.fixture
def fake(_shared: tuple[Running, FakeEngine]) -> FakeEngine:
    """The engine behind `server`, idle and with its usual script."""
    engine = _shared[1]
    engine.wait_until_idle()
    engine.script = Script()
    return engine


@pytest.fixture
def server(_shared: tuple[Running, FakeEngine], fake: FakeEngine) -> Running:
    """One server for all tests that need nothing special."""
    return _shared[0]


@pytest.fixture(scope="session")
def _client(_shared: tuple[Running, FakeEngine]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=_shared[0].url, timeout=10) as client:
        yield client


@pytest.fixture
def http(_client: httpx.Client, server: Running) -> httpx.Client:
    """A client of `server`."""
    return _client
