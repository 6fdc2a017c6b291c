"""ChatFormat: how one model writes its replies, told by its chat template.

Which marks stand around thinking and tool calls, which tokens must show as text for that, and a
parser for each reply. Does not know how a chat is rendered, nor what becomes of the deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from engine.errors import EngineError
from engine.replies.channel_parser import MARKS as CHANNEL_MARKS
from engine.replies.channel_parser import SIGNS as CHANNEL_SIGNS
from engine.replies.channel_parser import ChannelParser
from engine.replies.reply_parser import ReplyParser
from engine.replies.thinking import THINK, ThinkingMarks, find_marks, find_switch
from engine.templates.chat_template import ChatTemplate
from engine.templates.template_options import TemplateOptions
from engine.text.special_tokens import unshield
from engine.text.tokenizer import Tokenizer
from engine.tool_formats.base import Tool

# The beginning of a reply that a prompt may hold lies within so many tokens of its end.
MAX_WRITTEN: Final = 2048

_NEEDLE: Final = "NEEDLE"
_CHAT: Final = [{"role": "user", "content": _NEEDLE}]


class ChatFormat:
    """How one model writes. Any thread may use it.

    thinking:    the marks around its reasoning; none when it is not known to think.
    tool_format: how it writes tool calls.
    visible_ids: control tokens whose text the parser must see (see RequestOptions).
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        text = template.marked_text
        self.thinking: Final[Sequence[ThinkingMarks]] = find_marks(text)
        self._switch = find_switch(template.variables, lambda kwargs: _prompt_end(template, kwargs))
        self.tool_format: Final = template.tool_format
        self._has_channels = all(sign in text for sign in CHANNEL_SIGNS)
        marks = [m for marks in self.thinking for m in (marks.open.rstrip(), marks.close)]
        self._turn_start = _turn_start(template, [*marks, *self.tool_format.openers])
        self._tokenizer = tokenizer

        control = tokenizer.vocabulary.control
        marks = [mark for marks in self.thinking for mark in marks.all]
        reply_tokens = _tokens_in(marks + list(CHANNEL_MARKS) * self._has_channels, control)
        tool_tokens = _tokens_in(self.tool_format.marks, control)
        self.visible_ids: Final = frozenset(control[t] for t in reply_tokens | tool_tokens)
        self._tool_openers = tool_tokens.intersection(self.tool_format.openers)
        self._tool_only = tool_tokens - reply_tokens
        form = self.tool_format.form
        self._before_answer = (form.before_answer,) if form and form.before_answer else ()

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer) -> ChatFormat:
        """The format of the model with this template."""
        return cls(template, tokenizer)

    def thinking_kwargs(self, on: bool) -> dict[str, Any]:
        """The template's variables that turn thinking on or off; none where it cannot."""
        switch = self._switch
        return {switch.variable: switch.on if on else switch.off} if switch else {}

    def prompt_tail(self, prompt_ids: Sequence[int]) -> str:
        """The end of a prompt as text, control tokens and all: what `parser` wants to know."""
        return self._tokenizer.decode_all(prompt_ids[-MAX_WRITTEN:])

    def parser(self, prompt_tail: str = "", tools: Sequence[Tool] | bool = False) -> ReplyParser:
        """For one reply.

        prompt_tail: the prompt's end: it may have begun the reply, and the thinking in it.
        tools:       those of the request, whose schemas tell numbers from text in some formats;
                     True when they are not at hand. Without any, no call is looked for.
        """
        kind = ChannelParser if self._has_channels else ReplyParser
        return kind(
            self.thinking,
            self.tool_format if tools else None,
            None if isinstance(tools, bool) else tools,
            hidden=(*self._before_answer, *(() if tools else self._tool_only)),
            ends_thinking=self._tool_openers if tools else (),
            written=self.written(prompt_tail),
        )

    def written(self, prompt_tail: str) -> str:
        """What the prompt holds of the reply."""
        _, found, written = prompt_tail.rpartition(self._turn_start or "\0")
        if found:
            return written
        end = prompt_tail.rstrip()
        opens = (marks.open for marks in self.thinking or (THINK,))
        return next((mark for mark in opens if end.endswith(mark.rstrip())), "")


def _tokens_in(marks: Iterable[str], control: Iterable[str]) -> set[str]:
    text = "\0".join(marks)
    return {token for token in control if token in text}


def _prompt_end(template: ChatTemplate, kwargs: dict[str, Any]) -> str:
    """What stands behind the user's text; '' when the template fails."""
    try:
        rendered = template.render(_CHAT, TemplateOptions(template_kwargs=kwargs))
        return unshield(rendered).rpartition(_NEEDLE)[2]
    except EngineError:
        return ""


def _turn_start(template: ChatTemplate, marks: Iterable[str]) -> str:
    """What the template prints where a reply begins; '' when it cannot be told.

    marks: what already belongs to the reply.
    """
    try:
        asked = unshield(template.render(_CHAT))
        told = unshield(template.render(_CHAT, TemplateOptions(add_generation_prompt=False)))
    except EngineError:
        return ""
    pairs = enumerate(zip(asked, told, strict=False))
    n_same = next((i for i, (a, b) in pairs if a != b), len(told))
    start = asked[n_same:] or asked.rpartition(_NEEDLE)[2]
    for mark in marks:
        start = start.partition(mark)[0]
    return start
