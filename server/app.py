"""create_app: routes, errors and the engine's loader put together. Knows no route's inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from server import docs, embeddings, estimate, home, models
from server.access import cors, require_key
from server.anthropic import messages
from server.config import AppConfig
from server.errors import ApiError
from server.llama_cpp import completion, infill, props, slots
from server.llama_cpp import text as llama_text
from server.loader import EngineLoader
from server.metrics import Metrics
from server.middleware import RequestMiddleware, RequestRecord, error_response
from server.ollama import chat as ollama_chat
from server.ollama import embed as ollama_embed
from server.ollama import generate as ollama_generate
from server.ollama import library as ollama_library
from server.ollama import models as ollama_models
from server.openai import chat, input_tokens, text
from server.openapi import TELLING_ERRORS, describe_bodies
from server.responses import routes
from server.services import Services

ROUTES = (
    *(home, docs, models, estimate),
    *(chat, input_tokens, text, routes, embeddings),
    messages,
    *(ollama_chat, ollama_generate, ollama_embed, ollama_models, ollama_library),
    *(completion, infill, llama_text, props, slots),
)


def create_app(config: AppConfig, loader: EngineLoader) -> FastAPI:
    """The application. It starts `loader` when it starts; ending it is the caller's."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loader.start()
        yield

    # FastAPI's own /docs loads scripts from elsewhere, and this server must work offline.
    app = FastAPI(
        title="Rushlight",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # RequestMiddleware makes them one path
        lifespan=lifespan,
        dependencies=[Depends(require_key)],
    )
    metrics = Metrics(loader)
    app.state.services = Services(config, loader, config.sampling.to_sampling_params(), metrics)
    for part in ROUTES:
        app.include_router(part.router, responses=TELLING_ERRORS)
    # Only what FastAPI itself raises: all else passes up to the middleware, which answers it.
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_middleware(RequestMiddleware, metrics=metrics)
    if config.server.cors_origins:  # around it all: pages may read errors, too
        app.add_middleware(**cors(config.server.cors_origins))
    describe_bodies(app)
    return app


async def _no_such_route(request: Request, error: Exception) -> Response:
    """404 and 405 in the envelope of all other errors."""
    assert isinstance(error, HTTPException), "registered for HTTPException"
    allowed = (error.headers or {}).get("Allow")
    path = request.url.path
    asked = f"{request.method} {path:.200}"
    meant = None if allowed else _with_one_v1(request, path)
    told = ApiError(
        error.status_code,
        f"{asked}: this route takes {allowed}"
        if allowed
        else f"{asked}: there is no such route" + (f"; there is {meant}" if meant else ""),
        code="method_not_allowed" if allowed else "not_found",
        headers=dict(error.headers or {}),
    )
    return error_response(told, RequestRecord.of(request))


def _with_one_v1(request: Request, path: str) -> str | None:
    """The route that a base URL without /v1, or with two of them, was meant to reach."""
    meant = "/v1/" + path.lstrip("/").removeprefix("v1/").removeprefix("v1/")
    scope = {**request.scope, "path": meant, "raw_path": meant.encode()}
    matches = (route.matches(scope)[0] for route in request.app.routes)
    return meant if meant != path and Match.FULL in matches else None
