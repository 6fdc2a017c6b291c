"""ChatFormat: how one model writes its replies, told by its chat template.

Which marks stand around thinking, which tokens must show as text for that, and a parser for each
reply. Does not know how a chat is rendered, nor what becomes of the deltas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from engine.chat_template import ChatTemplate
from engine.errors import EngineError
from engine.reply_parser import ReplyParser
from engine.special_tokens import unshield
from engine.thinking import ThinkingMarks, find_marks, find_switch
from engine.tokenizer import Tokenizer

# The beginning of a reply that a prompt may hold lies within so many tokens of its end.
MAX_WRITTEN: Final = 2048

_NEEDLE: Final = "NEEDLE"


class ChatFormat:
    """How one model writes. Any thread may use it.

    thinking:        the marks around its reasoning.
    thinking_switch: the template's variable that turns thinking on and off; '' when it has none.
    visible_ids:     control tokens whose text the parser must see (see RequestOptions).
    """

    def __init__(
        self,
        thinking: Sequence[ThinkingMarks],
        thinking_switch: str,
        turn_start: str,
        tokenizer: Tokenizer,
    ) -> None:
        """turn_start: what stands in a prompt before the reply begins."""
        self.thinking: Final = tuple(thinking)
        self.thinking_switch: Final = thinking_switch
        self._turn_start = turn_start
        self._tokenizer = tokenizer
        marks = {text for m in self.thinking for text in (m.open.rstrip(), m.close)}
        control = tokenizer.vocabulary.control
        self.visible_ids: Final = frozenset(
            token_id for text, token_id in control.items() if any(text in mark for mark in marks)
        )

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer) -> Self:
        """The format of the model with this template."""
        thinking = find_marks(template.source)
        turn_start = _turn_start(template)
        for marks in thinking:
            for mark in (marks.open.rstrip(), marks.close):
                turn_start = turn_start.partition(mark)[0]
        return cls(thinking, find_switch(template.variables), turn_start, tokenizer)

    def prompt_tail(self, prompt_ids: Sequence[int]) -> str:
        """The end of a prompt as text, control tokens and all: what `parser` wants to know."""
        return self._tokenizer.decode_all(prompt_ids[-MAX_WRITTEN:])

    def parser(
        self, prompt_tail: str = "", tools: Sequence[Mapping[str, Any]] | bool = False
    ) -> ReplyParser:
        """For one reply.

        prompt_tail: the prompt's end: it may have begun the reply, and the thinking in it.
        tools:       those of the request; without them no tool call is looked for.
        """
        return ReplyParser(self.thinking, self._written(prompt_tail))

    def _written(self, prompt_tail: str) -> str:
        _, found, written = prompt_tail.rpartition(self._turn_start or "\0")
        if found:
            return written
        end = prompt_tail.rstrip()
        return next(
            (marks.open for marks in self.thinking if end.endswith(marks.open.rstrip())), ""
        )


def _turn_start(template: ChatTemplate) -> str:
    """What the template prints where a reply begins; '' when it cannot be told."""
    chat = [{"role": "user", "content": _NEEDLE}]
    try:
        asked = unshield(template.render(chat, add_generation_prompt=True))
        told = unshield(template.render(chat, add_generation_prompt=False))
    except EngineError:
        return ""
    pairs = enumerate(zip(asked, told, strict=False))
    n_same = next((i for i, (a, b) in pairs if a != b), len(told))
    return asked[n_same:] or asked.rpartition(_NEEDLE)[2]
