"""The routes of /v1/responses: to make one, to count one's tokens, and to look at those kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from server.answer import answer_body, count_prompt, read_body
from server.encoder import Encoder
from server.openai.input_tokens import InputTokens
from server.openapi import described, errors_of
from server.responses.objects import ResponseEncoder
from server.responses.request import ResponsesRequest
from server.responses.schema import AnyEvent, DeletedResponse, InputItems, ResponseObject
from server.responses.store import KeptResponse, ResponseStore
from server.services import Services
from server.wire_object import json_response

if TYPE_CHECKING:
    from engine import Engine

router = APIRouter()

_NOT_KEPT = errors_of({404: "There is no such response, or no longer."})


@router.post(
    "/v1/responses",
    **described(
        ResponsesRequest,
        ResponseObject,
        AnyEvent,
        also={404: "previous_response_id names none that is kept."},
    ),
)
async def create(request: Request) -> Response:
    """Answer a conversation, and keep it unless `store` is false."""
    body, raw, headers = await read_body(request, ResponsesRequest)
    store = ResponseStore.of(request)
    _resume(body, store)
    defaults = Services.of(request).defaults

    def keep(response: ResponseObject) -> None:
        if body.store:
            items = [*body.items, *(item.model_dump() for item in response.output)]
            store.keep(response.id, KeptResponse(response.wire(), items, len(body.items)))

    def make_encoder(body: ResponsesRequest, engine: Engine) -> Encoder:
        asked = body.stream_options and body.stream_options.include_progress
        return ResponseEncoder(
            engine,
            body.echo(defaults, engine.config.context_policy),
            keep,
            logprobs=body.wants_logprobs,
            progress=bool(asked),
        )

    return await answer_body(request, body, raw, headers, make_encoder)


@router.post(
    "/v1/responses/input_tokens",
    **described(
        ResponsesRequest, InputTokens, also={404: "previous_response_id names none that is kept."}
    ),
)
async def input_tokens(request: Request) -> Response:
    """Count the tokens of a conversation, as /v1/responses would read it."""
    body, raw, headers = await read_body(request, ResponsesRequest)
    _resume(body, ResponseStore.of(request))
    n = await count_prompt(request, body, raw)
    return json_response(InputTokens(object="response.input_tokens", input_tokens=n), headers)


@router.get("/v1/responses/{id}", response_model=ResponseObject, responses=_NOT_KEPT)
async def retrieve(request: Request, id: str) -> Response:
    """One that was kept."""
    kept = ResponseStore.of(request).get(id)
    return Response(kept.wire, media_type="application/json")


@router.get("/v1/responses/{id}/input_items", response_model=InputItems, responses=_NOT_KEPT)
async def input_items(request: Request, id: str) -> Response:
    """What came before it."""
    kept = ResponseStore.of(request).get(id)
    items = list(kept.items[: kept.n_input])
    ids = [item.get("id") for item in items]
    return json_response(
        InputItems(object="list", data=items, first_id=ids[0], last_id=ids[-1], has_more=False)
    )


@router.delete("/v1/responses/{id}", response_model=DeletedResponse, responses=_NOT_KEPT)
async def delete(request: Request, id: str) -> Response:
    """Forget one."""
    ResponseStore.of(request).drop(id)
    return json_response(DeletedResponse(id=id, object="response", deleted=True))


def _resume(body: ResponsesRequest, store: ResponseStore) -> None:
    """Raises: ApiError 404."""
    if body.previous_response_id is not None:
        kept = store.get(body.previous_response_id, "previous_response_id")
        body.resume(list(kept.items))
