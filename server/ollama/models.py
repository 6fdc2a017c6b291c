"""GET /api/tags, /api/ps, /api/version and POST /api/show: what Ollama's clients ask of models.

One model is served, and it stays. It goes by its name with and without `:latest`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Request, Response

from engine import ModelInfo
from server.answer import read_body
from server.middleware import errors_as
from server.ollama.errors import OllamaError, ollama_error
from server.ollama.model_name import NamesModel
from server.openapi import described
from server.services import Services
from server.wire_object import WireObject, json_response

if TYPE_CHECKING:
    from engine import Engine

# Of Ollama's API as it is here: clients ask before they use what came later.
API_VERSION: Final = "0.13.0"
NEVER: Final = "9999-12-31T23:59:59Z"

router = APIRouter(
    dependencies=[errors_as(ollama_error)],
    responses={500: {"model": OllamaError}, 503: {"model": OllamaError}},
)


class Details(WireObject):
    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(WireObject):
    """digest: tells models apart, and is no checksum: a file of gigabytes is not read for it."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class ListedModels(WireObject):
    models: list[ListedModel]


class LoadedModel(ListedModel):
    expires_at: str
    size_vram: int
    context_length: int


class LoadedModels(WireObject):
    models: list[LoadedModel]


class ShowRequest(NamesModel):
    """Body of POST /api/show. `verbose` changes nothing."""

    without_effect: ClassVar[frozenset[str]] = frozenset({"system", "template", "options"})

    verbose: bool = False


class ShownModel(WireObject):
    modified_at: str
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]


class Version(WireObject):
    version: str


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", response_model=ListedModels)
async def tags(request: Request) -> Response:
    """The one model that is served, as Ollama lists it."""
    return json_response(ListedModels(models=[ListedModel(**_listed(request))]))


@router.get("/api/ps", response_model=LoadedModels)
async def ps(request: Request) -> Response:
    """The same one: it is loaded."""
    info = Services.of(request).loader.engine().model
    loaded = LoadedModel(
        **_listed(request), expires_at=NEVER, size_vram=0, context_length=info.n_ctx
    )
    return json_response(LoadedModels(models=[loaded]))


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", response_model=Version)
async def version() -> Response:
    """The version of Ollama's API that these routes follow."""
    return json_response(Version(version=API_VERSION))


@router.post(
    "/api/show",
    **described(ShowRequest, ShownModel, error=OllamaError, also={404: "No such model."}),
)
async def show(request: Request) -> Response:
    """What the model is."""
    body, _, headers = await read_body(request, ShowRequest)
    loader = Services.of(request).loader
    engine = loader.engine()
    info = engine.model
    body.check_is(info.name)
    shown = ShownModel(
        modified_at=_time(loader.loaded_at),
        modelfile=f"FROM {info.path.name}\n",
        parameters=f"num_ctx {info.n_ctx}",
        template=engine.chat_template.source,
        details=_details(info),
        model_info=_model_info(info),
        capabilities=_capabilities(engine),
    )
    return json_response(shown, headers)


def _listed(request: Request) -> dict[str, Any]:
    """The fields of a ListedModel."""
    loader = Services.of(request).loader
    engine = loader.engine()
    info = engine.model
    what = f"{info.name} {info.n_bytes} {info.n_params} {info.file_type}"
    return {
        "name": info.name,
        "model": info.name,
        "modified_at": _time(loader.loaded_at),
        "size": info.n_bytes,
        "digest": hashlib.sha256(what.encode()).hexdigest(),
        "details": _details(info),
        "capabilities": _capabilities(engine),
    }


def _details(info: ModelInfo) -> Details:
    return Details(
        parent_model="",
        format="gguf",
        family=info.architecture,
        families=[info.architecture],
        parameter_size=_parameter_size(info.n_params),
        quantization_level=info.file_type,
    )


def _model_info(info: ModelInfo) -> dict[str, Any]:
    """The file's metadata by its own names, as far as clients read them; but the context is the one
    in force: they fill what they are told.
    """
    return {
        "general.architecture": info.architecture,
        "general.basename": info.name,  # which some clients show as the model's name
        "general.parameter_count": info.n_params,
        f"{info.architecture}.context_length": info.n_ctx,
        f"{info.architecture}.embedding_length": info.n_embd,
        f"{info.architecture}.block_count": info.n_layer,
    }


def _capabilities(engine: Engine) -> list[str]:
    """Tools every model can be told of, in words where its template has no place for them."""
    able = ["completion", "tools"]
    if engine.chat_format.thinking:
        able.append("thinking")
    if engine.can_infill:
        able.append("insert")
    return able


def _parameter_size(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
