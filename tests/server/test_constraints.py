"""server/openai/constraints.py: every way to say what a reply's text must be reaches the engine.

That replies obey is for tests/engine/grammar/test_grammar.py and tests/served/.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
OPENAI = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}

FORMS: list[tuple[dict[str, Any], tuple[str, Any, str]]] = [
    ({"response_format": {"type": "text"}}, ("", None, "")),
    ({"response_format": {"type": "json_object"}}, ("json_object", None, "response_format")),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        ("json_schema", SCHEMA, "response_format.schema"),
    ),
    ({"response_format": OPENAI}, ("json_schema", SCHEMA, "response_format.json_schema.schema")),
    ({"json_schema": SCHEMA}, ("json_schema", SCHEMA, "json_schema")),
    ({"grammar": ""}, ("", None, "")),
    ({"grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"', "grammar")),
    ({"grammar": 'start: "a"'}, ("lark", 'start: "a"', "grammar")),
    (
        {"grammar": {"syntax": "regex", "definition": "a+"}},
        ("regex", "a+", "grammar"),
    ),
    ({"guided_json": SCHEMA}, ("json_schema", SCHEMA, "guided_json")),
    ({"guided_json": '{"type": "null"}'}, ("json_schema", '{"type": "null"}', "guided_json")),
    ({"guided_regex": "a+"}, ("regex", "a+", "guided_regex")),
    ({"guided_choice": ["yes", 'a"b']}, ("lark", r'start: "yes" | "a\"b"', "guided_choice")),
    ({"guided_grammar": 'root ::= "a"'}, ("gbnf", 'root ::= "a"', "guided_grammar")),
    (
        {"structured_outputs": {"json": SCHEMA}},
        ("json_schema", SCHEMA, "structured_outputs.json"),
    ),
    (
        {"structured_outputs": {"choice": ["a"]}},
        ("lark", 'start: "a"', "structured_outputs.choice"),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        ("json_object", None, "structured_outputs.json_object"),
    ),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("sent", "rule"), FORMS)
def test_every_form(
    http: httpx.Client, fake: FakeEngine, path: str, sent: dict[str, Any], rule: Any
) -> None:
    body = HELLO if path == CHAT else {"prompt": "x"}
    reply = http.post(path, json={**body, **sent})
    assert reply.status_code == 200, reply.text
    assert "x-rushlight-ignored" not in reply.headers
    assert (fake.rules.kind, fake.rules.source, fake.rules.param) == rule
    if rule[1] is SCHEMA:
        assert list(fake.rules.source["properties"]) == ["b", "a"]  # their order is a wish too


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format.json_schema.schema",
    ),
    ({"guided_choice": []}, "guided_choice"),
    ({"grammar": {"syntax": "peg", "definition": "a"}}, "grammar"),
    ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
]


@pytest.mark.parametrize(("sent", "param"), WRONG)
def test_wrong_forms_are_named(http: httpx.Client, sent: dict[str, Any], param: str) -> None:
    reply = http.post(CHAT, json={**HELLO, **sent})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"].startswith(param)


def test_a_forced_call_leaves_no_room_for_text(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {**HELLO, "tools": [tool], "tool_choice": "required", "response_format": OPENAI}
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "response_format.json_schema.schema"
