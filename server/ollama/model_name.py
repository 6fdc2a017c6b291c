"""Which model a body of Ollama's library means: there is but one."""

from __future__ import annotations

from typing import ClassVar

from server.errors import ApiError
from server.request_object import RequestBody


class NamesModel(RequestBody):
    """Base of bodies about one model. `name` is the older word for `model`."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"model": ("model", "name")}

    model: str | None = None
    name: str | None = None

    def check_is(self, served: str) -> None:
        """Raises ApiError: no model is named, or another one than is served."""
        name = self.model or self.name
        if not name:
            raise ApiError(400, "model: Field required", param="model")
        if name.removesuffix(":latest") != served:
            # Clients look for Ollama's words "not found".
            raise ApiError(404, f"model '{name:.100}' not found; only '{served}' is served here")
