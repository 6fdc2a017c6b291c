"""FakeText: what FakeEngine makes of text. A token is a byte of UTF-8, so prompts can be read back.

Knows nothing of requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from engine import (
    ChatTemplateError,
    FittedChat,
    FittedInfill,
    InvalidRequest,
    OtherFile,
    RenderedChat,
    ReplyRules,
)
from engine.replies.reply_parser import ReplyParser
from engine.replies.thinking import ThinkingMarks
from engine.templates import context
from engine.templates.chat_messages import normalise_messages
from engine.templates.template_options import NO_OPTIONS, TemplateOptions
from engine.tool_formats import find_tool_format

BOS = 256
EOS = 257
N_VOCAB = 258


def text_of(ids: Sequence[int]) -> str:
    """Without special tokens."""
    return bytes(token for token in ids if token < 256).decode(errors="replace")


class FakeTemplate:
    source = "{{ messages }}"


class FakeFormat:
    """Of a model that thinks between tags and calls tools as Hermes does."""

    visible_ids: frozenset[int] = frozenset()
    thinking = (ThinkingMarks("<think>", "</think>"),)

    def thinking_kwargs(self, on: bool) -> dict[str, Any]:
        return {"enable_thinking": on}

    def prompt_tail(self, prompt_ids: Sequence[int]) -> str:
        return text_of(prompt_ids)

    def parser(self, prompt_tail: str = "", tools: Any = False) -> ReplyParser:
        written = prompt_tail.rpartition("<assistant>")[2]
        return ReplyParser(
            self.thinking,
            find_tool_format("<tool_call>") if tools else None,
            None if isinstance(tools, bool) else tools,
            written=written,
        )


class FakeText:
    """Duck-typed to `engine.model_text.ModelText`, and what fits texts into the context."""

    can_infill = True
    bos_token, eos_token = "<s>", "</s>"

    def __init__(self, n_ctx: int) -> None:
        self._n_ctx = n_ctx
        self.chat_format = FakeFormat()
        self.chat_template = FakeTemplate()
        self.rules = ReplyRules()  # of the last constrain
        self.chats: list[dict[str, Any]] = []  # the arguments of each render_chat

    def encode_prompt(self, text: str) -> list[int]:
        return [BOS, *text.encode()]

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        return self.encode_prompt(f"<PRE>{prefix}<SUF>{suffix}<MID>")

    def fit_infill(self, before: str, after: str, files: Sequence[OtherFile]) -> FittedInfill:
        """Half of the context is for what stands before."""
        fits = before[-self._n_ctx // 2 :]
        text = "".join(f"<FILE>{file.name}:{file.text}" for file in files)
        ids = self.encode_prompt(f"{text}<PRE>{fits}<SUF>{after}<MID>")
        return FittedInfill(ids, len(before) - len(fits))

    def render_chat(
        self, messages: list[dict[str, Any]], template: TemplateOptions = NO_OPTIONS
    ) -> RenderedChat:
        messages = normalise_messages(messages)
        if template.continue_last and messages[-1]["role"] != "assistant":
            raise InvalidRequest("cannot be continued", "continue_final_message")
        self.chats.append({"messages": messages, **dataclasses.asdict(template)})
        if any(message["content"] == "REFUSE" for message in messages):
            raise ChatTemplateError("roles must alternate")
        text = "".join(
            f"<{m['role']}>{m['content'] or ''}{m.get('tool_calls', '')}" for m in messages
        )
        opens = template.add_generation_prompt and not template.continue_last
        text += "<assistant>" * opens
        return RenderedChat(text, self.encode_prompt(text))

    def fit_chat(
        self, messages: list[dict[str, Any]], n_reply: int, template: TemplateOptions = NO_OPTIONS
    ) -> FittedChat:
        return context.fit_chat(
            messages, lambda left: self.render_chat(left, template).ids, self._n_ctx, n_reply
        )

    def encode_text(self, text: str) -> list[int]:
        return [*self.encode_prompt(text), EOS] if text else []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        bos = [BOS] if add_special else []
        while parse_special and text.startswith("<s>"):
            bos, text = [*bos, BOS], text.removeprefix("<s>")
        return [*bos, *text.encode()]

    def detokenize(self, ids: Sequence[int]) -> str:
        if not all(0 <= token < N_VOCAB for token in ids):
            raise InvalidRequest("a token id is outside the vocabulary", "tokens")
        return text_of(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return text_of(ids)

    def constrain(self, rules: ReplyRules, chat_ids: Sequence[int] | None) -> None:
        """Nothing: replies are scripted. What was asked is in `rules`."""
        self.rules = rules

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])
