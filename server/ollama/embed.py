"""POST /api/embed, and /api/embeddings as it was before: Ollama's embeddings."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field

from server.answer import read_body
from server.embed import embed, unit
from server.embeddings import MAX_INPUTS
from server.middleware import errors_as
from server.ollama.errors import OllamaError, ollama_error
from server.openapi import described
from server.request_object import Object, RequestBody
from server.services import Services
from server.whole_numbers import Whole
from server.wire_object import WireObject, json_response

router = APIRouter(dependencies=[errors_as(ollama_error)])

_NO_EFFECT = frozenset({"keep_alive"})


def _inputs(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("must be a string or a list of strings, and none may be empty")
    if len(texts) > MAX_INPUTS:
        raise ValueError(f"{len(texts)} texts in one request; at most {MAX_INPUTS}")
    return texts


Inputs = Annotated[list[str], BeforeValidator(_inputs, json_schema_input_type=str | list[str])]


class EmbedRequest(RequestBody):
    """Body of POST /api/embed. Without input it only asks that the model be loaded."""

    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {"stream": (False,)}
    without_effect: ClassVar[frozenset[str]] = _NO_EFFECT

    model: str  # any name is accepted; replies carry the name of what is served
    input: Inputs = Field(default_factory=list)
    truncate: bool = True  # texts that are too long are cut at their end
    dimensions: Whole | None = Field(None, ge=1)
    options: Object | None = None  # of loading and sampling: nothing is sampled here


class OldEmbedRequest(RequestBody):
    """Body of POST /api/embeddings."""

    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {"stream": (False,)}
    without_effect: ClassVar[frozenset[str]] = _NO_EFFECT

    model: str
    prompt: str = Field(min_length=1)
    options: Object | None = None


class Embedded(WireObject):
    """Vectors of length 1. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedded(WireObject):
    """A vector as the model made it, of any length."""

    embedding: list[float]


@router.post("/api/embed", **described(EmbedRequest, Embedded, error=OllamaError))
async def embed_texts(request: Request) -> Response:
    """A vector for each text, as Ollama does."""
    began_ns = time.monotonic_ns()
    body, _, headers = await read_body(request, EmbedRequest)
    found = await embed(request, body.input, "input", cut=body.truncate)
    reply = Embedded(
        model=Services.of(request).loader.engine().model.name,
        embeddings=[unit(vector, body.dimensions) for vector in found.vectors],
        total_duration=time.monotonic_ns() - began_ns,
        load_duration=0,
        prompt_eval_count=found.n_tokens,
    )
    return json_response(reply, headers)


@router.post("/api/embeddings", **described(OldEmbedRequest, OldEmbedded, error=OllamaError))
async def embed_prompt(request: Request) -> Response:
    """A vector for one text, as Ollama once did."""
    body, _, headers = await read_body(request, OldEmbedRequest)
    found = await embed(request, [body.prompt], "prompt", cut=True)
    reply = OldEmbedded(embedding=found.vectors[0])
    return json_response(reply, headers)
