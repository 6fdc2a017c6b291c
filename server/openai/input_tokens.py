"""POST /v1/chat/completions/input_tokens: how long a chat's prompt is, without answering it."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response

from server.answer import read_body, translate
from server.openai.chat import ChatCompletionRequest
from server.openapi import described
from server.prepare import prepare
from server.services import Services
from server.wire_object import WireObject

router = APIRouter()


class InputTokens(WireObject):
    object: Literal["response.input_tokens"]
    input_tokens: int


@router.post("/v1/chat/completions/input_tokens", **described(ChatCompletionRequest, InputTokens))
async def input_tokens(request: Request) -> Response:
    """Count the tokens of a chat, as /v1/chat/completions would read it."""
    services = Services.of(request)
    body, raw, headers = await read_body(request, ChatCompletionRequest)
    ask = translate(body, raw, services)
    prepared = await asyncio.to_thread(prepare, services.loader.engine(), ask)
    n = len(prepared.prompts[0].ids)
    counted = InputTokens(object="response.input_tokens", input_tokens=n)
    return Response(counted.wire(), media_type="application/json", headers=headers)
