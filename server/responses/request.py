"""POST /v1/responses: its body, and what that asks of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, Field, PrivateAttr, model_validator

from engine import InvalidRequest, SamplingParams, TemplateOptions
from server.ask import Ask, ChatPrompt, Constraint, ContextPolicy
from server.openai.fields import MAX_LOGPROBS
from server.openai.tools import (
    MAX_TOOLS,
    AllowedToolList,
    AllowedTools,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    Tool,
    WireToolChoice,
    choose_tools,
    one_choice,
)
from server.request_object import Object, RequestBody, RequestObject
from server.responses.items import Input, as_items, chat_messages, unknown_keys
from server.sampling_fields import SamplingFields
from server.whole_numbers import Int32, Whole

_LIMIT = ("max_output_tokens", *SamplingFields.aliases["max_tokens"])
_LOGPROBS = "message.output_text.logprobs"


class FunctionTool(FunctionDefinition):
    """Only the client's own functions: the provider's tools are not here."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _is_a_function(cls, value: Any) -> Any:
        """Said before anything is missed that other kinds do not have."""
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise ValueError(f"the type {kind!r:.40} is not supported; only 'function' is")
        return value

    def as_chat_tool(self) -> Tool:
        """As the chat API spells it."""
        inside = self.model_dump(exclude={"type"}, exclude_none=True)
        return Tool.model_validate({"type": "function", "function": inside})


class FlatName(RequestObject):
    type: Literal["function"]
    name: str

    def as_chat_choice(self) -> NamedTool:
        """As the chat API spells it."""
        return NamedTool(type="function", function=FunctionName(name=self.name))


class FlatAllowedTools(RequestObject):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FlatName] = Field(min_length=1)

    def as_chat_choice(self) -> AllowedTools:
        """As the chat API spells it."""
        allowed = AllowedToolList(
            mode=self.mode, tools=[tool.as_chat_choice() for tool in self.tools]
        )
        return AllowedTools(type="allowed_tools", allowed_tools=allowed)


FlatToolChoice = Annotated[
    Literal["none", "auto", "required"] | FlatName | FlatAllowedTools,
    one_choice(
        {"function": FlatName, "allowed_tools": FlatAllowedTools},
        '{"type": "function", "name": ...} or '
        '{"type": "allowed_tools", "mode": ..., "tools": [...]}',
    ),
]


class TextFormat(RequestObject):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Object | None = Field(None, alias="schema")
    strict: bool | None = None  # a schema is always kept to


class TextOptions(RequestObject):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # a hint that no local model heeds


class ReasoningOptions(RequestObject):
    """Thinking is shown as it is, whichever summary of it is asked for."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(RequestObject):
    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class ResponsesRequest(SamplingFields, RequestBody):
    """Body of POST /v1/responses."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {**SamplingFields.aliases, "max_tokens": _LIMIT}
    elsewhere: ClassVar[dict[str, str]] = {"messages": "/v1/chat/completions"}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        }
    )
    prompt_field: ClassVar[str] = "input"

    model: str | None = None  # any name is accepted; replies carry the name of what is served
    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    metadata: dict[str, str] | None = None
    max_tokens: Int32 | None = Field(None, validation_alias=AliasChoices(*_LIMIT))
    tools: list[FunctionTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None  # thinking is not encrypted: its content is always there
    )
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None

    _earlier: list[Object] = PrivateAttr(default_factory=list)

    def resume(self, items: list[Object]) -> None:
        """Go on behind these items."""
        self._earlier = items

    @property
    def items(self) -> list[Object]:
        """The conversation so far."""
        return [*self._earlier, *as_items(self.input)]

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or ())

    @property
    def wanted_policy(self) -> ContextPolicy | None:
        """OpenAI's name for it is `truncation`."""
        asked: dict[str, ContextPolicy] = {"auto": "slide", "disabled": "error"}
        return super().wanted_policy or asked.get(self.truncation or "")

    def ask(self, defaults: SamplingParams) -> Ask:
        messages = chat_messages(self.items, self.instructions, len(self._earlier))
        if not messages or not self.input:
            raise InvalidRequest("input is empty", "input")
        tools = [tool.as_chat_tool() for tool in self.tools or ()]
        parallel = self.parallel_tool_calls is not False
        shown, choice = choose_tools(tools, self._chat_choice(), parallel)
        last = messages[-1]
        is_begun = last["role"] == "assistant" and "tool_calls" not in last
        template = TemplateOptions(tools=shown, continue_last=is_begun)
        effort = self.reasoning.effort if self.reasoning else None
        prompt = ChatPrompt(messages, template, effort)
        params = self.sampling_params(defaults)
        n_probs = (self.top_logprobs or 0) if self.wants_logprobs else None
        return Ask(
            [prompt],
            dataclasses.replace(params, n_probs=n_probs),
            constraint=self._constraint(),
            tool_choice=choice,
        )

    def echo(self, defaults: SamplingParams, policy: str) -> dict[str, Any]:
        """The fields of the Response that repeat the request; `policy` where it names none."""
        params = self.sampling_params(defaults)
        text = self.text.model_dump(exclude_none=True, by_alias=True) if self.text else {}
        choice: Any = self.tool_choice or "auto"
        if isinstance(choice, RequestObject):
            choice = choice.model_dump()
        return {
            "instructions": self.instructions,
            "max_output_tokens": params.max_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning and self.reasoning.effort, "summary": None},
            "store": self.store,
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": choice,
            "tools": [tool.model_dump() for tool in self.tools or ()],
            "top_p": params.top_p,
            "truncation": "auto" if (self.wanted_policy or policy) == "slide" else "disabled",
        }

    def unknown_keys_inside(self) -> Iterator[str]:
        yield from super().unknown_keys_inside()
        yield from unknown_keys(as_items(self.input))

    def _chat_choice(self) -> WireToolChoice | None:
        if isinstance(self.tool_choice, FlatName | FlatAllowedTools):
            return self.tool_choice.as_chat_choice()
        return self.tool_choice

    def _constraint(self) -> Constraint | None:
        wanted = self.text and self.text.format
        if not wanted or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return Constraint("json_object", None, "text.format")
        if wanted.schema_ is None:
            raise InvalidRequest("text.format.schema is missing", "text.format.schema")
        return Constraint("json_schema", wanted.schema_, "text.format.schema")
