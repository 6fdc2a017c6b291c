"""What a request may hold: wrong values are refused by name, known fields obeyed or refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine import SamplingParams
from server.errors import ApiError
from server.known_fields import INACTIVE, WITHOUT_EFFECT
from server.openai.chat import ChatCompletionRequest
from server.openai.text import CompletionRequest
from server.parse_request import parse_request
from tests.fake_engine import FakeEngine, Script
from tests.fake_text import N_VOCAB
from tests.server.conftest import Running
from tests.stopwatch import Stopwatch

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"n_predict": -5}, "n_predict"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_context_size": -2}, "repetition_context_size"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"min_p": 2}, "min_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"repeat_last_n": 2**31}, "repeat_last_n"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"repeat_last_n": -2}, "repeat_last_n"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": "1"}, "frequency_penalty"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"n": 0}, "n"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"n": "1"}, "n"),
    ({"n": 129}, "n"),
    ({"n": 33}, "n"),
    ({"stop": 3}, "stop"),
    ({"stop": ["a", 3]}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"logit_bias": {"hello": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"05": 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": {"५": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {str(N_VOCAB): 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias[5]"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [[5, 1]]}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"model": 5}, "model"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"prompt": "x"}, "prompt"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    (user(None), "messages[0].content"),
    (user(5), "messages[0].content"),
    (user([]), "messages[0].content"),
    (user(["x"]), "messages[0].content"),
    (user([{"type": "text"}]), "messages[0].content[0].text"),
    (user([{"type": "text", "text": "x"}, IMAGE]), "messages[0].content[1].type"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
]


@pytest.mark.parametrize(("wrong", "param"), WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_values_are_named(
    http: httpx.Client, wrong: dict[str, Any], param: str, stream: bool
) -> None:
    reply = http.post(CHAT, json={"stream": stream, **HELLO, **wrong})
    assert reply.status_code == 400, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split("[")[0] in error["message"]


def test_refused_part_is_named_by_its_type(http: httpx.Client) -> None:
    message = http.post(CHAT, json=user([IMAGE])).json()["error"]["message"]
    assert message == (
        "messages[0].content[0].type 'image_url' is not supported: this model reads text only"
    )


@pytest.mark.parametrize(
    ("wrong", "param", "problem"),
    [
        ({"grammar": 5}, "grammar", "Input should be a valid string, or a valid dictionary"),
        ({"grammar": {"syntax": "lark"}}, "grammar.definition", "Field required"),
        (
            {"grammar": {"syntax": "x", "definition": "y"}},
            "grammar.syntax",
            "Input should be 'gbnf', 'lark' or 'regex'",
        ),
        ({"json_schema": []}, "json_schema", "Input should be a valid dictionary, or a valid bool"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "Input should be a valid"),
    ],
)
def test_of_several_types_none_is_named_in_a_path(
    http: httpx.Client, wrong: dict[str, Any], param: str, problem: str
) -> None:
    error = http.post(CHAT, json={**HELLO, **wrong}).json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: {problem}")


@pytest.mark.parametrize(
    ("path", "asked"), [(CHAT, HELLO), ("/v1/completions", {"prompt": "Hello"})]
)
def test_samplers_and_the_cache_are_the_requests_to_choose(
    http: httpx.Client, fake: FakeEngine, path: str, asked: dict[str, Any]
) -> None:
    body = {**asked, "samplers": ["top_p", "temperature"], "cache_prompt": False}
    assert http.post(path, json=body).status_code == 200
    sent = fake.submitted[-1]
    assert sent.params.samplers == ("top_p", "temperature") and not sent.options.use_cache
    assert http.post(path, json={**asked, "samplers": "kt"}).status_code == 200
    sent = fake.submitted[-1]
    assert sent.params.samplers == ("top_k", "temperature") and sent.options.use_cache
    reply = http.post(path, json={**asked, "samplers": ["top_k", "top_k"]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "samplers")


def test_whole_numbers_may_be_written_with_a_point(http: httpx.Client, fake: FakeEngine) -> None:
    body = {"max_tokens": 5.0, "top_k": 7.0, "seed": 3.0, "n": 1.0, "stop_token_ids": [9.0]}
    assert http.post(CHAT, json={**HELLO, **body}).status_code == 200
    sent = fake.submitted[-1].params
    assert (sent.max_tokens, sent.top_k, sent.seed, sent.stop_token_ids) == (5, 7, 3, {9})
    assert type(sent.max_tokens) is type(sent.top_k) is type(sent.seed) is int
    for name in ("n", "seed", "max_tokens"):
        for wrong in (1.5, True):
            reply = http.post(CHAT, json={**HELLO, name: wrong})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


ACTIVE: list[dict[str, Any]] = [
    {"functions": [{"name": "f"}]},
    {"function_call": {"name": "f"}},
    {"audio": {"voice": "alloy", "format": "wav"}},
    {"modalities": ["text", "audio"]},
    {"cache_salt": "x"},
    {"reasoning_format": "none"},
    {"web_search_options": {}},
]
ONLY_TEXT: list[dict[str, Any]] = [{"best_of": 3}, {"echo": True}, {"suffix": "x"}]
ONLY_CHAT: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tool_choice": "required"},
    {"reasoning_effort": "low"},
    {"top_logprobs": 2},
]
REFUSED = [(path, sent) for path in (CHAT, "/v1/completions") for sent in ACTIVE]
REFUSED += [(CHAT, sent) for sent in ONLY_TEXT] + [("/v1/completions", s) for s in ONLY_CHAT]


@pytest.mark.parametrize(("path", "sent"), REFUSED)
def test_known_but_unsupported_is_refused(
    http: httpx.Client, path: str, sent: dict[str, Any]
) -> None:
    [name] = sent
    asked = HELLO if path == CHAT else {"prompt": "x"}
    reply = http.post(path, json={**asked, **sent})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"].startswith(f"{name} = ")


@pytest.mark.parametrize("nth", [0, -1])
def test_values_that_ask_for_nothing_are_accepted(
    http: httpx.Client, fake: FakeEngine, nth: int
) -> None:
    idle = {name: values[nth] for name, values in INACTIVE.items() if values}
    anything = {name: {"a": 1} for name in WITHOUT_EFFECT}
    reply = http.post(CHAT, json={**HELLO, **idle, **anything})
    assert reply.status_code == 200, reply.text
    assert "x-rushlight-ignored" not in reply.headers
    assert fake.submitted[-1].params == SamplingParams()


def test_a_field_is_in_one_table_only() -> None:
    obeyed: set[str] = set()
    for model in (ChatCompletionRequest, CompletionRequest):
        obeyed |= set(model.model_json_schema()["properties"])
    assert not obeyed & set(INACTIVE)
    assert not obeyed & WITHOUT_EFFECT
    assert not set(INACTIVE) & WITHOUT_EFFECT


def test_unknown_fields_are_ignored_and_named(http: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello", "id": "m1"}],
        "store": False,
        "user": "u",
        "metadata": {},
        "parallel_tool_calls": False,
        "xyz": 1,
        "stream_options": {"include_usage": True, "colour": "red"},
    }
    for stream in (False, True):
        reply = http.post(CHAT, json={**body, "stream": stream})
        assert reply.status_code == 200
        named = reply.headers["x-rushlight-ignored"]
        assert named == "xyz, stream_options.colour, messages[].id"


def test_a_name_that_is_no_header_value(http: httpx.Client) -> None:
    """An empty one at the end would leave white space there, which HTTP forbids."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "0": 1, "": 1, " é\n": 1}
    reply = http.post(CHAT, json=body)
    assert reply.headers["x-rushlight-ignored"] == '0, "", %20%C3%A9%0A'


def test_the_field_of_the_other_route_is_named(http: httpx.Client) -> None:
    for path, body, name, other in (
        (CHAT, {"prompt": "x"}, "prompt", "/v1/completions"),
        ("/v1/completions", HELLO, "messages", CHAT),
        ("/v1/completions", {**HELLO, "prompt": "x"}, "messages", CHAT),
    ):
        reply = http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        assert reply.json()["error"]["message"].startswith(f"{name} belongs to {other}")


FUNCTION = {"name": "f", "arguments": "{}"}
CALL = {"id": "c1", "type": "function", "index": 0, "function": FUNCTION}
REPLAYED: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}] * 2},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no", "text": "x"}]},
    {"role": "assistant", "tool_calls": [{**CALL, "custom": 1}]},
    {"role": "assistant", "tool_calls": [{**CALL, "function": {**FUNCTION, "strict": 1}}]},
]


def test_unknown_keys_inside_messages_are_named(http: httpx.Client, serve: Any) -> None:
    reply = http.post(CHAT, json={"messages": REPLAYED})
    assert reply.status_code == 200, reply.text
    names = [
        "messages[].content[].cache_control",
        "messages[].content[].text",
        "messages[].tool_calls[].custom",
        "messages[].tool_calls[].function.strict",
    ]
    assert reply.headers["x-rushlight-ignored"].split(", ") == names
    running: Running = serve(FakeEngine(Script()), server={"unknown_fields": "refuse"})
    for message, name in zip(REPLAYED, names, strict=True):
        reply = httpx.post(f"{running.url}{CHAT}", json={"messages": [message]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_nulls_inside_messages_are_absent(http: httpx.Client) -> None:
    """As the openai client's model_dump() has them."""
    replayed = {
        "role": "assistant",
        "content": [{"type": "text", "text": "x", "annotations": None}],
        "tool_calls": [{**CALL, "custom": None}],
        "annotations": None,
    }
    body = {"messages": [*HELLO["messages"], replayed], "stream_options": {"colour": None}}
    reply = http.post(CHAT, json=body)
    assert reply.status_code == 200, reply.text
    assert "x-rushlight-ignored" not in reply.headers


@pytest.mark.parametrize("prompt", ["x", [1]])
def test_a_million_prompts_are_counted_only(prompt: Any) -> None:
    with (
        Stopwatch() as watch,
        pytest.raises(ApiError, match="1000000 prompts in one request; at most 32") as refused,
    ):
        parse_request(CompletionRequest, {"prompt": [prompt] * 1_000_000}, 32)
    assert refused.value.param == "prompt"
    assert watch.loops < 15  # 75 when each was looked at


def test_keep_alive_is_named(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**HELLO, "keep_alive": "5m"})
    assert reply.headers["x-rushlight-ignored"] == "keep_alive"


def test_unknown_names_cannot_break_the_header(http: httpx.Client) -> None:
    bad = {"a\r\nSet-Cookie: x": 1, "é, ü": 2, "x" * 5000: 3, **{f"k{i}": i for i in range(1000)}}
    reply = http.post(CHAT, json={**HELLO, **bad})
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    named = reply.headers["x-rushlight-ignored"].split(", ")
    assert named[:2] == ["a%0D%0ASet-Cookie%3A%20x", "%C3%A9%2C%20%C3%BC"]
    assert named[2] == "x" * 64
    assert named[-1] == "..." and len(named) == 21


def test_unknown_fields_can_be_refused(serve: Any) -> None:
    running: Running = serve(FakeEngine(Script()), server={"unknown_fields": "refuse"})
    reply = httpx.post(f"{running.url}{CHAT}", json={**HELLO, "xyz": 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "xyz"
    assert httpx.post(f"{running.url}{CHAT}", json={**HELLO, "user": "u"}).status_code == 200


def test_the_template_may_refuse(http: httpx.Client) -> None:
    for stream in (False, True):
        reply = http.post(CHAT, json={**user("REFUSE"), "stream": stream})
        assert reply.status_code == 400
        assert reply.json()["error"] == {
            "message": "roles must alternate",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "chat_template_error",
        }
    assert http.post(CHAT, json=HELLO).status_code == 200
