"""/api/pull, and the other routes by which Ollama's clients change its library of models.

The library here is the one model that is served, and it stays: who pulls that has it already.
"""

from __future__ import annotations

from typing import ClassVar

from fastapi import APIRouter, Request, Response

from server.answer import read_body
from server.errors import ApiError
from server.middleware import errors_as
from server.ollama.errors import OllamaError, ollama_error
from server.ollama.model_name import NamesModel
from server.openapi import described
from server.services import Services
from server.wire_object import WireObject

router = APIRouter(dependencies=[errors_as(ollama_error)])


class PullRequest(NamesModel):
    """Body of POST /api/pull."""

    without_effect: ClassVar[frozenset[str]] = frozenset({"insecure", "username", "password"})

    stream: bool = True


class Pulled(WireObject):
    status: str


@router.post(
    "/api/pull",
    **described(
        PullRequest, Pulled, Pulled, OllamaError, "application/x-ndjson", {404: "No such model."}
    ),
)
async def pull(request: Request) -> Response:
    """Have a model: the one that is served is there, and no other can be fetched."""
    body, _, headers = await read_body(request, PullRequest)
    body.check_is(Services.of(request).loader.engine().model.name)
    kind = "application/x-ndjson" if body.stream else "application/json"
    return Response(Pulled(status="success").wire() + "\n", media_type=kind, headers=headers)


@router.post("/api/push", include_in_schema=False)
@router.post("/api/create", include_in_schema=False)
@router.post("/api/copy", include_in_schema=False)
@router.delete("/api/delete", include_in_schema=False)
@router.head("/api/blobs/{digest}", include_in_schema=False)
@router.post("/api/blobs/{digest}", include_in_schema=False)
async def change() -> Response:
    """Refused, in words that Ollama's clients show."""
    raise ApiError(404, "one model is served here, and the library cannot be changed")
