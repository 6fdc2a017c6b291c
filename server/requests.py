"""The two request bodies: what they may hold, and the SamplingParams they ask for.

A null is an absent field. Aliases of other servers are read under their own names. Knows nothing
of HTTP; the fields that are only refused or ignored are in known_fields.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from engine import InvalidRequest, SamplingParams
from server.errors import ApiError
from server.known_fields import unknown_fields
from server.messages import Message, RequestObject

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for text completions
MAX_STOP_STRINGS = 64

# Other names for one thing; a request may use any of them, but not two that disagree.
ALIASES = {
    "max_tokens": ("max_tokens", "max_completion_tokens", "n_predict"),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),
    "repeat_last_n": ("repeat_last_n", "repetition_context_size"),
}


# What the engine's machine code takes. Ranges are SamplingParams' to check.
Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def _alias(name: str) -> Any:
    return Field(None, validation_alias=AliasChoices(*ALIASES[name]))


def _stop_strings(value: Any) -> Any:
    """A string or a list of strings; empty ones can stop nothing and are dropped."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise ValueError("must be a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed")
    return [text for text in strings if text]


def _token_biases(value: Any) -> Any:
    """JSON keys are strings; they must spell token ids."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers")
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise ValueError(f"the key '{key:.40}' is not a token id")
    return {int(key): bias for key, bias in value.items()}


def _prompts(value: Any, info: ValidationInfo) -> list[str | list[int]]:
    """One prompt or a list of them, each a string or token ids: always a list of prompts.

    Counted before anything looks into them: a body has room for a million.
    """
    prompts = value if isinstance(value, list) and not _is_ids(value) else [value]
    assert info.context, "parse_request gives one"
    if len(prompts) > (most := info.context["max_prompts"]):
        raise ValueError(
            f"{len(prompts)} prompts in one request; at most {most} (queue.max_waiting)"
        )
    if not prompts or not all(isinstance(p, str) or (p and _is_ids(p)) for p in prompts):
        raise ValueError(
            "must be a string, a list of strings, a list of token ids or a list of such lists, "
            "and no list may be empty"
        )
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}  # fast: they may be millions


class StreamOptions(RequestObject):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # hides token lengths from the network; no effect here


class SamplingRequest(RequestObject):
    """What both bodies share. None = absent: config.toml decides."""

    elsewhere: ClassVar[dict[str, str]] = {}  # fields of another route -> that route

    model: str | None = None  # any name is accepted; replies carry the name of what is served
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Int32 | None = _alias("max_tokens")  # -1 = until the context is full
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = _alias("repeat_penalty")
    repeat_last_n: Int32 | None = _alias("repeat_last_n")
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: (
        Annotated[
            dict[int, float],
            BeforeValidator(_token_biases, json_schema_input_type=dict[str, float]),
        ]
        | None
    ) = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)  # -1 = a new one each time
    stop: (
        Annotated[list[str], BeforeValidator(_stop_strings, json_schema_input_type=str | list[str])]
        | None
    ) = None
    ignore_eos: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream should end with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with everything that the request sets. Raises: InvalidRequest."""
        return dataclasses.replace(defaults, **dict(self._given()))

    def _given(self) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(SamplingParams):
            name = field.name
            value = getattr(self, name) if name in type(self).model_fields else None
            if value is not None:
                yield name, _READ[name](value) if name in _READ else value


# Where the wire and the engine say the same thing differently.
_READ: dict[str, Any] = {
    "max_tokens": lambda n: None if n == -1 else n,
    "seed": lambda seed: None if seed == -1 else seed & (2**63 - 1),  # never negative
    "stop": tuple,
}


class ChatCompletionRequest(SamplingRequest):
    """Body of POST /v1/chat/completions."""

    elsewhere: ClassVar[dict[str, str]] = {"prompt": "/v1/completions"}

    messages: list[Message] = Field(min_length=1)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(SamplingRequest):
    """Body of POST /v1/completions."""

    elsewhere: ClassVar[dict[str, str]] = {"messages": "/v1/chat/completions"}

    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]

    def sampling_params(self, defaults: SamplingParams) -> SamplingParams:
        """As for chat, but a text completion without a limit ends after 16 tokens."""
        limited = dataclasses.replace(defaults, max_tokens=COMPLETION_MAX_TOKENS)
        return super().sampling_params(limited)


AnyRequest = TypeVar("AnyRequest", bound=SamplingRequest)


def parse_request(
    kind: type[AnyRequest], body: dict[str, Any], max_prompts: int
) -> tuple[AnyRequest, list[str]]:
    """The body as a `kind`, and the names of the fields that nobody knows. Raises: ApiError 400."""
    given = {name: value for name, value in body.items() if value is not None}
    _refuse_misplaced(kind, given)
    _refuse_disagreeing_aliases(given)
    try:
        request = kind.model_validate(given, context={"max_prompts": max_prompts})
    except ValidationError as error:
        raise _refusal(error) from None
    return request, _unknown(request)


def name_as_sent(error: InvalidRequest, body: dict[str, Any]) -> InvalidRequest:
    """`error` about a field, told by the name that `body` has for it."""
    aliases = ALIASES.get(error.param or "", ())
    for name in aliases:
        if body.get(name) is not None:
            return InvalidRequest(str(error).replace(aliases[0], name, 1), name)
    return error


def _refuse_misplaced(kind: type[SamplingRequest], given: dict[str, Any]) -> None:
    for name, route in kind.elsewhere.items():
        if name in given:
            raise ApiError(
                400,
                f"{name} belongs to {route}, not to this route",
                param=name,
                code="unsupported_parameter",
            )


def _refuse_disagreeing_aliases(given: dict[str, Any]) -> None:
    for names in ALIASES.values():
        used = [name for name in names if name in given]
        if any(given[name] != given[used[0]] for name in used):
            raise ApiError(400, f"{' and '.join(used)} disagree; send one of them", param=used[1])


def _unknown(request: SamplingRequest) -> list[str]:
    """Paths of the keys that nobody knows. Raises: ApiError for one that we cannot obey."""
    aliases = {name for names in ALIASES.values() for name in names}
    extra = {k: v for k, v in (request.model_extra or {}).items() if k not in aliases}
    return [*unknown_fields(extra), *dict.fromkeys(request.unknown_keys_inside())]


def _refusal(error: ValidationError) -> ApiError:
    """The first thing wrong, named by its path in the body."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = _path(first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {problem}", param=path)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
