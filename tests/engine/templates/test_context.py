"""Which turns of a long chat are dropped, and what the next turn begins with."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine import ContextLengthExceeded
from engine.templates.context import fit_chat, next_turn_ids

Message = dict[str, Any]


def say(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def encode(messages: list[Message]) -> list[int]:
    """A token per character, and an end to each message; a reply begins."""
    text = "".join(f"{m['role'][0]}{m['content']}." for m in messages) + "a"
    return [ord(c) for c in text]


def chat(n_turns: int, length: int = 8) -> list[Message]:
    turns = [say("system", "rules")]
    for i in range(n_turns):
        turns += [say("user", f"{i:02}".ljust(length)), say("assistant", f"{i:02}".ljust(length))]
    return [*turns, say("user", "last".ljust(length))]


def test_what_fits_is_left_alone() -> None:
    fitted = fit_chat(chat(3), encode, n_ctx=200, n_reply=10)
    assert (fitted.messages, fitted.n_dropped) == (chat(3), 0)
    assert fitted.prompt_ids == encode(chat(3))


def test_whole_oldest_turns_go_and_never_the_system_message() -> None:
    messages = chat(20)
    fitted = fit_chat(messages, encode, n_ctx=200, n_reply=20)
    assert fitted.messages[0] == messages[0]
    assert fitted.messages[1]["role"] == "user"
    assert fitted.messages[1:] == messages[1 + fitted.n_dropped :]
    assert fitted.n_dropped % 2 == 0
    assert fitted.prompt_ids == encode(fitted.messages)
    assert len(fitted.prompt_ids) + 20 <= 200


def test_tool_results_go_with_their_turn() -> None:
    call = [say("assistant", "call"), say("tool", "result"), say("assistant", "so")]
    messages = [say("user", "x" * 90), *call, say("user", "y" * 50)]
    fitted = fit_chat(messages, encode, n_ctx=120, n_reply=10)
    assert fitted.messages == [say("user", "y" * 50)]
    assert fitted.n_dropped == 4


def test_a_growing_chat_begins_alike_for_several_turns() -> None:
    beginnings = []
    for n_turns in range(10, 40):
        fitted = fit_chat(chat(n_turns), encode, n_ctx=400, n_reply=20)
        assert len(fitted.prompt_ids) + 20 <= 400
        beginnings.append(fitted.messages[1]["content"])
    assert beginnings[0] == "00      "
    changes = sum(a != b for a, b in itertools.pairwise(beginnings))
    assert 3 <= changes <= 8  # 30 turns of 20 tokens, 100 at a time


@pytest.mark.parametrize("messages", [[say("user", "z" * 300)], [say("system", "z" * 300)]])
def test_a_last_turn_that_is_too_long_is_refused(messages: list[Message]) -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        fit_chat(messages, encode, n_ctx=200, n_reply=10)
    assert refused.value.n_prompt == 303


def test_after_calls_their_results_come() -> None:
    seen: list[Message] = []

    def note(messages: list[Message]) -> list[int]:
        seen.append(messages[-1])
        return encode(messages)

    call = {"id": "call_7", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*chat(1), {**say("assistant", ""), "tool_calls": [call]}]
    ids = next_turn_ids(messages, note)
    assert {(m["role"], m["tool_call_id"]) for m in seen} == {("tool", "call_7")}
    assert ids == encode([*messages, say("tool", "")])[:-2]


def test_the_next_turn_begins_with_all_but_the_users_words() -> None:
    messages = chat(1)
    ids = next_turn_ids(messages, encode)
    assert ids == encode([*messages, say("user", "")])[:-2]
