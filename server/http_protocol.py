"""HttpProtocol: uvicorn's HTTP/1.1 on one connection, but that broken HTTP is told as JSON, with
what is broken, and that the client gets to read it.

Knows h11's errors; which shape an error has on a route that was reached is the route's.
"""

from __future__ import annotations

import re
import sys
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.body import LINGER_S
from server.errors import ApiError, openai_error

_REPR = re.compile(r"""bytearray\(b['"](.*)['"]\)""")  # in h11's messages: the bytes that it means


class HttpProtocol(H11Protocol):
    """One connection. After broken HTTP nothing more is understood on it."""

    _is_broken = False

    def data_received(self, data: bytes) -> None:
        """What still comes behind broken HTTP is thrown away."""
        if not self._is_broken:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Called where h11 cannot read on. Closing on unread bytes makes the kernel reset the
        connection, and the client would lose the reply: so it closes a moment later.
        """
        self._is_broken = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(sys.exception())
        if self.cycle and not self.cycle.response_complete:  # its body will never come
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _refuse(self, cause: BaseException | None) -> None:
        status = HTTPStatus(getattr(cause, "error_status_hint", 400))
        problem = _REPR.sub(r"'\1'", str(cause))
        error = ApiError(status, f"this is not valid HTTP/1.1: {problem}", code="invalid_http")
        record = self._request_state().get("record")
        body = (record.error_object if record else openai_error)(error).wire().encode()
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        head = h11.Response(
            status_code=status, headers=list(headers.items()), reason=status.phrase.encode()
        )
        for part in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")

    def _request_state(self) -> dict[str, Any]:
        """Of the request that broke off in its body; empty if it was its head that is broken."""
        is_in_body = self.conn.our_state is h11.SEND_RESPONSE and self.scope is not None
        return self.scope.get("state", {}) if is_in_body else {}
