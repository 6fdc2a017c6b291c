"""Messages from the wire, made into what templates expect; bad ones refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.templates.chat_messages import PART_JOINER, normalise_messages

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def one(**message: Any) -> dict[str, Any]:
    return normalise_messages([message])[0]


@pytest.mark.parametrize("role", ["system", "user", "tool", "assistant"])
def test_text_parts_are_text(role: str) -> None:
    assert one(role=role, content=[{"type": "text", "text": "Hello"}]) == one(
        role=role, content="Hello"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert one(role=role, content=parts)["content"] == f"a{PART_JOINER}b"


def test_absent_and_null_content_are_the_same() -> None:
    absent = one(role="assistant", tool_calls=[CALL])
    assert absent == one(role="assistant", content=None, tool_calls=[CALL])
    assert absent["content"] is None
    assert one(role="assistant", content=None, reasoning_content="hm")["content"] is None
    assert one(role="assistant", content=None, refusal="No.")["content"] == "No."


def test_null_fields_and_empty_calls_are_absent() -> None:
    message = one(role="assistant", content="x", name=None, tool_calls=[], function_call=None)
    assert message == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ("", {}),
        (None, {}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ("[" * 20_000, "[" * 20_000),
    ],
)
def test_arguments(arguments: Any, expected: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    message = one(role="assistant", tool_calls=[call])
    assert message["tool_calls"][0]["function"]["arguments"] == expected
    assert message["tool_calls"][0]["type"] == "function"


def test_the_given_messages_are_not_changed() -> None:
    given = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    normalise_messages([given])
    assert given["tool_calls"] == [CALL]
    assert CALL["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"role": "user", "content": None}, "messages[0].content", "content is missing"),
        ({"role": "user"}, "messages[0].content", "content is missing"),
        ({"role": "tool", "tool_call_id": "1"}, "messages[0].content", "content is missing"),
        ({"role": "assistant"}, "messages[0].content", "content is missing"),
        ({"role": "user", "content": 5}, "messages[0].content", "string or a list"),
        ({"role": "user", "content": []}, "messages[0].content", "string or a list"),
        ({"content": "x"}, "messages[0].role", "role"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]", "object with a type"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
            "'image_url' is not supported",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "messages[0].content[0].text",
            "must be a string",
        ),
        ({"role": "assistant", "tool_calls": 1}, "messages[0].tool_calls", "must be a list"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]", "function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            "messages[0].tool_calls[0].function.name",
            "must be a string",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]},
            "messages[0].tool_calls[0].function.arguments",
            "JSON object",
        ),
    ],
)
def test_bad_messages_are_refused_by_name(message: Any, param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        normalise_messages([message])
    assert caught.value.param == param


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        normalise_messages([])
