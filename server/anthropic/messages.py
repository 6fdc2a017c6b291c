"""POST /v1/messages and /v1/messages/count_tokens: their body, and what it asks of the engine."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import AliasChoices, Field

from engine import InvalidRequest, SamplingParams, TemplateOptions
from server.answer import answer, count_prompt, read_body
from server.anthropic.content import AnthropicMessage, Content, chat_messages
from server.anthropic.errors import AnthropicError, anthropic_error
from server.anthropic.objects import MessageEncoder
from server.anthropic.schema import AnyEvent, CountedTokens, ReplyMessage
from server.anthropic.tools import AnthropicTool, AnthropicToolChoice, choose
from server.ask import Ask, ChatPrompt, Constraint
from server.middleware import errors_as
from server.openai.tools import MAX_TOOLS
from server.openapi import described
from server.request_object import Object, RequestBody, RequestObject
from server.sampling_fields import SamplingFields, StopStrings
from server.whole_numbers import Whole
from server.wire_object import json_response

router = APIRouter(dependencies=[errors_as(anthropic_error)])

_STOP = ("stop_sequences", "stop")


class Thinking(RequestObject):
    """budget_tokens is a wish, as it is with Anthropic: nothing ends the thinking at that."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = Field(None, ge=1)
    display: Literal["summarized"] | None = None


class OutputFormat(RequestObject):
    type: Literal["json_schema"]
    schema_: Object = Field(alias="schema")


class OutputConfig(RequestObject):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


# What Claude Code sends with every request. Nothing is cleared here, so it asks for nothing.
_KEEP_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}


class MessagesRequest(SamplingFields, RequestBody):
    """Body of both routes. The model thinks only where it is asked to."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {**SamplingFields.aliases, "stop": _STOP}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        "container": (),
        "context_management": ({}, {"edits": []}, {"edits": [_KEEP_THINKING]}),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "betas",
            "cache_control",
            "diagnostics",
            "inference_geo",
            "metadata",
            "service_tier",
            "user_profile_id",
            "workspace_id",
        }
    )

    model: str | None = None  # any name is accepted; replies carry the name of what is served
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: Content | None = None
    stop: StopStrings | None = Field(None, validation_alias=AliasChoices(*_STOP))
    tools: list[AnthropicTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the earlier name of output_config.format

    def ask(self, defaults: SamplingParams) -> Ask:
        tools, choice = choose(self.tools or [], self.tool_choice)
        messages = chat_messages(self.messages, self.system)
        last = messages[-1]
        is_begun = last["role"] == "assistant" and "tool_calls" not in last
        template = TemplateOptions(tools=tools, continue_last=is_begun)
        prompt = ChatPrompt(messages, template, self._effort())
        return Ask(
            [prompt],
            self.sampling_params(defaults),
            constraint=self._constraint(),
            tool_choice=choice,
        )

    def _effort(self) -> str:
        if self.thinking is None or self.thinking.type == "disabled":
            return "none"
        return (self.output_config and self.output_config.effort) or "medium"

    def _constraint(self) -> Constraint | None:
        of_config = self.output_config and self.output_config.format
        if of_config and self.output_format:
            raise InvalidRequest(
                "output_format and output_config.format cannot be given together", "output_format"
            )
        if of_config:
            return Constraint("json_schema", of_config.schema_, "output_config.format.schema")
        if self.output_format:
            return Constraint("json_schema", self.output_format.schema_, "output_format.schema")
        return None


@router.post(
    "/v1/messages", **described(MessagesRequest, ReplyMessage, AnyEvent, error=AnthropicError)
)
async def messages(request: Request) -> Response:
    """Answer a conversation, as Anthropic's API does."""
    return await answer(request, MessagesRequest, lambda body, engine: MessageEncoder(engine))


@router.post(
    "/v1/messages/count_tokens", **described(MessagesRequest, CountedTokens, error=AnthropicError)
)
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation, as /v1/messages would read it."""
    body, raw, headers = await read_body(request, MessagesRequest)
    counted = CountedTokens(input_tokens=await count_prompt(request, body, raw))
    return json_response(counted, headers)
