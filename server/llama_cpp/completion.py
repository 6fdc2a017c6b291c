"""POST /completion: llama-server's text completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, PlainValidator, ValidationError, ValidationInfo

from engine import SamplingParams
from server.answer import answer
from server.ask import Ask, TextPrompt
from server.llama_cpp.errors import LlamaError, llama_error
from server.llama_cpp.fields import NativeBody
from server.llama_cpp.objects import NativeEncoder
from server.llama_cpp.schema import AnyCompletion, AnyPiece
from server.middleware import errors_as
from server.openapi import described
from server.parse_request import first_problem
from server.request_object import RequestObject
from server.services import Services

router = APIRouter(dependencies=[errors_as(llama_error)])


def _no_media(value: list[str] | None) -> None:
    if value:
        raise ValueError("is not supported: this model reads text only")


class PromptObject(RequestObject):
    """For those who send images with a text, which is not supported."""

    prompt_string: str
    multimodal_data: Annotated[list[str] | None, AfterValidator(_no_media)] = None


OnePrompt = str | list[int | str] | PromptObject


def _prompts(value: Any, info: ValidationInfo) -> list[OnePrompt]:
    """One prompt or a list of them: always a list of prompts. A list with a token id in it is one.

    Counted before anything looks into them: a body has room for a million.
    """
    is_many = isinstance(value, list) and int not in set(map(type, value))
    prompts = value if is_many else [value]
    assert info.context, "parse_request gives one"
    if len(prompts) > (most := info.context["max_prompts"]):
        raise ValueError(
            f"{len(prompts)} prompts in one request; at most {most} (queue.max_waiting)"
        )
    if not prompts:
        raise ValueError("must not be empty")
    return [_one_prompt(prompt) for prompt in prompts]


def _one_prompt(value: Any) -> OnePrompt:
    if isinstance(value, dict):
        try:
            return PromptObject.model_validate(value)
        except ValidationError as error:
            raise ValueError(": ".join(first_problem(error, value))) from None
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and set(map(type, value)) <= {int, str}:
        return value
    raise ValueError("must be a text, a list of token ids and texts, or a list of such prompts")


def _text_of(prompt: OnePrompt) -> str | list[int | str]:
    return prompt.prompt_string if isinstance(prompt, PromptObject) else prompt


Prompts = Annotated[
    list[OnePrompt],
    PlainValidator(
        _prompts,
        json_schema_input_type=str
        | PromptObject
        | list[int | str]
        | list[str | PromptObject | list[int | str]],
    ),
]


class NativeCompletionRequest(NativeBody):
    """Body of POST /completion. Several prompts, or choices, are answered with a list."""

    elsewhere: ClassVar[dict[str, str]] = {
        "messages": "/v1/chat/completions",
        "suffix": "/infill, as input_suffix",
        "input_prefix": "/infill",
        "input_suffix": "/infill",
        "echo": "/v1/completions",
        "best_of": "/v1/completions",
    }

    prompt: Prompts

    def ask(self, defaults: SamplingParams) -> Ask:
        return Ask(
            [TextPrompt(_text_of(prompt)) for prompt in self.prompt],
            self.sampling_params(defaults),
            self.options(),
            n=self.n or 1,
            constraint=self.constraint(),
            show_prompt=self.wants_prompt,
        )


_DESCRIBED: dict[str, Any] = described(NativeCompletionRequest, AnyCompletion, AnyPiece, LlamaError)


@router.post("/completion", **_DESCRIBED)
@router.post("/completions", **_DESCRIBED)
async def completion(request: Request) -> Response:
    """Continue a text, or several, as llama-server does."""
    defaults = Services.of(request).defaults
    return await answer(
        request,
        NativeCompletionRequest,
        lambda body, engine: NativeEncoder(engine, body, body.sampling_params(defaults)),
    )
