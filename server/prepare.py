"""An Ask made ready for the engine: prompts as token ids, and what takes each reply apart.

Takes milliseconds for long prompts: not for the event loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine import ContentDelta, Delta, InvalidRequest, RequestOptions, SamplingParams
from server.ask import Ask, ChatPrompt, TextPrompt
from server.errors import ApiError

if TYPE_CHECKING:
    from engine import Engine


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
class PreparedPrompt:
    """ids: of the prompt; parser: makes a fresh one for each choice; echo: what stands before each
    reply.
    """

    ids: list[int]
    options: RequestOptions
    parser: Callable[[], Parser]
    echo: str | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """n: choices to show for each prompt; n_made: choices to make, from which they are taken."""

    prompts: list[PreparedPrompt]
    params: SamplingParams
    n: int = 1
    n_made: int = 1


def prepare(engine: Engine, ask: Ask) -> Prepared:
    """Raises: InvalidRequest, ChatTemplateError, ApiError."""
    if ask.constraint:
        name = ask.constraint.param
        raise ApiError(400, f"{name} is not supported", param=name, code="unsupported_parameter")
    n_made = ask.best_of or ask.n
    # More could not all be submitted: the queue is their one way in.
    most = max(1, engine.config.max_waiting)
    if len(ask.prompts) * n_made > most:
        raise ApiError(
            400,
            f"n: {len(ask.prompts)} prompts with {n_made} choices each are more than the "
            f"{most} that may wait (engine.max_waiting)",
            param="best_of" if ask.best_of else "n",
        )
    prompts = [_prepare_prompt(engine, ask, prompt) for prompt in ask.prompts]
    return Prepared(prompts, ask.params, ask.n, n_made)


def _prepare_prompt(engine: Engine, ask: Ask, prompt: ChatPrompt | TextPrompt) -> PreparedPrompt:
    if isinstance(prompt, TextPrompt):
        ids = _text_ids(engine, prompt)
        echo = _echo(engine, prompt, ids) if prompt.echo else None
        return PreparedPrompt(ids, ask.options, PlainParser, echo)
    rendered = engine.render_chat(
        prompt.messages,
        add_generation_prompt=prompt.add_generation_prompt,
        tools=prompt.tools or None,
        documents=prompt.documents or None,
        template_kwargs=prompt.template_kwargs,
        continue_last=prompt.continue_last,
    )
    tail = engine.chat_format.prompt_tail(rendered.ids)
    tools = prompt.tools if ask.tool_choice.mode != "none" else ()
    visible = ask.options.visible_ids | engine.chat_format.visible_ids
    return PreparedPrompt(
        rendered.ids,
        dataclasses.replace(ask.options, visible_ids=visible),
        lambda: engine.chat_format.parser(tail, tools),
    )


def _text_ids(engine: Engine, prompt: TextPrompt) -> list[int]:
    if not prompt.suffix:
        if isinstance(prompt.text, str):
            return engine.encode_prompt(prompt.text)
        return list(prompt.text)
    if not isinstance(prompt.text, str):
        raise InvalidRequest("suffix needs a prompt that is text", "suffix")
    return engine.encode_infill(prompt.text, prompt.suffix)


def _echo(engine: Engine, prompt: TextPrompt, ids: list[int]) -> str:
    return prompt.text if isinstance(prompt.text, str) else engine.decode(ids)
