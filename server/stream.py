"""A reply as a stream: objects as they come, word of how far it is while the client waits, one end.

Knows when something must be sent. What objects hold is the encoder's, how they become bytes the
framing's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.encoder import Encoder
from server.errors import api_error, is_unexpected
from server.middleware import RequestRecord
from server.progress import Watch
from server.reply import Reply, while_connected
from server.reply_events import Ended, Piece, Totals
from server.wire_object import Wire

log = logging.getLogger("rushlight.server")


class ReplyStream(StreamingResponse):
    """Sends one Reply as it comes, and cancels it when the client leaves."""

    def __init__(
        self,
        reply: Reply,
        encoder: Encoder,
        record: RequestRecord,
        *,
        progress_every_s: float,
        headers: dict[str, str],
    ) -> None:
        self._reply = reply
        self._encoder = encoder
        self._framing = encoder.framing
        self._record = record
        self._every_s = progress_every_s
        self._bytes = self._all_bytes()
        fixed = {
            "Content-Type": self._framing.media_type,
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
        """The whole stream. An error is the last of it: there is no other end then."""
        try:
            async for some in self._reply_bytes():
                yield some
        except Exception as error:
            told = api_error(error, self._record.id)
            self._record.fail(told)
            if is_unexpected(error):
                log.error("%s failed in mid-stream", self._record.id, exc_info=error)
            for some in self._encoded(self._encoder.failed(told)):
                yield some
        else:
            if self._framing.end:
                yield self._framing.end

    async def _reply_bytes(self) -> AsyncGenerator[bytes, None]:
        """All but the end; something at least each `every_s`, whatever the engine does."""
        watch = Watch(self._reply.progress)
        ends: list[Ended] = []
        for some in self._encoded(self._encoder.opening()):
            yield some
        if self._reply.n_choices:
            for some in self._waiting(watch):
                yield some
        sent_at = time.monotonic()
        async for event in self._reply.events(self._every_s):
            if isinstance(event, Ended):
                ends.append(event)
            for some in self._encoded(self._objects(event, ends)):
                yield some
                sent_at = time.monotonic()
            # Not only when no event came: text may be held back for a possible stop string.
            if time.monotonic() - sent_at >= self._every_s:
                for some in self._waiting(watch):
                    yield some
                sent_at = time.monotonic()
        for some in self._encoded(self._encoder.closing(ends)):
            yield some
        self._record.totals = Totals.of(ends)

    def _objects(self, event: Piece | Ended | None, ends: list[Ended]) -> Iterable[Wire]:
        match event:
            case Piece():
                return self._encoder.piece(event)
            case Ended():
                is_last = len(ends) == self._reply.n_choices
                return self._encoder.ended(event, ends if is_last else None)
            case None:
                return ()

    def _waiting(self, watch: Watch) -> list[bytes]:
        status = watch.now()
        comment = self._framing.comment(status.words())
        return [*([comment] if comment else []), *self._encoded(self._encoder.waiting(status))]

    def _encoded(self, objects: Iterable[Wire]) -> Iterable[bytes]:
        return map(self._framing.object, objects)
