"""Writing to the disk on a thread of its own: a disk takes what time it wants, and a reply's next
token must not wait for it. Knows nothing of chats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Storing:
    """Runs `write` until it returns. It is handed a function that tells whether it is still wanted,
    should ask it now and then, and handles its own errors.
    """

    def __init__(self, write: Callable[[Callable[[], bool]], None]) -> None:
        self._write = write
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rushlight-store", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it is done by then."""
        self._thread.join(max(timeout_s, 0.0))
        return self.done

    def cancel(self) -> None:
        """It is not wanted any more: what is written afterwards is thrown away."""
        self._cancelled.set()

    def _run(self) -> None:
        # No lower priority: everyone would wait while this thread has Python's lock and no CPU.
        self._write(lambda: not self._cancelled.is_set())
