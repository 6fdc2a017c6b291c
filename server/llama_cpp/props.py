"""GET /props: what runs, as llama-server tells it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from server.llama_cpp.settings import GenerationSettings
from server.services import Services
from server.wire_object import WireObject, json_response

router = APIRouter()


class DefaultSettings(WireObject):
    params: GenerationSettings
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


@router.get("/props", response_model=Props)
async def props(request: Request) -> Response:
    """What runs, and with which settings."""
    services = Services.of(request)
    engine = services.loader.engine()
    n_ctx = engine.model.n_ctx
    settings = DefaultSettings(params=GenerationSettings.of(services.defaults, n_ctx), n_ctx=n_ctx)
    told = Props(
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
    return json_response(told)
