"""serve: from settings to a running process and back to an exit status.

A wrong file is told before anything slow is imported; then the server listens, and loads the engine
meanwhile. A signal ends the process within two seconds whatever it is doing. Knows nothing of
requests.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Self

from engine import ConfigError
from server.config import AppConfig
from server.console import LoadingLines, fail, load_failure, say, say_ready, set_up_logging
from server.listen import ListenError, listen, url_for

if TYPE_CHECKING:
    from engine import Engine
    from server.http_server import HttpServer
    from server.loader import OnLoad

BACKLOG = 2048
GIVE_UP_S = 1.7  # after a signal; whatever still holds the process then is left behind


def serve(config: AppConfig, make_engine: Callable[[OnLoad], Engine] | None = None) -> int:
    """Serve until a signal or a failure; returns the exit status. Call it in the main thread.

    make_engine: stands in for the real engine in tests.
    """
    set_up_logging(config.log.level)
    with StopOnSignals() as stop:
        try:
            make_engine = make_engine or _engine_maker(config)
        except Exception as error:  # whatever it is, it must reach the user as one line
            return fail(load_failure(error))
        try:
            sockets = listen(config.server.host, config.server.port, BACKLOG)
        except ListenError as error:
            return fail(str(error))
        with _for_good():  # here, as these take a moment
            from server.app import create_app
            from server.http_server import HttpServer
            from server.loader import EngineLoader

        url = url_for(config.server.host, sockets[0].getsockname()[1])
        lines = LoadingLines()

        def loaded(engine: Engine | None) -> None:
            lines.end()
            if engine is None:
                server.should_exit = True
            else:
                say_ready(engine, url)

        loader = EngineLoader(make_engine, lines.show, loaded)
        server = HttpServer(create_app(config, loader), loader)
        stop.server = server
        say(f"listening on {url}, loading the model")
        server.run(sockets=sockets)
        if loader.error is not None and not stop.is_asked:
            return fail(load_failure(loader.error))
        if loader.is_loading:
            # The thread is deep in a compiler: taking Python down around it may crash.
            os._exit(0)
    return 0


def _engine_maker(config: AppConfig) -> Callable[[OnLoad], Engine]:
    """Makes the engine of a file that is looked at now. Raises what ModelFile does."""
    if not config.engine.model_path:
        raise ConfigError("no model to serve: name a GGUF file (engine.model_path)")
    from engine import ModelFile

    settings = config.to_engine_config()
    file = ModelFile(settings)

    def make_engine(on_load: OnLoad) -> Engine:
        with _for_good():  # Numba: not before the server listens
            from engine import Engine

        return Engine(settings, on_load, file)

    return make_engine


@contextlib.contextmanager
def _for_good() -> Iterator[None]:
    """Around imports: what they make stays, so that to look for garbage in it would be in vain, now
    (a tenth of a start) and whenever Python looks through everything later (0.1 s of a reply).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class StopOnSignals:
    """SIGINT and SIGTERM end the server; a second one, or a stop that hangs, ends the process.

    An end that was asked for is a success, however it comes about: exit status 0.
    """

    def __init__(self) -> None:
        self.server: HttpServer | None = None
        self.is_asked = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._previous = {number: signal.signal(number, self._stop) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked or self.server is None:
            os._exit(0)
        self.is_asked = True
        self.server.should_exit = True
        last_resort = threading.Timer(GIVE_UP_S, os._exit, args=(0,))
        last_resort.daemon = True
        last_resort.start()
