"""What the bodies of /completion and /infill share, beyond OpenAI's text completions."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field

from engine import RequestOptions
from server.openai.constraints import ConstraintFields
from server.openai.fields import MAX_CHOICES
from server.openai.text import CompletionRequest
from server.sampling_fields import ALIASES
from server.whole_numbers import Int32, Whole

_NEVER = -100.0  # the bias of a token that is banned


def _biases(value: Any) -> Any:
    """Pairs of a token id and a number, or an object of both; false bans a token."""
    if isinstance(value, dict):
        pairs = [(_spelled_id(key), bias) for key, bias in value.items()]
    elif isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value):
        pairs = [(_spelled_id(token), bias) for token, bias in value]
    else:
        raise ValueError("must be a list of pairs or an object, of token ids and numbers")
    biases = {token: _NEVER if bias is False else bias for token, bias in pairs}
    if len(biases) < len(pairs):
        raise ValueError("has two biases for one token")
    return biases


def _spelled_id(token: Any) -> int:
    """A token id, which a key of an object can only spell."""
    if isinstance(token, str):
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise ValueError(f"'{token:.40}' is not a token id; /tokenize tells the ids of a text")
        return int(token)
    if type(token) is not int:  # a bool is an int, and a list cannot be a key
        raise ValueError("has a token id that is not a whole number")
    return token


Biases = Annotated[
    dict[int, float],
    BeforeValidator(
        _biases, json_schema_input_type=list[list[int | float | bool]] | dict[str, float | bool]
    ),
]


class NativeBody(ConstraintFields):
    """Without a limit, a reply goes on until the model ends it or the context is full."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {
        **ALIASES,
        "n": ("n", "n_cmpl"),
        "n_probs": ("n_probs", "logprobs"),
    }
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        **CompletionRequest.inactive,
        "image_data": ([],),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }
    prompt_field: ClassVar[str] = "prompt"

    n: Whole | None = Field(
        None, ge=1, le=MAX_CHOICES, validation_alias=AliasChoices("n", "n_cmpl")
    )
    n_probs: Int32 | None = Field(None, ge=0, validation_alias=AliasChoices("n_probs", "logprobs"))
    logit_bias: Biases | None = None
    n_indent: Int32 | None = None
    t_max_predict_ms: Int32 | None = None  # 0 or less = no limit
    return_tokens: bool = False
    post_sampling_probs: bool = False  # in what a token was drawn from, not the model's own
    response_fields: list[str] = Field(default_factory=list)

    def least_tokens(self) -> int:
        """With none, the prompt is only read into the cache."""
        return 0

    @property
    def wants_prompt(self) -> bool:
        """Whether the reply is to show it."""
        return not self.response_fields or "prompt" in self.response_fields

    @property
    def grammar_text(self) -> str:
        """The grammar that is asked for, where it is one; "" = none."""
        constraint = self.constraint()
        is_grammar = constraint and constraint.kind in ("gbnf", "lark")
        return constraint.value if constraint and is_grammar else ""

    def options(self) -> RequestOptions:
        options = super().options()
        limit_ms = max(self.t_max_predict_ms or 0, 0)
        return dataclasses.replace(
            options, n_indent=self.n_indent or 0, max_write_s=limit_ms / 1e3 or None
        )
