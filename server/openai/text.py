"""POST /v1/completions: its body, and what that asks of the engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import Field, PlainValidator, ValidationInfo

from engine import InvalidRequest, RequestOptions, SamplingParams
from server.answer import answer
from server.ask import Ask, TextPrompt
from server.encoder import Encoder
from server.openai.constraints import ConstraintFields
from server.openai.fields import MAX_CHOICES, MAX_LOGPROBS
from server.openai.schema import TextCompletion
from server.openai.text_objects import TextEncoder
from server.openapi import described
from server.whole_numbers import Whole

if TYPE_CHECKING:
    from engine import Engine

DEFAULT_MAX_TOKENS = 16  # OpenAI's

router = APIRouter()


def _prompts(value: Any, info: ValidationInfo) -> list[str | list[int]]:
    """One prompt or a list of them, each a string or token ids: always a list of prompts.

    Counted before anything looks into them: a body has room for a million.
    """
    prompts = value if isinstance(value, list) and not is_ids(value) else [value]
    assert info.context, "parse_request gives one"
    if len(prompts) > (most := info.context["max_prompts"]):
        raise ValueError(
            f"{len(prompts)} prompts in one request; at most {most} (queue.max_waiting)"
        )
    if not prompts or not all(isinstance(p, str) or (p and is_ids(p)) for p in prompts):
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of such lists, "
            "and no list may be empty"
        )
    return prompts


def is_ids(value: Any) -> bool:
    """Whether it is a list of token ids, and not empty."""
    return isinstance(value, list) and set(map(type, value)) == {int}  # fast: they may be millions


Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]


class CompletionRequest(ConstraintFields):
    """Body of POST /v1/completions."""

    elsewhere: ClassVar[dict[str, str]] = {"messages": "/v1/chat/completions"}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        **ConstraintFields.inactive,
        "chat_template_kwargs": ({},),
        "continue_final_message": (False,),
        "documents": ([],),
        "parallel_tool_calls": (True, False),
        "reasoning_effort": (),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "top_logprobs": (0,),
    }
    prompt_field: ClassVar[str] = "prompt"

    prompt: Prompts
    suffix: str | None = None
    echo: bool = False
    best_of: Whole | None = Field(None, ge=1, le=MAX_CHOICES)
    logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def least_tokens(self) -> int:
        """With `echo` and `logprobs`, evaluations ask for those of the prompt only."""
        return 0

    @property
    def wanted_probs(self) -> int | None:
        return super().wanted_probs if self.logprobs is None else self.logprobs

    def options(self) -> RequestOptions:
        """An editor asks for the text at the cursor again and again: only the newest counts."""
        options = super().options()
        if not (self.suffix and self.user):
            return options
        return dataclasses.replace(options, replaces_key=f"suffix of {self.user}")

    def ask(self, defaults: SamplingParams) -> Ask:
        n, best_of = self.n or 1, self.best_of or self.n or 1
        if best_of < n:
            raise InvalidRequest(f"best_of must be at least n, which is {n}", "best_of")
        if best_of > n and self.stream:
            raise InvalidRequest(
                "best_of cannot be streamed: what is best shows at the end", "best_of"
            )
        if self.echo and self.suffix:
            raise InvalidRequest("echo cannot be given together with suffix", "echo")
        params = self.sampling_params(dataclasses.replace(defaults, max_tokens=DEFAULT_MAX_TOKENS))
        if best_of > n and params.n_probs is None:
            params = dataclasses.replace(params, n_probs=0)
        prompts = [TextPrompt(prompt, self.suffix or "", self.echo) for prompt in self.prompt]
        return Ask(
            prompts,
            params,
            self.options(),
            n=n,
            best_of=best_of if best_of > n else None,
            constraint=self.constraint(),
        )


@router.post("/v1/completions", **described(CompletionRequest, TextCompletion, TextCompletion))
async def completions(request: Request) -> Response:
    """Continue a text, or several."""
    return await answer(request, CompletionRequest, _encoder)


def _encoder(body: CompletionRequest, engine: Engine) -> Encoder:
    return TextEncoder(engine, body)
