"""The way of every request that generates: read, translate, prepare, submit, collect or stream.

A route of any family is one call of `answer`. Knows no fields, no objects and no bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response

from engine import ContextLengthExceeded, InvalidRequest
from server import notes
from server.ask import Ask
from server.body import read_json_object
from server.encoder import Encoder
from server.errors import ApiError
from server.middleware import RequestRecord
from server.parse_request import AnyBody, name_as_sent, parse_request
from server.prepare import most_at_once, prepare
from server.reply import Reply, while_connected
from server.reply_events import Totals
from server.request_object import RequestBody
from server.services import Services
from server.stream import ReplyStream
from server.wire_object import json_response

if TYPE_CHECKING:
    from engine import Engine


async def answer(
    request: Request,
    kind: type[AnyBody],
    make_encoder: Callable[[AnyBody, Engine], Encoder],
) -> Response:
    """Reply to `request`, whose body is a `kind`.

    Raises: ApiError, EngineError, ClientDisconnect; the middleware answers those.
    """
    return await answer_body(request, *await read_body(request, kind), make_encoder)


async def answer_body(
    request: Request,
    body: AnyBody,
    raw: dict[str, Any],
    headers: dict[str, str],
    make_encoder: Callable[[AnyBody, Engine], Encoder],
) -> Response:
    """The same, of a body that `read_body` read."""
    services = Services.of(request)
    engine = services.loader.engine()
    record = RequestRecord.of(request)
    ask = translate(body, raw, services)
    try:
        prepared = await asyncio.to_thread(prepare, engine, ask)
        reply = Reply(engine, prepared, services.metrics)
    except ContextLengthExceeded as error:
        error.param = body.prompt_field  # the engine cannot know what the field is called here
        raise
    encoder = make_encoder(body, engine)
    if body.stream:
        every_s = services.config.server.progress_every_s
        told = notes.headers(prepared.n_dropped, prepared.n_cut, await reply.difference())
        all_headers = {**headers, **told}
        return ReplyStream(reply, encoder, record, progress_every_s=every_s, headers=all_headers)
    try:
        choices, ends = await while_connected(request.receive, reply.collect())
    finally:
        reply.cancel()
    record.totals = totals = Totals.of(ends)
    whole = encoder.whole(choices, ends)
    told = notes.headers(totals.n_dropped, totals.n_cut, totals.difference)
    return json_response(whole, {**headers, **told})


async def read_body(
    request: Request, kind: type[AnyBody]
) -> tuple[AnyBody, dict[str, Any], dict[str, str]]:
    """The body, the JSON it was, and headers for the reply. Raises: ApiError, ClientDisconnect."""
    services = Services.of(request)
    server = services.config.server
    raw = await read_json_object(request, server.max_body_bytes)
    body, unknown = parse_request(kind, raw, most_at_once(services.loader.engine()))
    if unknown and server.unknown_fields == "refuse":
        raise ApiError(400, f"unknown field: {unknown[0]}", param=unknown[0], code="unknown_field")
    return body, raw, RequestRecord.of(request).ignore(unknown)


async def count_prompt(request: Request, body: RequestBody, raw: dict[str, Any]) -> int:
    """Tokens of the prompt that `body` asks an answer to. Raises: ApiError, EngineError."""
    services = Services.of(request)
    ask = translate(body, raw, services)
    prepared = await asyncio.to_thread(prepare, services.loader.engine(), ask)
    return len(prepared.prompts[0].ids)


def translate(body: RequestBody, raw: dict[str, Any], services: Services) -> Ask:
    """What `body` asks for; what is wrong with it is named as in `raw`. Raises: InvalidRequest."""
    try:
        ask = body.ask(services.defaults)
    except InvalidRequest as error:
        raise name_as_sent(error, type(body), raw) from None
    return dataclasses.replace(ask, context_policy=body.wanted_policy)
