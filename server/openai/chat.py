"""POST /v1/chat/completions: its body, and what that asks of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine import InvalidRequest, SamplingParams
from server.answer import answer
from server.ask import Ask, ChatPrompt
from server.encoder import Encoder
from server.openai.chat_objects import ChatEncoder
from server.openai.fields import MAX_LOGPROBS, CompletionFields
from server.openai.messages import Message

if TYPE_CHECKING:
    from engine import Engine

router = APIRouter()


class ChatCompletionRequest(CompletionFields):
    """Body of POST /v1/chat/completions."""

    elsewhere: ClassVar[dict[str, str]] = {"prompt": "/v1/completions"}

    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wanted_probs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else super().wanted_probs

    def ask(self, defaults: SamplingParams) -> Ask:
        if self.top_logprobs is not None and self.wanted_probs is None:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        prompt = ChatPrompt(
            [message.for_template() for message in self.messages],
            template_kwargs=self.chat_template_kwargs or {},
            add_generation_prompt=self.add_generation_prompt,
        )
        return Ask([prompt], self.sampling_params(defaults), n=self.n or 1)


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await answer(request, ChatCompletionRequest, _encoder)


def _encoder(body: ChatCompletionRequest, engine: Engine) -> Encoder:
    return ChatEncoder(engine, body)
