"""Text and tokens: POST /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response

from server.answer import read_body, translate
from server.ask import ChatPrompt
from server.openai.chat import ChatCompletionRequest
from server.openapi import described
from server.prepare import render
from server.request_object import RequestBody
from server.services import Services
from server.whole_numbers import Int32
from server.wire_object import WireObject, json_response

router = APIRouter()


class TokenizeRequest(RequestBody):
    """add_special: with what the model wants around a text; parse_special: control tokens' texts
    count as these; off, as in messages, they are text.
    """

    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {}

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class TokenPiece(WireObject):
    """piece: text, or bytes where it is a part of a character."""

    id: int
    piece: str | list[int]


class Tokenized(WireObject):
    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(RequestBody):
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {}

    tokens: list[Int32]


class Detokenized(WireObject):
    content: str


class AppliedTemplate(WireObject):
    prompt: str


@router.post("/tokenize", **described(TokenizeRequest, Tokenized))
async def tokenize(request: Request) -> Response:
    """The tokens of a text."""
    body, _, headers = await read_body(request, TokenizeRequest)
    engine = Services.of(request).loader.engine()
    ids = await asyncio.to_thread(
        engine.tokenize,
        body.content,
        add_special=body.add_special,
        parse_special=body.parse_special,
    )
    if not body.with_pieces:
        return json_response(Tokenized(tokens=ids), headers)
    pieces = [TokenPiece(id=i, piece=_piece(engine.token_bytes(i))) for i in ids]
    return json_response(Tokenized(tokens=pieces), headers)


@router.post("/detokenize", **described(DetokenizeRequest, Detokenized))
async def detokenize(request: Request) -> Response:
    """The text of tokens, control tokens by their names."""
    body, _, headers = await read_body(request, DetokenizeRequest)
    engine = Services.of(request).loader.engine()
    text = await asyncio.to_thread(engine.detokenize, body.tokens)
    return json_response(Detokenized(content=text), headers)


@router.post("/apply-template", **described(ChatCompletionRequest, AppliedTemplate))
async def apply_template(request: Request) -> Response:
    """A chat as the model reads it."""
    services = Services.of(request)
    body, raw, headers = await read_body(request, ChatCompletionRequest)
    [prompt] = translate(body, raw, services).prompts
    assert isinstance(prompt, ChatPrompt), "a chat was asked for"
    rendered = await asyncio.to_thread(render, services.loader.engine(), prompt)
    return json_response(AppliedTemplate(prompt=rendered.text), headers)


def _piece(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)
