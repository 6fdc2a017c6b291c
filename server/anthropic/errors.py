"""How Anthropic tells errors, in replies and as the last event of a stream."""

from __future__ import annotations

from typing import Final, Literal

from server.errors import ApiError
from server.wire_object import WireObject

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicErrorBody(WireObject):
    type: str
    message: str


class AnthropicError(WireObject):
    type: Literal["error"]
    error: AnthropicErrorBody


def anthropic_error(error: ApiError) -> AnthropicError:
    default = "invalid_request_error" if error.status < 500 else "api_error"
    body = AnthropicErrorBody(type=_TYPES.get(error.status, default), message=error.message)
    return AnthropicError(type="error", error=body)
