"""An Ask made ready for the engine: prompts as token ids, and what takes each reply apart.

Takes milliseconds for long prompts: not for the event loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from engine import (
    ContentDelta,
    Delta,
    FittedChat,
    InvalidRequest,
    RenderedChat,
    ReplyRules,
    RequestOptions,
    SamplingParams,
    TemplateOptions,
)
from server.ask import Ask, ChatPrompt, InfillPrompt, Prompt, TextPrompt
from server.errors import ApiError
from server.next_turn import OpenChat

if TYPE_CHECKING:
    from engine import Engine

# Of a chat that loses turns a reply may have this part of the context, or max_tokens if those are
# fewer: with more, clients that always ask for much would have short chats.
_LEAST_ROOM: Final = 4


class Parser(Protocol):
    """Takes one reply apart as it comes; the engine's ReplyParser is one."""

    def push(self, text: str) -> list[Delta]:
        """What is certain with this text."""

    def finish(self) -> list[Delta]:
        """What was held back, now that nothing follows."""


class PlainParser:
    """Of replies without any structure."""

    def push(self, text: str) -> list[Delta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        return []


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands before its replies. n_hidden: tokens at its beginning without text."""

    text: str
    n_hidden: int


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """ids: of the prompt; parser: makes a fresh one for each choice; echo: what stands before each
    reply; chat: what may go on; n_dropped, n_cut: messages, or tokens, that had no place;
    shown: the prompt as the model reads it, where it is to be shown.
    """

    ids: list[int]
    options: RequestOptions
    parser: Callable[[], Parser]
    echo: Echo | None = None
    chat: OpenChat | None = None
    n_dropped: int = 0
    n_cut: int = 0
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """n: choices to show for each prompt; n_made: choices to make, from which they are taken;
    parallel_calls: whether a choice may have more than one tool call.
    """

    prompts: list[PreparedPrompt]
    params: SamplingParams
    n: int = 1
    n_made: int = 1
    parallel_calls: bool = True

    @property
    def n_dropped(self) -> int:
        """Messages that had no place, of all prompts."""
        return sum(prompt.n_dropped for prompt in self.prompts)

    @property
    def n_cut(self) -> int:
        """Tokens that had no place, of all prompts."""
        return sum(prompt.n_cut for prompt in self.prompts)


def most_at_once(engine: Engine) -> int:
    """Generations of one request: more could not all be submitted, as all go through the queue."""
    return max(1, engine.config.max_waiting)


def prepare(engine: Engine, ask: Ask) -> Prepared:
    """Raises: InvalidRequest, ChatTemplateError, ApiError."""
    n_made = ask.best_of or ask.n
    most = most_at_once(engine)
    if len(ask.prompts) * n_made > most:
        raise ApiError(
            400,
            f"n: {len(ask.prompts)} prompts with {n_made} choices each are more than the "
            f"{most} that may wait (queue.max_waiting)",
            param="best_of" if ask.best_of else "n",
        )
    prompts = [_prepare_prompt(engine, ask, prompt) for prompt in ask.prompts]
    if ask.show_prompt:
        prompts = [dataclasses.replace(p, shown=engine.detokenize(p.ids)) for p in prompts]
    return Prepared(prompts, ask.params, ask.n, n_made, ask.tool_choice.parallel)


def render(engine: Engine, prompt: ChatPrompt) -> RenderedChat:
    """A conversation as the model reads it. Raises: InvalidRequest, ChatTemplateError."""
    return engine.render_chat(prompt.messages, _template(engine, prompt))


def _template(engine: Engine, prompt: ChatPrompt) -> TemplateOptions:
    """What was asked for, with thinking turned on and off in the template's own way. Effort without
    a way to tell it is a hint that a model may not heed.
    """
    if not prompt.effort:
        return prompt.template
    thinks = prompt.effort != "none"
    switch = engine.chat_format.thinking_kwargs(thinks)
    if thinks and "reasoning_effort" in switch:
        switch["reasoning_effort"] = prompt.effort
    asked = prompt.template.template_kwargs
    return dataclasses.replace(prompt.template, template_kwargs={**switch, **asked})


def _prepare_prompt(engine: Engine, ask: Ask, prompt: Prompt) -> PreparedPrompt:
    if isinstance(prompt, ChatPrompt):
        return _prepare_chat(engine, ask, prompt)
    if ask.context_policy == "slide":
        raise InvalidRequest(
            "context_policy: a text has no turns that could be dropped; a chat has",
            "context_policy",
        )
    options = _constrained(engine, ask, None, ())
    if isinstance(prompt, InfillPrompt):
        fitted = engine.fit_infill(prompt.before, prompt.after, prompt.files)
        return PreparedPrompt(fitted.prompt_ids, options, PlainParser, n_cut=fitted.n_cut)
    ids = _text_ids(engine, prompt)
    if not prompt.echo:
        return PreparedPrompt(ids, options, PlainParser)
    if ask.params.n_probs is not None:
        options = dataclasses.replace(options, prompt_logprobs=True)
    return PreparedPrompt(ids, options, PlainParser, _echo(engine, prompt, ids))


def _prepare_chat(engine: Engine, ask: Ask, prompt: ChatPrompt) -> PreparedPrompt:
    chat = _fit(engine, ask, prompt)
    tail = engine.chat_format.prompt_tail(chat.prompt_ids)
    options = _constrained(engine, ask, chat.prompt_ids, prompt.template.tools)
    visible = options.visible_ids | engine.chat_format.visible_ids
    return PreparedPrompt(
        chat.prompt_ids,
        dataclasses.replace(options, visible_ids=visible),
        lambda: engine.chat_format.parser(tail, prompt.template.tools),
        chat=OpenChat(chat.messages, _template(engine, prompt)),
        n_dropped=chat.n_dropped,
    )


def _fit(engine: Engine, ask: Ask, prompt: ChatPrompt) -> FittedChat:
    """The chat as tokens; without its oldest turns, where it is too long and that is asked for."""
    messages = [dict(message) for message in prompt.messages]
    if (ask.context_policy or engine.config.context_policy) != "slide":
        return FittedChat(messages, render(engine, prompt).ids, 0)
    most = engine.model.n_ctx // _LEAST_ROOM
    n_reply = min(ask.params.max_tokens or most, most)
    return engine.fit_chat(messages, n_reply, _template(engine, prompt))


def _constrained(
    engine: Engine, ask: Ask, chat_ids: list[int] | None, tools: Sequence[Mapping[str, Any]]
) -> RequestOptions:
    """The options with the grammar of what the reply must be."""
    choice, constraint = ask.tool_choice, ask.constraint
    if choice.names is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in choice.names]
    must_call = choice.mode == "required"
    if must_call and constraint:
        raise InvalidRequest(
            f"{constraint.param} cannot be combined with a tool_choice that asks for a call",
            constraint.param,
        )
    rules = ReplyRules(tools=tools, must_call=must_call, parallel=choice.parallel)
    if constraint:
        rules = dataclasses.replace(
            rules, kind=constraint.kind, source=constraint.value, param=constraint.param
        )
    return dataclasses.replace(ask.options, grammar=engine.constrain(rules, chat_ids))


def _text_ids(engine: Engine, prompt: TextPrompt) -> list[int]:
    if not prompt.suffix:
        if isinstance(prompt.text, str):
            return engine.encode_prompt(prompt.text)
        return _checked(engine, _joined_ids(engine, prompt.text))
    if not isinstance(prompt.text, str):
        raise InvalidRequest("suffix needs a prompt that is text", "suffix")
    return engine.encode_infill(prompt.text, prompt.suffix)


def _joined_ids(engine: Engine, parts: Sequence[int | str]) -> list[int]:
    """Ids, and the ids of texts among them; a text that comes first may begin with BOS."""
    ids: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, int):
            ids.append(part)
        elif i == 0:
            ids += engine.encode_prompt(part)
        else:
            ids += engine.tokenize(part, add_special=False, parse_special=True)
    return ids


def _checked(engine: Engine, ids: Sequence[int]) -> list[int]:
    """The engine checks them too, but not before they are decoded."""
    n_vocab = engine.model.n_vocab
    for token_id in ids:
        if not 0 <= token_id < n_vocab:
            raise InvalidRequest(
                f"token id {token_id} is outside the vocabulary (0..{n_vocab - 1})", "prompt"
            )
    return list(ids)


def _echo(engine: Engine, prompt: TextPrompt, ids: list[int]) -> Echo:
    if not isinstance(prompt.text, str):
        return Echo(engine.decode(ids), 0)
    bos = engine.encode_prompt("")
    name = b"".join(map(engine.token_bytes, bos)).decode()
    is_written = name and prompt.text.startswith(name)
    return Echo(prompt.text, 0 if is_written else len(bos))
