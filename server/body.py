"""Reading a request's body: bytes within a limit, strict JSON, one object. All else is a 4xx.

Knows nothing of what the object should hold. A body that is left unread is discarded by uvicorn,
unless the reply closes the connection: then `LastResponse` sees to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import ApiError, BodyTooLarge

# Deeper than any honest request, and shallow enough that no later code that walks the value
# recursively (validation, a chat template) can hit Python's recursion limit.
MAX_DEPTH = 100
LINGER_S = 0.5

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_json_object(request: Request, limit: int) -> dict[str, Any]:
    """The body as a dict. Raises: ApiError 400, 413 or 415, ClientDisconnect."""
    _refuse_encoding(", ".join(request.headers.getlist("content-encoding")))
    return parse_json_object(await _read(request, limit))


def _refuse_encoding(encoding: str) -> None:
    if encoding.strip().lower() not in ("", "identity"):
        raise ApiError(
            415,
            f"Content-Encoding: {encoding:.40} is not supported; send the body as it is",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )


async def _read(request: Request, limit: int) -> bytes:
    if int(request.headers.get("content-length", 0)) > limit:
        raise BodyTooLarge(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """RFC 8259 JSON whose outermost value is an object. Raises: ApiError 400."""
    try:
        text = body.decode("utf-8-sig")  # a BOM may be ignored, says the RFC; some shells send one
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the request body is not UTF-8 (at byte {error.start})") from None
    if not text.strip():
        raise ApiError(400, "the request body is empty; send a JSON object")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ApiError(400, f"the request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the request body must be a JSON object")
    if _is_deeper_than(MAX_DEPTH, value):
        raise _too_deep()
    if _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise ApiError(400, "the request body has half a surrogate pair, which is no character")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep() -> ApiError:
    return ApiError(400, f"the request body is nested deeper than {MAX_DEPTH} levels")


def _is_deeper_than(limit: int, value: dict[str, Any]) -> bool:
    """Level by level: a recursive walk would be stopped by what it looks for."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


class LastResponse(Response):
    """A reply after which the connection closes, though the client may still be sending.

    Closing on unread bytes makes the kernel reset the connection, and the client would lose the
    reply. So it is sent whole, and what still comes is thrown away for a moment before closing.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})
