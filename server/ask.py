"""Ask: what a request wants of the engine, whatever API it came through.

Each family of APIs translates its bodies into one of these (`RequestBody.ask`); prepare.py makes it
ready for the engine. Knows no JSON and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine import OtherFile, RequestOptions, SamplingParams, TemplateOptions

# What becomes of a chat that does not fit: it is refused, or loses its oldest turns.
ContextPolicy = Literal["error", "slide"]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's template. Messages are as OpenAI spells them.

    template: what the model's template gets beside them.
    effort: how hard to think: "none" = not at all; None = as the template likes.
    """

    messages: Sequence[Mapping[str, Any]]
    template: TemplateOptions = field(default_factory=TemplateOptions)
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to be continued, or its token ids, or some of both.

    suffix: what should follow the reply; echo: the reply begins with the prompt.
    """

    text: str | Sequence[int | str]
    suffix: str = ""
    echo: bool = False


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """Two texts, between which the reply goes, beside other files; cut to what fits the context."""

    before: str
    after: str
    files: Sequence[OtherFile] = ()


Prompt = ChatPrompt | TextPrompt | InfillPrompt


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text of a reply must be.

    value: a JSON schema, the text of a grammar or a regular expression; None for "json_object".
    param: the field of the request that holds it, for errors.
    """

    kind: Literal["json_schema", "json_object", "gbnf", "lark", "regex"]
    value: Any
    param: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools a reply may or must call.

    mode: "none" = no calls, "auto" = as the model likes, "required" = at least one.
    names: only these; None = any that is offered. parallel: more than one call in a reply.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """prompts: each is answered by itself; none: only that the model be there.
    n: choices for each prompt; best_of: how many to make, of which the n likeliest are shown.
    constraint: on each reply's text; context_policy: None = the config's;
    show_prompt: it is shown too, as the model reads it.
    """

    prompts: Sequence[Prompt]
    params: SamplingParams
    options: RequestOptions = field(default_factory=RequestOptions)
    n: int = 1
    best_of: int | None = None
    constraint: Constraint | None = None
    tool_choice: ToolChoice = ToolChoice()
    context_policy: ContextPolicy | None = None
    show_prompt: bool = False
