"""The objects of the routes that only tell: the model, health, errors. One model each."""

from __future__ import annotations

from typing import Literal

from server.wire_object import WireObject


class ModelMeta(WireObject):
    """llama.cpp's `meta`, plus what kind of model it is."""

    architecture: str
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_params: int
    size: int  # bytes of the file
    ftype: str


class Model(WireObject):
    """By OpenAI's names and by Anthropic's, whose clients ask on the same path."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int
    meta: ModelMeta


class ModelList(WireObject):
    object: Literal["list"]
    data: list[Model]
    first_id: str
    last_id: str
    has_more: Literal[False]


class Health(WireObject):
    """`stage`, `done` and `total` are there while the model loads, `message` when it failed, the
    rest when all is well. weights_resident: how much of the model's file the system has in memory,
    from 0 to 1: the rest is read from the disk first. Absent where the system does not tell.
    """

    status: Literal["ok", "loading", "failed"]
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    message: str | None = None
    running: int | None = None
    waiting: int | None = None
    weights_resident: float | None = None


class ErrorBody(WireObject):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(WireObject):
    error: ErrorBody
