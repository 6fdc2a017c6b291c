"""How Ollama tells errors: one text."""

from __future__ import annotations

from server.errors import ApiError
from server.wire_object import WireObject


class OllamaError(WireObject):
    error: str


def ollama_error(error: ApiError) -> OllamaError:
    return OllamaError(error=error.message)
