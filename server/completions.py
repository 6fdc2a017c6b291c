"""POST /v1/completions and POST /v1/chat/completions: validate, encode, submit, collect or stream.

The two routes differ in how a prompt is made and in the objects they answer with; the rest is
`_answer`. Knows no JSON shapes and no SSE.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from engine import ContextLengthExceeded, InvalidRequest, SamplingParams
from server.body import read_json_object
from server.errors import ApiError
from server.middleware import RequestRecord
from server.objects import ChatObjects, Objects, TextObjects
from server.reply import Reply, while_connected
from server.requests import (
    AnyRequest,
    ChatCompletionRequest,
    CompletionRequest,
    SamplingRequest,
    name_as_sent,
    parse_request,
)
from server.schema import Usage
from server.services import Services
from server.stream import EventStream

if TYPE_CHECKING:
    from engine import Engine

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    services = Services.of(request)
    engine = services.loader.engine()
    asked, params, headers = await _read(request, ChatCompletionRequest)
    prompt_ids = await asyncio.to_thread(
        engine.encode_chat,
        [message.for_template() for message in asked.messages],
        add_generation_prompt=asked.add_generation_prompt,
        template_kwargs=asked.chat_template_kwargs,
    )
    objects = ChatObjects(engine.model.name, _shows_usage(asked))
    reply = Reply(engine, [prompt_ids], params, services.metrics)
    return await _answer(request, asked, reply, objects, headers)


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue a text, or several."""
    services = Services.of(request)
    engine = services.loader.engine()
    asked, params, headers = await _read(request, CompletionRequest)
    prompts = await asyncio.to_thread(_encode, engine, asked.prompt)
    objects = TextObjects(engine.model.name, _shows_usage(asked))
    try:
        reply = Reply(engine, prompts, params, services.metrics)
    except ContextLengthExceeded as error:
        error.param = "prompt"  # the engine cannot know what the field is called here
        raise
    return await _answer(request, asked, reply, objects, headers)


def _encode(engine: Engine, prompts: list[str | list[int]]) -> list[list[int]]:
    return [p if isinstance(p, list) else engine.encode_prompt(p) for p in prompts]


def _shows_usage(asked: SamplingRequest) -> bool:
    return asked.stream and asked.include_usage


async def _read(
    request: Request, kind: type[AnyRequest]
) -> tuple[AnyRequest, SamplingParams, dict[str, str]]:
    """The request, what it asks of the engine, and headers for the reply.

    Raises: ApiError, InvalidRequest, ClientDisconnect.
    """
    services = Services.of(request)
    server = services.config.server
    body = await read_json_object(request, server.max_body_bytes)
    # More could not all be submitted: the queue is their one way in.
    max_prompts = max(1, services.loader.engine().config.max_waiting)
    asked, unknown = parse_request(kind, body, max_prompts)
    if unknown and server.unknown_fields == "refuse":
        raise ApiError(400, f"unknown field: {unknown[0]}", param=unknown[0], code="unknown_field")
    headers = RequestRecord.of(request).ignore(unknown)
    try:
        return asked, asked.sampling_params(services.defaults), headers
    except InvalidRequest as error:
        raise name_as_sent(error, body) from None


async def _answer(
    request: Request,
    asked: SamplingRequest,
    reply: Reply,
    objects: Objects,
    headers: dict[str, str],
) -> Response:
    record = RequestRecord.of(request)
    if asked.stream:
        return EventStream(
            reply,
            objects,
            record,
            include_usage=asked.include_usage,
            progress_every_s=Services.of(request).config.server.progress_every_s,
            headers=headers,
        )
    try:
        choices = await while_connected(request.receive, reply.collect())
    finally:
        reply.cancel()
    record.usage = Usage.of([end for _, end in choices])
    return Response(objects.whole(choices).wire(), media_type="application/json", headers=headers)
