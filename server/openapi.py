"""/openapi.json with the bodies that we read ourselves: FastAPI sees only the rest of each route.

Knows the request models and the routes that take them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from server.openai.chat import ChatCompletionRequest
from server.openai.text import CompletionRequest
from server.request_object import RequestBody

_REF = "#/components/schemas/{model}"

BODIES: dict[str, type[RequestBody]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}


def describe_bodies(app: FastAPI) -> None:
    """Make `app.openapi()` tell what BODIES holds."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        document = described()
        definitions = models_json_schema(
            [(model, "validation") for model in BODIES.values()], ref_template=_REF
        )[1]
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        for path, model in BODIES.items():
            document["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {
                    "application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}
                },
            }
        return document

    app.openapi = openapi  # type: ignore[method-assign]
