"""The two completion routes: what reaches the engine and what comes back, whole and streamed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine import Finished, FinishReason, SamplingParams, Timings
from server.reply_events import Ended, Totals
from server.timings import WireTimings
from tests.fake_engine import FakeEngine, Script
from tests.fake_text import BOS, N_VOCAB
from tests.server.wire import chunks_of

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
TIMINGS = {  # llama.cpp's names
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
}


def bodies(http: httpx.Client, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The same request not streamed and streamed."""
    whole = http.post(path, json=body)
    stream = http.post(path, json={**body, "stream": True})
    assert whole.status_code == stream.status_code == 200, whole.text + stream.text
    return whole.json(), chunks_of(stream.text)


def test_chat_has_openais_shape(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=HELLO).json()
    timings = reply.pop("timings")
    created = reply.pop("created")
    assert reply.pop("id").startswith("chatcmpl-")
    assert isinstance(created, int)
    n_prompt = len("<user>Hello<assistant>") + 1
    cached = reply["usage"].pop("prompt_tokens_details")
    assert set(cached) == {"cached_tokens"}
    assert reply["usage"].pop("completion_tokens_details") == {"reasoning_tokens": 0}
    assert reply == {
        "object": "chat.completion",
        "model": "fake-1b",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": 4,
            "total_tokens": n_prompt + 4,
        },
    }
    assert timings["prompt_n"] + timings["cache_n"] == n_prompt
    assert timings["predicted_n"] == 4
    assert set(timings) == TIMINGS


def test_timings_divide_what_they_say() -> None:
    ends = [
        Ended(0, "stop", Finished(FinishReason.STOP, "", 30, 10, 4, Timings(9.0, 0.5, 1.0))),
        Ended(1, "length", Finished(FinishReason.LENGTH, "", 20, 0, 6, Timings(9.0, 1.5, 3.0))),
    ]
    assert WireTimings.of(Totals.of(ends)).model_dump() == {
        "cache_n": 10,
        "prompt_n": 40,
        "prompt_ms": 2000,
        "prompt_per_token_ms": 50,
        "prompt_per_second": 20,
        "predicted_n": 10,
        "predicted_ms": 4000,
        "predicted_per_token_ms": 400,
        "predicted_per_second": 2.5,
    }
    nothing = [Ended(0, "length", Finished(FinishReason.LENGTH, "", 0, 0, 0, Timings()))]
    assert set(WireTimings.of(Totals.of(nothing)).model_dump().values()) == {0}


def test_text_has_openais_shape(http: httpx.Client) -> None:
    reply = http.post(TEXT, json={"prompt": "Hello"}).json()
    assert reply["id"].startswith("cmpl-")
    assert reply["object"] == "text_completion"
    assert reply["choices"] == [
        {"text": "Paris.", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert reply["usage"]["prompt_tokens"] == len("Hello") + 1


def test_cached_tokens_are_reported(http: httpx.Client) -> None:
    http.post(TEXT, json={"prompt": "abcdef"})
    usage = http.post(TEXT, json={"prompt": "abcxyz"}).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}  # BOS and "abc"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("n", [1, 5, 20])
def test_limit_is_exact(http: httpx.Client, fake: FakeEngine, path: str, n: int) -> None:
    fake.script = Script(("a",), endless=True)
    body = {"prompt": "x", "max_tokens": n} if path == TEXT else {**HELLO, "max_tokens": n}
    whole, chunks = bodies(http, path, {**body, "stream_options": {"include_usage": True}})
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == n
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == n
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_held_back_text_and_stop_strings_pass_through(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(("UNO ", "DUE ", "", ""), tail="TRE")
    whole, chunks = bodies(http, TEXT, {"prompt": "x"})
    assert whole["choices"][0]["text"] == "UNO DUE TRE"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "UNO DUE TRE"
    fake.script = Script(("alpha ", "beta ", "gamma ", "delta"))
    whole, chunks = bodies(http, CHAT, {**HELLO, "stop": ["beta gamma"]})
    assert whole["choices"][0]["message"]["content"] == "alpha "
    assert whole["choices"][0]["finish_reason"] == "stop"
    whole, chunks = bodies(http, CHAT, {**HELLO, "stop": "alpha"})
    assert whole["choices"][0]["message"]["content"] == ""
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {},
    ]


@pytest.mark.parametrize("stop", [None, [], "", [""]])
def test_stops_that_stop_nothing(http: httpx.Client, fake: FakeEngine, stop: Any) -> None:
    whole, _ = bodies(http, TEXT, {"prompt": "x", "stop": stop})
    assert whole["choices"][0]["text"] == "Paris."
    assert fake.submitted[-1].params.stop == ()


def test_every_sampling_field_reaches_the_engine(http: httpx.Client, fake: FakeEngine) -> None:
    sent = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "repeat_last_n": 9,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "logit_bias": {"5": -100, "6": 1.5},
        "seed": 42,
        "stop": ["END", "STOP"],
        "ignore_eos": True,
    }
    assert http.post(CHAT, json={**HELLO, **sent}).status_code == 200
    assert fake.submitted[-1].params == SamplingParams(
        max_tokens=7,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        repeat_penalty=1.5,
        repeat_last_n=9,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias={5: -100.0, 6: 1.5},
        seed=42,
        stop=("END", "STOP"),
        ignore_eos=True,
    )


@pytest.mark.parametrize(
    ("sent", "name", "expected"),
    [
        ({"max_completion_tokens": 3}, "max_tokens", 3),
        ({"n_predict": 3}, "max_tokens", 3),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"repetition_penalty": 1.25}, "repeat_penalty", 1.25),
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", 2**63 - 2),
        ({"logit_bias": {}}, "logit_bias", {}),
    ],
)
def test_other_spellings(
    http: httpx.Client, fake: FakeEngine, sent: dict[str, Any], name: str, expected: Any
) -> None:
    assert http.post(CHAT, json={**HELLO, **sent}).status_code == 200
    assert getattr(fake.submitted[-1].params, name) == expected


def test_limits_where_a_request_says_nothing(http: httpx.Client, fake: FakeEngine) -> None:
    http.post(CHAT, json=HELLO)
    assert fake.submitted[-1].params == SamplingParams()
    http.post(TEXT, json={"prompt": "x"})
    assert fake.submitted[-1].params == SamplingParams(max_tokens=16)  # OpenAI's default


def test_nulls_are_absent(http: httpx.Client, fake: FakeEngine) -> None:
    names = (
        "max_tokens max_completion_tokens temperature top_p n stop seed stream stream_options "
        "logit_bias logprobs top_logprobs presence_penalty frequency_penalty tools tool_choice "
        "response_format user top_k chat_template_kwargs model"
    )
    reply = http.post(CHAT, json={**HELLO, **dict.fromkeys(names.split())})
    assert reply.status_code == 200
    assert "x-rushlight-ignored" not in reply.headers
    assert fake.submitted[-1].params == SamplingParams()


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("A", ["A"]),
        (["A"], ["A"]),
        (["A", "B"], ["A", "B"]),
        ([BOS, 65], ["A"]),
        ([[BOS, 65], [BOS, 66]], ["A", "B"]),
        (["A", [BOS, 66]], ["A", "B"]),
    ],
)
def test_prompts_of_every_form(
    http: httpx.Client, fake: FakeEngine, prompt: Any, texts: list[str]
) -> None:
    fake.script = lambda text: Script((f"<{text}", ">"))
    body = {"prompt": prompt, "temperature": 0}
    whole, chunks = bodies(http, TEXT, {**body, "stream_options": {"include_usage": True}})
    assert [choice["text"] for choice in whole["choices"]] == [f"<{text}>" for text in texts]
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(texts)))
    assert whole["usage"]["prompt_tokens"] == 2 * len(texts)
    assert whole["usage"]["completion_tokens"] == 3 * len(texts)
    streamed = dict.fromkeys(range(len(texts)), "")
    reasons: list[int] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons.append(choice["index"])
    assert list(streamed.values()) == [f"<{text}>" for text in texts]
    assert sorted(reasons) == list(range(len(texts)))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["total_tokens"] == 5 * len(texts)


@pytest.mark.parametrize(
    "prompt",
    [[], [[]], ["A", 1], ["A", []], [N_VOCAB], [-1], 5, {"a": 1}, [1.5], [True], [[65, "a"]]],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_prompts_are_refused(http: httpx.Client, prompt: Any, stream: bool) -> None:
    for more in ({}, {"echo": True}, {"guided_regex": "a+"}):
        reply = http.post(TEXT, json={"prompt": prompt, "stream": stream, **more})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "prompt"


def test_more_prompts_than_may_wait(http: httpx.Client, fake: FakeEngine) -> None:
    reply = http.post(TEXT, json={"prompt": ["A"] * 33})
    assert reply.status_code == 400
    assert "at most 32" in reply.json()["error"]["message"]
    fake.wait_until_idle()


def test_chat_messages_reach_the_template(http: httpx.Client, fake: FakeEngine) -> None:
    call = {"name": "lookup", "arguments": '{"city": "Paris"}'}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "name": "Ann", "content": "Well?"},
    ]
    body = {
        "messages": messages,
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert http.post(CHAT, json=body).status_code == 200
    parsed_call = {"name": "lookup", "arguments": {"city": "Paris"}}
    assert fake.chats[-1] == {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "a\nb"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": parsed_call}],
                "reasoning_content": "Hm.",
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c1", "name": "lookup"},
            {"role": "user", "content": "Well?", "name": "Ann"},
        ],
        "add_generation_prompt": False,
        "tools": [],
        "documents": (),
        "template_kwargs": {"enable_thinking": False},
        "continue_last": False,
    }


@pytest.mark.parametrize(("arguments", "read"), [("", {}), ("{oops", "{oops"), ("[1]", "[1]")])
def test_odd_tool_arguments(
    http: httpx.Client, fake: FakeEngine, arguments: str, read: Any
) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    assert http.post(CHAT, json={"messages": messages}).status_code == 200
    function = fake.chats[-1]["messages"][0]["tool_calls"][0]["function"]
    assert function == {"name": "f", "arguments": read}


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_one_text_part_equals_its_text(http: httpx.Client, role: str) -> None:
    counts = [
        http.post(CHAT, json={"messages": [{"role": role, "content": content}]}).json()["usage"][
            "prompt_tokens"
        ]
        for content in ("Hello", [{"type": "text", "text": "Hello"}])
    ]
    assert counts[0] == counts[1]


def test_absent_content_equals_null(http: httpx.Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    counts = []
    for extra in ({}, {"content": None}):
        messages = [{"role": "assistant", "tool_calls": [call], **extra}]
        reply = http.post(CHAT, json={"messages": messages})
        assert reply.status_code == 200
        counts.append(reply.json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]


def test_the_model_name_is_the_servers(http: httpx.Client) -> None:
    reply = http.post(CHAT, json={**HELLO, "model": "gpt-4o"})
    assert reply.json()["model"] == "fake-1b"
