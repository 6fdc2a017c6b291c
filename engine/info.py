"""What an engine tells of itself: how far it is with loading, and what it has loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the loading of a model is: a stage's name, and steps done of all steps in it."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the loaded model is, for people and for /v1/models."""

    name: str
    path: Path
    architecture: str
    n_params: int
    n_bytes: int
    file_type: str
    n_ctx: int  # in force
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_layer: int


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat as the model reads it: the text the template made, and its token ids."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A chat that a user saved by name.

    n_bytes: of the file; saved_at: seconds since the epoch; fits: of this model and kv_type.
    """

    name: str
    n_tokens: int
    n_bytes: int
    saved_at: float
    fits: bool
