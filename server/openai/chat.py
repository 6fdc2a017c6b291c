"""POST /v1/chat/completions: its body, and what that asks of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine import InvalidRequest, SamplingParams, TemplateOptions
from server.answer import answer
from server.ask import Ask, ChatPrompt
from server.encoder import Encoder
from server.openai.chat_objects import ChatEncoder
from server.openai.constraints import ConstraintFields
from server.openai.fields import MAX_LOGPROBS
from server.openai.messages import Message
from server.openai.schema import ChatCompletion, ChatCompletionChunk
from server.openai.tools import MAX_TOOLS, Tool, WireToolChoice, choose_tools
from server.openapi import described
from server.request_object import Object
from server.whole_numbers import Int32, Whole

if TYPE_CHECKING:
    from engine import Engine

router = APIRouter()


class ChatCompletionRequest(ConstraintFields):
    """Body of POST /v1/chat/completions."""

    elsewhere: ClassVar[dict[str, str]] = {"prompt": "/v1/completions"}
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = {
        **ConstraintFields.inactive,
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    messages: list[Message] = Field(min_length=1)
    n_predict: Int32 | None = None  # max_tokens by another name, but that it may be 0
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: WireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    documents: list[Object] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def wanted_probs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else super().wanted_probs

    def least_tokens(self) -> int:
        """llama.cpp's clients ask for nothing to have a chat in the cache. By OpenAI's names it is
        a mistake, which it is to others who mean no limit.
        """
        return 0 if self.n_predict == 0 else 1

    def ask(self, defaults: SamplingParams) -> Ask:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        parallel = self.parallel_tool_calls is not False
        tools, choice = choose_tools(self.tools or [], self.tool_choice, parallel)
        prompt = ChatPrompt(
            [message.for_template() for message in self.messages],
            TemplateOptions(
                tools=tools,
                documents=self.documents or (),
                template_kwargs=self.chat_template_kwargs or {},
                add_generation_prompt=self.add_generation_prompt is not False,
                continue_last=self._continues_last(),
            ),
            self.reasoning_effort,
        )
        return Ask(
            [prompt],
            self.sampling_params(defaults),
            self.options(),
            n=self.n or 1,
            constraint=self.constraint(),
            tool_choice=choice,
        )

    def _continues_last(self) -> bool:
        """Whether the reply goes on with the last message. Where nothing is said, it does with one
        of the assistant's, as llama.cpp's; elsewhere it is asked for. Raises: InvalidRequest.
        """
        asked = self.continue_final_message
        if asked and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt cannot both be true",
                "continue_final_message",
            )
        last = self.messages[-1]
        is_begun = last.role == "assistant" and not last.tool_calls
        continues = asked or (asked is None and is_begun and self.add_generation_prompt is None)
        if continues and len(self.messages) > 1 and self.messages[-2].role == "assistant":
            raise InvalidRequest(
                "the last message cannot be continued, as two of the assistant's are at the end",
                "messages",
            )
        return continues


@router.post(
    "/v1/chat/completions",
    **described(ChatCompletionRequest, ChatCompletion, ChatCompletionChunk),
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    return await answer(request, ChatCompletionRequest, _encoder)


def _encoder(body: ChatCompletionRequest, engine: Engine) -> Encoder:
    return ChatEncoder(engine, body)
