"""Log-probabilities of a reply's tokens in OpenAI's two shapes: that of chats, and the older one.

Knows tokens and their bytes; not where they came from.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Any

from engine import Token
from server.wire_object import WireObject

LEAST = -9999.0  # what OpenAI writes for "never", as JSON has no infinity

TokenBytes = Callable[[int], bytes]


class TopLogprob(WireObject):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireObject):
    content: list[TokenLogprob]
    refusal: None

    @classmethod
    def of(cls, tokens: Iterable[Token], token_bytes: TokenBytes) -> ChatLogprobs:
        """tokens: which have a logprob."""
        content = [
            TokenLogprob(
                **named(token.token_id, token.logprob, token_bytes),
                top_logprobs=[
                    TopLogprob(**named(token_id, logprob, token_bytes))
                    for token_id, logprob in token.top
                ],
            )
            for token in tokens
        ]
        return cls(content=content, refusal=None)


class TextLogprobs(WireObject):
    """Columns. A token that begins a text has no probability: null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextLogprobsWriter:
    """Of one choice, whose tokens may come in several pieces: offsets go on from piece to piece."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters of the text so far

    def write(self, tokens: Iterable[Token]) -> TextLogprobs:
        columns = TextLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token in tokens:
            data = self._token_bytes(token.token_id)
            columns.tokens.append(_name(data))
            columns.text_offset.append(self._offset)
            self._offset += len(self._utf8.decode(data))
            if token.logprob is None:
                columns.token_logprobs.append(None)
                columns.top_logprobs.append(None)
                continue
            top = dict(token.top)
            top.setdefault(token.token_id, token.logprob)  # always there, says OpenAI
            columns.token_logprobs.append(max(token.logprob, LEAST))
            columns.top_logprobs.append(
                {_name(self._token_bytes(id)): max(logprob, LEAST) for id, logprob in top.items()}
            )
        return columns


def named(token_id: int, logprob: float | None, token_bytes: TokenBytes) -> dict[str, Any]:
    """The fields of a TopLogprob."""
    data = token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": LEAST if logprob is None else max(logprob, LEAST),
        "bytes": list(data),
    }


def _name(data: bytes) -> str:
    """Text, or OpenAI's spelling of a part of a character: each its own, to be a key."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
