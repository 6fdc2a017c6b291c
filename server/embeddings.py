"""POST /v1/embeddings: OpenAI's embeddings."""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field

from server.answer import read_body
from server.embed import embed, unit
from server.openai.text import is_ids
from server.openapi import described
from server.request_object import RequestBody
from server.services import Services
from server.whole_numbers import Whole
from server.wire_object import WireObject, json_response

MAX_INPUTS = 2048  # OpenAI's limit

router = APIRouter()


def _inputs(value: Any) -> list[str | list[int]]:
    """One text or a list of them, each a string or token ids: always a list of texts."""
    texts = value if isinstance(value, list) and not is_ids(value) else [value]
    if len(texts) > MAX_INPUTS:
        raise ValueError(f"{len(texts)} texts in one request; at most {MAX_INPUTS}")
    if not texts or not all(text and (isinstance(text, str) or is_ids(text)) for text in texts):
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of such lists, "
            "and none may be empty"
        )
    return texts


Inputs = Annotated[
    list[str | list[int]],
    BeforeValidator(_inputs, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class EmbeddingsRequest(RequestBody):
    """Body of POST /v1/embeddings."""

    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        "embd_normalize": (2,),
        "stream": (False,),
        "truncate_prompt_tokens": (),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset({"user"})

    model: str | None = None  # any name is accepted; replies carry the name of what is served
    input: Inputs
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = Field(None, ge=1)


class Embedding(WireObject):
    """`embedding` has length 1; in base64 it is 32-bit floats, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(WireObject):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(WireObject):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


@router.post("/v1/embeddings", **described(EmbeddingsRequest, EmbeddingList))
async def embeddings(request: Request) -> Response:
    """A vector for each text: the model's own pooling, or the mean where it names none."""
    body, _, headers = await read_body(request, EmbeddingsRequest)
    embedded = await embed(request, body.input, "input")
    vectors = [unit(vector, body.dimensions) for vector in embedded.vectors]
    is_float = body.encoding_format == "float"
    reply = EmbeddingList(
        object="list",
        data=[
            Embedding(object="embedding", index=i, embedding=v if is_float else _base64(v))
            for i, v in enumerate(vectors)
        ],
        model=Services.of(request).loader.engine().model.name,
        usage=EmbeddingUsage(prompt_tokens=embedded.n_tokens, total_tokens=embedded.n_tokens),
    )
    return json_response(reply, headers)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()
