"""A reply as server-sent events: chunks, comments while the client waits, one end.

Knows the bytes of SSE and when something must be sent; what the objects hold is objects.py's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine import Finished, Token
from server.errors import api_error, is_unexpected
from server.middleware import RequestRecord
from server.objects import Objects
from server.progress import ProgressWords
from server.reply import Reply, while_connected
from server.schema import Usage, WireObject

log = logging.getLogger("rushlight.server")

DONE = b"data: [DONE]\n\n"


def sse_data(json: str) -> bytes:
    """One event. JSON of ours has no line breaks, so one `data:` line holds it."""
    return f"data: {json}\n\n".encode()


def sse_comment(text: str) -> bytes:
    """A line that every SSE client skips: it tells people, and keeps the connection open."""
    return f": {text}\n\n".encode()


class EventStream(StreamingResponse):
    """Sends one Reply as it comes, and cancels it when the client leaves."""

    def __init__(
        self,
        reply: Reply,
        objects: Objects,
        record: RequestRecord,
        *,
        include_usage: bool,
        progress_every_s: float,
        headers: dict[str, str],
    ) -> None:
        self._reply = reply
        self._objects = objects
        self._record = record
        self._include_usage = include_usage
        self._every_s = progress_every_s
        self._bytes = self._all_bytes()
        fixed = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would hold small pieces back
        }
        super().__init__(self._bytes, headers={**headers, **fixed})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._bytes):
                await while_connected(receive, self.stream_response(send))
        finally:
            self._reply.cancel()

    async def _all_bytes(self) -> AsyncGenerator[bytes, None]:
        """The whole stream. An error is one last event, after which there is no [DONE]."""
        try:
            async for some in self._reply_bytes():
                yield some
        except Exception as error:
            told = api_error(error, self._record.id)
            self._record.fail(told)
            if is_unexpected(error):
                log.error("%s failed in mid-stream", self._record.id, exc_info=error)
            yield sse_data(told.to_json())
        else:
            yield DONE

    async def _reply_bytes(self) -> AsyncGenerator[bytes, None]:
        """Every event but the last; something at least each `every_s`, whatever the engine does."""
        words = ProgressWords(self._reply)
        opened: set[int] = set()
        ends: list[Finished] = []
        yield sse_comment(words.now())
        sent_at = time.monotonic()
        async for item in self._reply.events(self._every_s):
            if item is not None:
                for chunk in self._chunks(*item, opened, ends):
                    yield sse_data(chunk.wire())
                    sent_at = time.monotonic()
            # Not only when no event came: text may be held back for a possible stop string.
            if time.monotonic() - sent_at >= self._every_s:
                yield sse_comment(words.now())
                sent_at = time.monotonic()
        if self._include_usage:
            yield sse_data(self._objects.usage(ends).wire())
        self._record.usage = Usage.of(ends)

    def _chunks(
        self, index: int, event: Token | Finished, opened: set[int], ends: list[Finished]
    ) -> Iterator[WireObject]:
        """The chunks that one event makes; none for a token whose text is held back."""
        is_end = isinstance(event, Finished)
        if index not in opened and (event.text or is_end):
            opened.add(index)
            if opening := self._objects.opening(index):
                yield opening
        if event.text:
            yield self._objects.piece(index, event.text)
        if isinstance(event, Finished):
            ends.append(event)
            is_last = len(ends) == self._reply.n_choices and not self._include_usage
            yield self._objects.closing(index, event, ends if is_last else None)
