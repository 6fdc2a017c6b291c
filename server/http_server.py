"""HttpServer: uvicorn as we use it: asleep while nobody asks, and with an end that no reply and no
client can hold up.

Knows uvicorn's settings and its shutdown; knows nothing of routes, signals or exit statuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from email.utils import formatdate

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from server.http_protocol import HttpProtocol
from server.loader import EngineLoader

CUT_OFF_S = 0.6  # after which clients that do not read the end of their reply are cut off
KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that they close first


class HttpServer(uvicorn.Server):
    """Serves one application, and closes its engine when it ends. Any thread, or a signal's
    handler, ends it by setting `should_exit`.
    """

    _loop: asyncio.AbstractEventLoop | None = None  # that runs main_loop

    def __init__(self, app: FastAPI, loader: EngineLoader) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                loop="asyncio",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
            )
        )
        self._loader = loader
        self.server_state = _ServerState()

    @property
    def should_exit(self) -> bool:
        """Whether the server has been asked to end."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value and self._loop:
            self._loop.call_soon_threadsafe(self._exit_asked.set)

    async def main_loop(self) -> None:
        """Sleep until the end. uvicorn's own wakes ten times a second, to see whether there is
        anything to do: of all that a server does on an idle machine, this would be the most.
        """
        self._exit_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:  # which may have been set just before there was a loop to wake
            await self._exit_asked.wait()
        self._loop = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's: uvicorn would raise them again after a clean end."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the engine, so that every reply ends now; then the connections, willing or not."""
        closing = asyncio.create_task(asyncio.to_thread(self._loader.close))
        cutting = asyncio.get_running_loop().call_later(CUT_OFF_S, self._cut_off)
        await super().shutdown(sockets)
        cutting.cancel()
        await closing

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _ServerState(ServerState):
    """uvicorn's, with a Date header that is made when a reply wants it, not once a second."""

    _made_at, _date = 0, b""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """What every reply begins with."""
        now = int(time.time())
        if now != self._made_at:
            self._made_at, self._date = now, formatdate(now, usegmt=True).encode()
        return [(b"date", self._date)]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """uvicorn begins with none."""
