"""Chats as messages: what to drop of one that is too long for the context, and what the next turn
will begin with. Knows messages and lengths, no model: how they become tokens is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.cache.common_prefix import count_common
from engine.errors import ContextLengthExceeded

Message = dict[str, Any]
Encode = Callable[[list[Message]], list[int]]

_NEVER_DROPPED = ("system", "developer")
# Of the context that is dropped at once: the next requests of a growing chat then begin alike, and
# are read from the cache, instead of anew for each turn that leaves.
_STEP = 0.25


@dataclass(frozen=True, slots=True)
class FittedChat:
    """A chat that fits: the messages that are left, as tokens, and how many were dropped."""

    messages: list[Message]
    prompt_ids: list[int]
    n_dropped: int


def fit_chat(messages: list[Message], encode: Encode, n_ctx: int, n_reply: int) -> FittedChat:
    """Drop whole oldest turns until n_reply tokens are left for the reply.

    A turn is a user's message with all that follows it; system messages stay, and so does the last
    turn. The longer the chat, the more is dropped, in steps.

    Raises ContextLengthExceeded when the last turn is too long by itself, and what encode raises.
    """
    prompt_ids = encode(messages)
    excess = len(prompt_ids) + n_reply - n_ctx
    if excess <= 0:
        return FittedChat(messages, prompt_ids, 0)
    step = max(int(n_ctx * _STEP), 1)
    to_drop = (excess + step - 1) // step * step
    starts = _turns(messages)

    def without(n_turns: int) -> list[Message]:
        end = starts[n_turns]
        kept = [m for m in messages[:end] if m.get("role") in _NEVER_DROPPED]
        return [*kept, *messages[end:]]

    low, high = 0, max(len(starts) - 1, 0)
    while low < high:  # the fewest turns that are enough
        middle = (low + high) // 2
        if len(prompt_ids) - len(encode(without(middle))) >= to_drop:
            high = middle
        else:
            low = middle + 1
    left = without(low) if starts else messages
    left_ids = encode(left)
    if len(left_ids) >= n_ctx:
        raise ContextLengthExceeded(len(left_ids), n_ctx)
    return FittedChat(left, left_ids, len(messages) - len(left))


def next_turn_ids(messages: list[Message], encode: Encode) -> list[int]:
    """The tokens with which the next turn begins, whatever the user is going to say.

    messages: the chat with its last reply, as a client sends it back. After a reply that calls
    tools their results come, and not the user.
    """
    calls = messages[-1].get("tool_calls")
    speaker = {"role": "tool", "tool_call_id": calls[0]["id"]} if calls else {"role": "user"}
    one, other = (encode([*messages, {**speaker, "content": text}]) for text in ("a", "Z"))
    return one[: count_common(one, other)]


def _turns(messages: Sequence[Message]) -> list[int]:
    """Where the turns begin."""
    return [i for i, message in enumerate(messages) if message.get("role") == "user"]
