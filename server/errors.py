"""What goes wrong, as HTTP: one table from exception to status, type and code.

Knows OpenAI's error object; a family with another declares it by `middleware.errors_as`. Does not
log and does not know how a reply is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from engine import (
    ChatTemplateError,
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    Replaced,
    TimedOut,
)
from server.schema import Error, ErrorBody
from server.wire_object import WireObject

RETRY_LOADING_S = 1
RETRY_OUT_OF_MEMORY_S = 30  # a guess: nobody knows when other programs give memory back

# Exception -> (status, type, code). The first match wins, so subclasses come first.
ENGINE_ERRORS: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (ContextLengthExceeded, 400, "invalid_request_error", "context_length_exceeded"),
    (ChatTemplateError, 400, "invalid_request_error", "chat_template_error"),
    (InvalidRequest, 400, "invalid_request_error", None),
    (QueueFull, 429, "rate_limit_error", "queue_full"),
    (Replaced, 409, "invalid_request_error", "replaced"),
    (TimedOut, 504, "server_error", "timeout"),
    (OutOfMemory, 503, "server_error", "out_of_memory"),
    (EngineClosed, 503, "server_error", "server_closing"),
    (EngineFailed, 500, "server_error", "engine_failed"),
)


class ApiError(Exception):
    """An error that is told to the client as it stands."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """numbers: of what is too large: n_prompt, and n_ctx that it had to fit."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.numbers = numbers or {}


ErrorShape: TypeAlias = Callable[[ApiError], WireObject]


def openai_error(error: ApiError) -> Error:
    """OpenAI's envelope, and the one of every route whose family has no other."""
    body = ErrorBody(message=error.message, type=error.type, param=error.param, code=error.code)
    return Error(error=body)


class ModelLoading(ApiError):
    """The model is not there yet."""

    def __init__(self, stage: str) -> None:
        super().__init__(
            503,
            f"the model is still loading ({stage}); /health says how far it is",
            type="server_error",
            code="model_loading",
            headers={"Retry-After": str(RETRY_LOADING_S)},
        )


class BodyTooLarge(ApiError):
    """The body is longer than the configuration allows; it was not read to its end."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            413,
            f"the request body is larger than {limit} bytes (server.max_body_bytes)",
            code="body_too_large",
            headers={"Connection": "close"},
        )


def api_error(error: Exception, request_id: str) -> ApiError:
    """What the client is told about `error`. An exception outside the table gives nothing away."""
    if isinstance(error, ApiError):
        return error
    for kind, status, type_, code in ENGINE_ERRORS:
        if isinstance(error, kind):
            return ApiError(
                status,
                str(error),
                type=type_,
                param=getattr(error, "param", None),
                code=code,
                headers=_retry_after(error),
                numbers=_numbers(error),
            )
    return ApiError(
        500,
        f"internal error; the server's log has the details under {request_id}",
        type="server_error",
        code="internal_error",
    )


def _retry_after(error: Exception) -> dict[str, str]:
    """When to come again, in whole seconds, where that makes sense."""
    if isinstance(error, QueueFull):
        return {"Retry-After": str(math.ceil(error.retry_after_s))}
    if isinstance(error, OutOfMemory):
        return {"Retry-After": str(RETRY_OUT_OF_MEMORY_S)}
    return {}


def _numbers(error: Exception) -> dict[str, int]:
    if isinstance(error, ContextLengthExceeded):
        return {"n_prompt": error.n_prompt, "n_ctx": error.n_ctx}
    return {}


def is_unexpected(error: Exception) -> bool:
    """True for what the table does not know: a bug, to be logged with its traceback."""
    return not isinstance(error, (ApiError, *(kind for kind, *_ in ENGINE_ERRORS)))
