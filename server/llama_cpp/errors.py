"""How llama-server tells errors: HTTP's status as the code, and types of its own."""

from __future__ import annotations

from typing import Final

from server.errors import ApiError
from server.wire_object import WireObject

_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_NUMBERS: Final = {"n_prompt": "n_prompt_tokens", "n_ctx": "n_ctx"}


class LlamaErrorBody(WireObject):
    """The numbers are there where the prompt is longer than the context."""

    code: int
    message: str
    type: str
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class LlamaError(WireObject):
    error: LlamaErrorBody


def llama_error(error: ApiError) -> LlamaError:
    kind = "exceed_context_size_error" if error.numbers else _TYPES.get(error.status, error.type)
    numbers = {_NUMBERS[name]: number for name, number in error.numbers.items()}
    body = LlamaErrorBody(code=error.status, message=error.message, type=kind, **numbers)
    return LlamaError(error=body)
