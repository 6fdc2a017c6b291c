"""Around every request: an id, what no route may see, the last word on errors, and at its end one
log line and its place in the metrics.

Plain ASGI, so that a stream passes through untouched. Knows nothing of what routes do; they leave
facts for the log in the RequestRecord.
"""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi import Depends
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.body import LastResponse
from server.errors import ApiError, ErrorShape, api_error, is_unexpected, openai_error
from server.metrics import Metrics
from server.notes import dropped_words
from server.reply_events import Totals

log = logging.getLogger("rushlight.server")

_MAX_NAMED = 20  # of the unknown fields of one request, in header and log
_MAX_NAME = 64


@dataclass(slots=True)
class RequestRecord:
    """What is known of one request, for its log line, its headers and the metrics."""

    scope: Scope
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(8)}")
    status: int = 0  # 0 = nothing was sent
    ignored: str = ""
    totals: Totals | None = None
    error: str = ""
    error_type: str = ""
    started_at: float = field(default_factory=time.monotonic)

    @property
    def error_object(self) -> ErrorShape:
        """How the clients of this route want to be told, also of what never reached it."""
        marks = getattr(self.scope.get("route"), "dependencies", ())
        shapes = [d.dependency.shape for d in marks if isinstance(d.dependency, _ErrorsAs)]
        return shapes[-1] if shapes else openai_error

    @classmethod
    def of(cls, request: Request) -> RequestRecord:
        """The record that the middleware made for this request."""
        record: RequestRecord = request.scope["state"]["record"]
        return record

    def fail(self, error: ApiError) -> None:
        """Note what the client is told."""
        self.error, self.error_type = error.message, error.code or error.type

    def ignore(self, names: list[str]) -> dict[str, str]:
        """Note unknown fields; returns the headers that name them, safe whatever clients send."""
        # An empty name as "": a header must not end with the space before it.
        shown = [quote(name[:_MAX_NAME], safe="[]") or '""' for name in names[:_MAX_NAMED]]
        if len(names) > _MAX_NAMED:
            shown.append("...")
        self.ignored = ", ".join(shown)
        return {"X-Rushlight-Ignored": self.ignored} if shown else {}


class RequestMiddleware:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(scope)
        scope.setdefault("state", {})["record"] = record
        scope["path"] = _tidy(scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.id
            await send(message)

        try:
            refuse_ambiguous_length(Headers(scope=scope))
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            record.error, record.error_type = "the client left", "client_left"
        except Exception as error:
            if is_unexpected(error):
                log.error("%s failed", record.id, exc_info=error)
            told = api_error(error, record.id)
            record.fail(told)
            if record.status:
                raise  # too late to tell; the server closes the connection
            await error_response(told, record)(scope, receive, send_with_id)
        finally:
            took_s = time.monotonic() - record.started_at
            _log_line(scope, record, took_s)
            # Not the path: whoever asks for a thousand of them would make a thousand series.
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.request_ended(route, record.status, record.error_type, took_s)


@dataclass(frozen=True, slots=True)
class _ErrorsAs:
    """A mark on routes, that the record reads."""

    shape: ErrorShape

    async def __call__(self) -> None:
        """As a dependency it does nothing."""


def errors_as(shape: ErrorShape) -> Any:
    """A router's dependency: its routes tell errors in this shape."""
    return Depends(_ErrorsAs(shape))


def _tidy(path: str) -> str:
    """Without the slashes that a base URL's end leaves in it: //v1/models/ is /v1/models. A
    redirect would not do: browsers' preflights and many clients' POSTs do not follow one.
    """
    return "/" + "/".join(filter(None, path.split("/")))


def error_response(error: ApiError, record: RequestRecord) -> Response:
    """`error` as a reply, and noted in the record."""
    record.fail(error)
    kind = LastResponse if "Connection" in error.headers else Response
    return kind(record.error_object(error).wire(), error.status, error.headers, "application/json")


def refuse_ambiguous_length(headers: Headers) -> None:
    """RFC 9112, 6.3: two lengths may be an attack on a proxy before us. Raises: ApiError."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ApiError(
            400,
            "the request has both Content-Length and Transfer-Encoding",
            headers={"Connection": "close"},
        )


def _log_line(scope: Scope, record: RequestRecord, took_s: float) -> None:
    # Health checks (503 while the model loads, too) and lists are many and say nothing new.
    says_nothing_new = record.status in (200, 503) and record.totals is None and not record.error
    level = logging.DEBUG if says_nothing_new else logging.INFO
    words = [record.id, scope["method"], quote(scope["path"]), str(record.status or "-")]
    if totals := record.totals:
        words.append(f"prompt={totals.n_prompt}")
        words.append(f"cached={totals.n_cached}")
        words.append(f"tokens={totals.n_decoded}")
    words.append(f"{took_s:.2f}s")
    if totals and (dropped := dropped_words(totals.n_dropped, totals.n_cut)):
        words.append(f"dropped: {dropped}")
    if totals and totals.difference:
        words.append(f"cache: {totals.difference!s:.300}")
    if record.ignored:
        words.append(f"ignored: {record.ignored}")
    if record.error:
        words.append(f"error: {record.error!r:.200}")
    log.log(level, "%s", " ".join(words))
