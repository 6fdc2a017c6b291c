"""llama-server's helpers: POST /tokenize, /detokenize, /apply-template, GET /props."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Literal

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


class DefaultSettings(WireObject):
    params: dict[str, Any]
    n_ctx: int


class Props(WireObject):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    model_ftype: str
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: Literal[False]
    endpoint_metrics: Literal[True]
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: Literal[False]


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


@router.get("/props", response_model=Props)
async def props(request: Request) -> Response:
    """What runs, and with which settings."""
    services = Services.of(request)
    engine = services.loader.engine()
    settings = DefaultSettings(
        params=services.config.sampling.model_dump(), n_ctx=engine.model.n_ctx
    )
    return json_response(
        Props(
            default_generation_settings=settings,
            total_slots=engine.config.max_running,
            model_alias=engine.model.name,
            model_path=str(engine.model.path),
            model_ftype=engine.model.file_type,
            modalities={"vision": False, "audio": False},
            endpoint_slots=True,
            endpoint_props=False,
            endpoint_metrics=True,
            chat_template=engine.chat_template.source,
            bos_token=engine.bos_token,
            eos_token=engine.eos_token,
            build_info="rushlight",
            is_sleeping=False,
        )
    )


def _piece(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)
