"""/openapi.json: bodies that we read ourselves, streams, and the errors that any route may give.

FastAPI sees only the rest of each route. A route that generates is declared with `described`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from server.schema import Error

# What any route that reads a body and asks the engine may answer; why is in errors.py.
ERRORS: Final = {
    400: "The request is wrong, or asks for what is not supported; the message names the field.",
    401: "The server wants an API key, and this request has none of them.",
    409: "A newer request has taken its place.",
    413: "The body is too large.",
    415: "The body is encoded.",
    429: "Too many requests wait; Retry-After says when to try again.",
    500: "The engine failed.",
    503: "The model is still loading, the server is closing, or memory is short.",
    504: "Its time was up before the reply began.",
}

# And any that only tells.
TELLING_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Error, "description": ERRORS[status]} for status in (401, 500, 503)
}


def errors_of(why: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Further ones of a route, for its decorator's `responses`."""
    return {status: {"model": Error, "description": reason} for status, reason in why.items()}


_REF: Final = "#/components/schemas/{model}"
_LATER: Final = "model "  # begins a reference until all models, and so their names, are known

_models: dict[str, tuple[type[BaseModel], JsonSchemaMode]] = {}


def described(
    body: type[BaseModel],
    reply: type[BaseModel],
    chunk: type[BaseModel] | None = None,
    error: type[BaseModel] = Error,
    stream_type: str = "text/event-stream",
    also: Mapping[int, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Arguments of a route's decorator. chunk: each object of a stream; None = there is none;
    also: further statuses of errors, and why.
    """
    answered: dict[str, Any] = {"description": "The reply.", "content": _json(reply)}
    if chunk:
        answered["content"][stream_type] = {"schema": _reference(chunk, "serialization")}
        answered["description"] = "The reply; with `stream` each piece of it as an event."
    errors = {
        status: {"description": why, "content": _json(error)}
        for status, why in {**ERRORS, **also}.items()
    }
    asked = {"application/json": {"schema": _reference(body, "validation")}}
    return {
        "response_model": None,
        "responses": {200: answered, **errors},
        "openapi_extra": {"requestBody": {"required": True, "content": asked}},
    }


def describe_bodies(app: FastAPI) -> None:
    """Make `app.openapi()` hold the schemas that `described` refers to."""
    openapi_of_routes = app.openapi

    def openapi() -> dict[str, Any]:
        document = openapi_of_routes()
        references, definitions = models_json_schema(list(_models.values()), ref_template=_REF)
        _resolve(document["paths"], references)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(model, "serialization")}}


def _reference(model: type[BaseModel], mode: JsonSchemaMode) -> dict[str, str]:
    key = f"{_LATER}{model.__module__}.{model.__qualname__} {mode}"
    _models[key] = (model, mode)
    return {"$ref": key}


def _resolve(node: Any, references: dict[Any, Any]) -> None:
    """Put the models' names in place. Two families may have models of one name."""
    if isinstance(node, dict):
        if str(node.get("$ref", "")).startswith(_LATER):
            node.update(references[_models[node["$ref"]]])
        for child in node.values():
            _resolve(child, references)
    elif isinstance(node, list):
        for child in node:
            _resolve(child, references)
