"""GET /health, /metrics, /v1/models and /v1/models/{id}: what is served, and how it is doing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from engine import EngineClosed
from server.errors import ApiError, ModelLoading
from server.metrics import CONTENT_TYPE
from server.openapi import errors_of
from server.schema import Health, Model, ModelList, ModelMeta
from server.services import Services
from server.wire_object import json_response

router = APIRouter()


@router.head("/v1/health", include_in_schema=False)
@router.get("/v1/health", include_in_schema=False)  # llama-server's other name for it
@router.head("/health", include_in_schema=False)
@router.get("/health", responses={503: {"model": Health}}, response_model=Health)
async def health(request: Request) -> Response:
    """200 when requests can be answered; 503 and how far loading is until then, 503 and why when
    the engine has stopped for good.
    """
    loader = Services.of(request).loader
    try:
        engine = loader.engine()
    except ModelLoading:
        now = loader.progress
        loading = Health(status="loading", stage=now.stage, done=now.done, total=now.total)
        return json_response(loading, status=503)
    if engine.failure is not None:
        failed = Health(status="failed", message=str(engine.failure))
        return json_response(failed, status=503)
    cached = await asyncio.to_thread(engine.weights_cached)
    share: dict[str, Any] = {}
    if cached is not None:
        share["weights_resident"] = round(cached / engine.model.n_bytes, 3)
    ok = Health(status="ok", running=engine.n_running, waiting=engine.n_waiting, **share)
    return json_response(ok)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters and gauges in Prometheus' text format, while the model loads too."""
    services = Services.of(request)
    try:
        report = await asyncio.to_thread(services.loader.engine().memory)
    except (ModelLoading, EngineClosed):
        report = None
    return Response(services.metrics.text(report), media_type=CONTENT_TYPE)


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", response_model=ModelList)
async def models(request: Request) -> Response:
    """The one model that is served, as a list."""
    served = _served(request)
    return json_response(
        ModelList(
            object="list", data=[served], first_id=served.id, last_id=served.id, has_more=False
        )
    )


@router.head("/v1/models/{model_id:path}", include_in_schema=False)
@router.get(
    "/v1/models/{model_id:path}",
    response_model=Model,
    responses=errors_of({404: "Another model is served."}),
)
async def model(request: Request, model_id: str) -> Response:
    """The model that is served, by its name."""
    served = _served(request)
    if model_id != served.id:
        raise ApiError(
            404,
            f"the model '{model_id:.100}' is not served here; '{served.id}' is",
            param="model",
            code="model_not_found",
        )
    return json_response(served)


def _served(request: Request) -> Model:
    loader = Services.of(request).loader
    info = loader.engine().model
    return Model(
        id=info.name,
        object="model",
        created=loader.loaded_at,
        owned_by="rushlight",
        type="model",
        display_name=info.name,
        created_at=datetime.fromtimestamp(loader.loaded_at, UTC).isoformat(),
        lifecycle="active",
        max_input_tokens=info.n_ctx,
        max_tokens=info.n_ctx,
        meta=ModelMeta(
            architecture=info.architecture,
            n_vocab=info.n_vocab,
            n_ctx=info.n_ctx,
            n_ctx_train=info.n_ctx_train,
            n_embd=info.n_embd,
            n_layer=info.n_layer,
            n_params=info.n_params,
            size=info.n_bytes,
            ftype=info.file_type,
        ),
    )
