"""POST /api/chat: Ollama's chats."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine import SamplingParams, TemplateOptions
from server.answer import answer
from server.ask import Ask, ChatPrompt, ContextPolicy
from server.middleware import errors_as
from server.ollama.errors import OllamaError, ollama_error
from server.ollama.fields import NoImages, OllamaBody
from server.ollama.objects import Call, ChatLine, OllamaEncoder, ReplyMessage
from server.openai.tools import MAX_TOOLS, Tool, choose_tools
from server.openapi import described
from server.request_object import Object, RequestObject

router = APIRouter()


class OllamaMessage(RequestObject):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: NoImages = None
    tool_calls: list[Object] | None = None  # their arguments are objects
    tool_name: str | None = None
    tool_call_id: str | None = None

    def for_template(self) -> Object:
        """As OpenAI spells it. A null is an absent key."""
        return {
            "role": self.role,
            "content": self.content or "",
            "reasoning_content": self.thinking,
            "tool_calls": self.tool_calls,
            "name": self.tool_name,
            "tool_call_id": self.tool_call_id,
        }


class OllamaChatRequest(OllamaBody):
    """Body of POST /api/chat. Without messages it only asks that the model be loaded."""

    elsewhere: ClassVar[dict[str, str]] = {"prompt": "/api/generate"}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        name: idle for name, idle in OllamaBody.inactive.items() if name != "truncate"
    }

    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    truncate: bool | None = None

    @property
    def wanted_policy(self) -> ContextPolicy | None:
        """Ollama's name for it is `truncate`."""
        asked: dict[bool | None, ContextPolicy] = {True: "slide", False: "error"}
        return super().wanted_policy or asked.get(self.truncate)

    def ask(self, defaults: SamplingParams) -> Ask:
        tools, choice = choose_tools(self.tools or [], None, parallel=True)
        prompts = []
        if self.messages:
            last = self.messages[-1]
            is_begun = last.role == "assistant" and not last.tool_calls
            template = TemplateOptions(tools=tools, continue_last=is_begun)
            messages = [message.for_template() for message in self.messages]
            prompts.append(ChatPrompt(messages, template, self.effort))
        return Ask(prompts, self.params(defaults), constraint=self.constraint(), tool_choice=choice)


class ChatEncoder(OllamaEncoder[ChatLine]):
    def line(self, content: str, thinking: str, calls: list[Call], **more: Any) -> ChatLine:
        said: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if calls:
            said["tool_calls"] = calls
        return ChatLine(message=ReplyMessage(role="assistant", content=content, **said), **more)


@router.post(
    "/api/chat",
    dependencies=[errors_as(ollama_error)],
    **described(OllamaChatRequest, ChatLine, ChatLine, OllamaError, "application/x-ndjson"),
)
async def ollama_chat(request: Request) -> Response:
    """Answer a conversation, as Ollama does."""
    return await answer(request, OllamaChatRequest, lambda body, engine: ChatEncoder(engine, body))
