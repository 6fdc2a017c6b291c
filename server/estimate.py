"""POST /v1/estimate: what a chat would cost, without running it. GET /v1/memory: what memory is
used for.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Literal

from fastapi import APIRouter, Request, Response

from engine import ContextLengthExceeded, Estimate
from server.answer import read_body, translate
from server.openai.chat import ChatCompletionRequest
from server.openapi import described
from server.prepare import prepare
from server.services import Services
from server.wire_object import WireObject, json_response

router = APIRouter()


class EstimateObject(WireObject):
    """Seconds are by measured speeds, and null while nothing was measured, or nothing fits.

    max_tokens: of the reply, as asked for or as much as there is room for; fits: whether prompt
    and reply have room in the context.
    """

    object: Literal["estimate"]
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    n_ctx: int
    fits: bool
    requests_ahead: int
    queue_seconds: float | None
    prefill_seconds: float | None
    seconds_to_first_token: float | None
    seconds_to_last_token: float | None


class ChatMemoryObject(WireObject):
    n_tokens: int
    n_bytes: int
    is_running: bool


class MemoryObject(WireObject):
    """Bytes. weights, libraries, kv, workspace and process are apart, and together make up rss."""

    weights: int
    libraries: int
    kv: int
    workspace: int
    process: int
    rss: int
    weights_mapped: int
    weights_cached: int | None
    kv_limit: int
    disk_cache: int
    chats: list[ChatMemoryObject]


@router.post("/v1/estimate", **described(ChatCompletionRequest, EstimateObject))
async def estimate(request: Request) -> Response:
    """How long a chat would take if it came now, and whether it fits."""
    services = Services.of(request)
    engine = services.loader.engine()
    body, raw, headers = await read_body(request, ChatCompletionRequest)
    ask = translate(body, raw, services)
    ids = (await asyncio.to_thread(prepare, engine, ask)).prompts[0].ids
    n_wanted, n_ctx = ask.params.max_tokens, engine.model.n_ctx
    try:
        found = await asyncio.to_thread(engine.estimate, ids, n_wanted, ask.options.use_cache)
    except ContextLengthExceeded:
        found = Estimate(len(ids), 0, 0, None, None, None)
    room = max(n_ctx - len(ids), 0)
    n_reply = room if n_wanted is None else n_wanted
    reply = EstimateObject(
        object="estimate",
        prompt_tokens=found.n_prompt,
        cached_tokens=found.n_cached,
        max_tokens=n_reply,
        n_ctx=n_ctx,
        fits=n_reply <= room and room > 0,
        requests_ahead=found.n_ahead,
        queue_seconds=found.queue_s,
        prefill_seconds=found.prefill_s,
        seconds_to_first_token=found.first_token_s,
        seconds_to_last_token=found.last_token_s,
    )
    return json_response(reply, headers)


@router.get("/v1/memory", response_model=MemoryObject)
async def memory(request: Request) -> Response:
    """What memory is used for, measured now."""
    engine = Services.of(request).loader.engine()
    report = await asyncio.to_thread(engine.memory)
    told = MemoryObject(**dataclasses.asdict(report), rss=report.rss)
    return json_response(told)
