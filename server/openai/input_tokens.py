"""POST /v1/chat/completions/input_tokens: how long a chat's prompt is, without answering it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from server.answer import count_prompt, read_body
from server.openai.chat import ChatCompletionRequest
from server.openapi import described
from server.wire_object import WireObject, json_response

router = APIRouter()


class InputTokens(WireObject):
    object: Literal["response.input_tokens"]
    input_tokens: int


@router.post("/v1/chat/completions/input_tokens", **described(ChatCompletionRequest, InputTokens))
async def input_tokens(request: Request) -> Response:
    """Count the tokens of a chat, as /v1/chat/completions would read it."""
    body, raw, headers = await read_body(request, ChatCompletionRequest)
    n = await count_prompt(request, body, raw)
    counted = InputTokens(object="response.input_tokens", input_tokens=n)
    return json_response(counted, headers)
