"""Several choices, their log-probabilities, and what text completions have besides: n, best_of,
echo, suffix, logprobs. Shapes are those of OpenAI's API reference.
"""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from engine import OutOfMemory, Replaced, TimedOut, Token
from server.openai.logprobs import LEAST, ChatLogprobs, TextLogprobsWriter
from tests.fake_engine import FakeEngine, Script
from tests.server.wire import chunks_of

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def bodies(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The same request not streamed and streamed."""
    whole = http.post(path, json=body)
    stream = http.post(path, json={**body, "stream": True})
    assert whole.status_code == stream.status_code == 200, whole.text + stream.text
    return whole.json(), chunks_of(stream.text)


def test_n_choices_of_a_chat(http: httpx.Client, fake: FakeEngine) -> None:
    body = {**HELLO, "n": 3, "seed": 5, "stream_options": {"include_usage": True}}
    whole, chunks = bodies(http, CHAT, body)
    assert [generation.params.seed for generation in fake.submitted[-3:]] == [5, 6, 7]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    n_prompt = len("<user>Hello<assistant>") + 1
    usage = {key: whole["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    assert usage == {"prompt_tokens": n_prompt, "completion_tokens": 12}
    assert chunks[-1]["usage"]["prompt_tokens"] == n_prompt
    for index in range(3):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
        assert "".join(c["delta"].get("content") or "" for c in own) == "Paris."


def test_all_choices_of_the_first_prompt_come_first(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = lambda prompt: Script((f"<{prompt}>",))
    whole, _ = bodies(http, TEXT, {"prompt": ["A", "B"], "n": 2})
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [
        (0, "<A>"),
        (1, "<A>"),
        (2, "<B>"),
        (3, "<B>"),
    ]
    assert whole["usage"]["prompt_tokens"] == 4  # two tokens each, each once
    assert whole["usage"]["completion_tokens"] == 8


def test_best_of_shows_the_likeliest(http: httpx.Client, fake: FakeEngine) -> None:
    scripts = iter([Script(("a",), logprob=-3), Script(("b", "b"), logprob=-1), Script(("c",))])
    fake.script = lambda prompt: next(scripts, Script(("d",), logprob=-2))
    reply = http.post(TEXT, json={"prompt": "x", "n": 2, "best_of": 4}).json()
    assert [choice["text"] for choice in reply["choices"]] == ["bb", "c"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert [choice["logprobs"] for choice in reply["choices"]] == [None, None]
    assert reply["usage"]["completion_tokens"] == 9  # all four cost


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 33}, "best_of"),
        ({"echo": True, "suffix": "x"}, "echo"),
        ({"echo": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": [65], "suffix": "x"}, "suffix"),
        ({"n_probs": -1}, "n_probs"),
    ],
)
def test_wrong_values_of_text_are_named(
    http: httpx.Client, wrong: dict[str, Any], param: str
) -> None:
    reply = http.post(TEXT, json={"prompt": "x", **wrong})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_echo(http: httpx.Client) -> None:
    whole, chunks = bodies(http, TEXT, {"prompt": ["Hello ", [72, 105]], "echo": True})
    assert [choice["text"] for choice in whole["choices"]] == ["Hello Paris.", "HiParis."]
    texts = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == ["Hello Paris.", "HiParis."]


def test_a_text_may_be_echoed_alone(http: httpx.Client) -> None:
    """OpenAI's minimum is 0 here: evaluations ask so for the log-probabilities of a prompt."""
    sent = {"prompt": ["Hello"], "echo": True, "max_tokens": 0}
    whole, chunks = bodies(http, TEXT, sent)
    assert [(c["text"], c["finish_reason"]) for c in whole["choices"]] == [("Hello", "length")]
    assert whole["usage"]["completion_tokens"] == 0
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "Hello"


def test_what_is_asked_beside_sampling(http: httpx.Client, fake: FakeEngine) -> None:
    sent = {"prompt": "x", "suffix": "y", "user": "Ann", "priority": 3, "max_time_ms": 1500}
    assert http.post(TEXT, json=sent).status_code == 200
    options = fake.submitted[-1].options
    assert (options.priority, options.max_time_s) == (3, 1.5)
    assert options.replaces_key == "suffix of Ann"
    assert http.post(CHAT, json={**HELLO, "user": "Ann"}).status_code == 200
    assert fake.submitted[-1].options.replaces_key is None
    for wrong in (0, -1, 1e11):
        reply = http.post(CHAT, json={**HELLO, "max_time_ms": wrong})
        assert reply.json()["error"]["param"] == "max_time_ms"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Replaced(), 409, "replaced"),
        (TimedOut(1.0, 5, 10), 504, "timeout"),
        (OutOfMemory("too little memory"), 503, "out_of_memory"),
    ],
)
def test_how_a_request_may_end_early(
    http: httpx.Client, fake: FakeEngine, error: Any, status: int, code: str
) -> None:
    fake.script = Script(fail_after=0, error=error)
    reply = http.post(CHAT, json=HELLO)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_suffix_asks_for_the_middle(http: httpx.Client, fake: FakeEngine) -> None:
    reply = http.post(TEXT, json={"prompt": "def f(", "suffix": "return x"})
    assert reply.status_code == 200
    prompt = bytes(fake.submitted[-1].prompt_ids[1:]).decode()
    assert prompt == "<PRE>def f(<SUF>return x<MID>"


def test_chat_logprobs(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("a", "b"))
    whole, chunks = bodies(http, CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2})
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    assert logprobs["content"][0] == {
        "token": "a",
        "logprob": -1.0,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -1.0, "bytes": [97]},
            {"token": "b", "logprob": -2.0, "bytes": [98]},
        ],
    }
    streamed = [c["logprobs"] for chunk in chunks for c in chunk["choices"]]
    assert [item for part in streamed if part for item in part["content"]] == logprobs["content"]
    without = http.post(CHAT, json={**HELLO, "logprobs": True}).json()["choices"][0]
    assert [item["top_logprobs"] for item in without["logprobs"]["content"]] == [[], []]
    assert http.post(CHAT, json=HELLO).json()["choices"][0]["logprobs"] is None
    by_llama_cpp = http.post(CHAT, json={**HELLO, "n_probs": 2}).json()
    assert by_llama_cpp["choices"][0]["logprobs"] == logprobs


def test_logprobs_are_not_of_thinking(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("<think>", "hm", "</think>", "a"))
    whole, chunks = bodies(http, CHAT, {**HELLO, "logprobs": True})
    for content in (
        whole["choices"][0]["logprobs"]["content"],
        [
            item
            for chunk in chunks
            for choice in chunk["choices"]
            if choice["logprobs"]
            for item in choice["logprobs"]["content"]
        ],
    ):
        assert content[-1]["token"] == "a"
        assert "h" not in [item["token"] for item in content]


def test_text_logprobs(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("a", "b"))
    whole, chunks = bodies(http, TEXT, {"prompt": "x", "logprobs": 2})
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -1.0],
        "top_logprobs": [{"a": -1.0, "b": -2.0}, {"b": -1.0, "c": -2.0}],
        "text_offset": [0, 1],
    }
    columns: dict[str, list[Any]] = {name: [] for name in logprobs}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for name, values in (choice["logprobs"] or {}).items():
            columns[name] += values
    assert columns == logprobs
    none = http.post(TEXT, json={"prompt": "x", "logprobs": 0}).json()["choices"][0]["logprobs"]
    assert none["top_logprobs"] == [{"a": -1.0}, {"b": -1.0}]  # the chosen one, always


LLAMA = "🦙".encode()  # in two tokens
PIECES = {1: b"a", 2: LLAMA[:2], 3: LLAMA[2:], 4: b"b"}


def test_parts_of_characters_have_bytes() -> None:
    tokens = [Token(i, "", -float(i), ((i, -float(i)),)) for i in PIECES]
    chat = ChatLogprobs.of(tokens, PIECES.__getitem__)
    assert b"".join(bytes(item.bytes) for item in chat.content).decode() == "a🦙b"
    writer = TextLogprobsWriter(PIECES.__getitem__)
    text = writer.write(tokens[:2]), writer.write(tokens[2:])
    assert text[0].tokens + text[1].tokens == ["a", r"bytes:\xf0\x9f", r"bytes:\xa6\x99", "b"]
    assert text[0].text_offset + text[1].text_offset == [0, 1, 1, 2]


def test_never_is_a_number() -> None:
    """JSON has no infinity."""
    token = Token(1, "a", -math.inf, ((1, -math.inf),))
    [item] = ChatLogprobs.of([token], PIECES.__getitem__).content
    assert item.logprob == item.top_logprobs[0].logprob == LEAST
    assert TextLogprobsWriter(PIECES.__getitem__).write([token]).token_logprobs == [LEAST]


def test_the_tokens_of_a_stop_string_are_not_told(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("a", "", ""), tail="")
    whole, _ = bodies(http, TEXT, {"prompt": "x", "logprobs": 0})
    assert whole["choices"][0]["logprobs"]["tokens"] == ["a"]


@pytest.mark.parametrize(
    ("more", "continues"),
    [
        ({}, True),
        ({"continue_final_message": True}, True),
        ({"continue_final_message": False}, False),
        ({"add_generation_prompt": True}, False),
        ({"add_generation_prompt": False}, False),
    ],
)
def test_a_reply_that_is_begun(
    http: httpx.Client, fake: FakeEngine, more: dict[str, Any], continues: bool
) -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "Well,"}]
    assert http.post(CHAT, json={"messages": messages, **more}).status_code == 200
    assert fake.chats[-1]["continue_last"] == continues


@pytest.mark.parametrize(
    ("roles", "more", "param"),
    [
        (["user"], {"continue_final_message": True}, "continue_final_message"),
        (["user", "assistant", "assistant"], {}, "messages"),
        (
            ["user", "assistant"],
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_continued(
    http: httpx.Client, roles: list[str], more: dict[str, Any], param: str
) -> None:
    messages = [{"role": role, "content": "x"} for role in roles]
    reply = http.post(CHAT, json={"messages": messages, **more})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_counting_without_answering(http: httpx.Client, fake: FakeEngine) -> None:
    n_before = len(fake.submitted)
    reply = http.post(f"{CHAT}/input_tokens", json=HELLO)
    n = len("<user>Hello<assistant>") + 1
    assert reply.json() == {"object": "response.input_tokens", "input_tokens": n}
    assert len(fake.submitted) == n_before
    assert http.post(f"{CHAT}/input_tokens", json={"messages": []}).status_code == 400
