"""HttpServer: uvicorn as we use it, with an end that no reply and no client can hold up.

Knows uvicorn's settings and its shutdown; knows nothing of routes, signals or exit statuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from server.loader import EngineLoader

CUT_OFF_S = 0.6  # after which clients that do not read the end of their reply are cut off
KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that they close first


class HttpServer(uvicorn.Server):
    """Serves one application, and closes its engine when it ends."""

    def __init__(self, app: FastAPI, loader: EngineLoader) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
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
