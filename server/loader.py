"""EngineLoader: makes the engine in a thread of its own and says how far it is.

The server listens meanwhile. Knows nothing of HTTP; what should happen when loading ends, well or
badly, is the caller's to say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine import EngineClosed, LoadProgress
from server.errors import ModelLoading

if TYPE_CHECKING:
    from engine import Engine

STORE_S = 1.0  # for chats that are stored at the end: the process is to end within two seconds

OnLoad: TypeAlias = Callable[[LoadProgress], None]


class EngineLoader:
    """Loads once. Any thread may ask."""

    def __init__(
        self,
        make_engine: Callable[[OnLoad], Engine],
        on_progress: OnLoad = lambda progress: None,
        on_done: Callable[[Engine | None], None] = lambda engine: None,
    ) -> None:
        """make_engine: blocks until the engine is ready, reporting to what it is given.
        on_progress, on_done: called from the loading thread; on_done with None when `error` is set.
        """
        self.progress = LoadProgress("starting", 0, 0)
        self.error: Exception | None = None
        self.loaded_at = 0  # Unix time in seconds
        self._make_engine = make_engine
        self._on_progress = on_progress
        self._on_done = on_done
        self._engine: Engine | None = None
        self._is_closed = False
        # A daemon: it may be deep in a compiler, where nothing can stop it.
        self._thread = threading.Thread(target=self._load, name="load", daemon=True)

    def start(self) -> None:
        """Begin to load. Once."""
        self._thread.start()

    def engine(self) -> Engine:
        """The engine. Raises: ModelLoading while it is not there, EngineClosed after `close`."""
        if self._is_closed:
            raise EngineClosed("the server is shutting down")
        if self._engine is None:
            raise ModelLoading(self.progress.stage)
        return self._engine

    @property
    def is_loading(self) -> bool:
        """True while the thread is at work."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Cancel every request and end the engine; blocks for as long as that takes. Idempotent."""
        self._is_closed = True
        if self._engine is not None:
            self._engine.close(store_s=STORE_S)

    def _load(self) -> None:
        try:
            engine = self._make_engine(self._note)
        except Exception as error:  # whatever it is, it must reach the user as one line
            self.error = error
            self._on_done(None)
            return
        self.loaded_at = int(time.time())
        self._engine = engine
        if self._is_closed:
            engine.close(store_s=STORE_S)
        else:
            self._on_done(engine)

    def _note(self, progress: LoadProgress) -> None:
        self.progress = progress
        self._on_progress(progress)
