"""llama-server's /completion on the wire: its objects, its fields, its errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine import EngineError
from tests.fake_engine import FakeEngine, Script
from tests.fake_text import BOS
from tests.server.wire import parse_sse

PROMPT = {"prompt": "The capital"}
N_PROMPT = 1 + len("The capital")


def complete(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/completion", json={**PROMPT, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    reply = http.post("/completion", json={**PROMPT, "stream": True, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(item) for item in parse_sse(reply.text)[0]]  # and no [DONE]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_whole_one(http: httpx.Client, path: str) -> None:
    body = http.post(path, json={**PROMPT, "temperature": 0, "seed": 3}).json()
    timings = body.pop("timings")
    assert timings["predicted_n"] == 4 and timings["cache_n"] + timings["prompt_n"] == N_PROMPT
    settings = body.pop("generation_settings")
    body.pop("rushlight", None)
    assert body == {
        "index": 0,
        "content": "Paris.",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "fake-1b",
        "tokens_predicted": 4,
        "tokens_evaluated": N_PROMPT,
        "prompt": "The capital",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": N_PROMPT + 3,  # the end token is not read
    }
    assert (settings["temperature"], settings["seed"], settings["n_predict"]) == (0, 3, -1)
    assert settings["samplers"][0] == "penalties" and settings["n_ctx"] == 512


def test_generation_settings(http: httpx.Client) -> None:
    """Names as llama-server has them; what it can and we never do is told as not in force."""
    grammar = 'root ::= "a"'
    sent = {"logit_bias": [[80, 1.5], [81, False]], "grammar": grammar, "n_keep": 64}
    settings = complete(http, **sent)["generation_settings"]
    assert settings["logit_bias"] == [{"bias": 1.5, "token": 80}, {"bias": -100.0, "token": 81}]
    assert settings["grammar"] == grammar and settings["stream"] is False
    never = {"n_keep": 0, "n_discard": 0, "grammar_lazy": False, "grammar_triggers": []}
    never |= {"preserved_tokens": [], "backend_sampling": False}
    assert {name: settings[name] for name in never} == never
    assert settings["lora"] == []
    streamed = stream(http, json_schema={"type": "integer"})[-1]["generation_settings"]
    assert (streamed["stream"], streamed["grammar"]) == (True, "")


def test_a_stream(http: httpx.Client) -> None:
    *pieces, last = stream(http)
    assert [piece["content"] for piece in pieces] == ["Par", "is", "."]
    assert [piece["tokens"] for piece in pieces] == [[ord("P")], [ord("i")], [ord(".")]]
    assert [piece["tokens_predicted"] for piece in pieces] == [1, 2, 3]
    for piece in pieces:  # upstream's keys of what is not the last
        assert list(piece) == [
            *("index", "content", "tokens", "stop", "id_slot"),
            *("tokens_predicted", "tokens_evaluated"),
        ]
        assert piece["tokens_evaluated"] == N_PROMPT and not piece["stop"]
    whole = complete(http)
    assert last.keys() == whole.keys()
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    assert (last["stop_type"], last["tokens_predicted"]) == ("eos", 4)


@pytest.mark.parametrize("streamed", [False, True])
def test_why_it_ended(http: httpx.Client, fake: FakeEngine, streamed: bool) -> None:
    def last(**body: Any) -> dict[str, Any]:
        return stream(http, **body)[-1] if streamed else complete(http, **body)

    assert last(n_predict=2)["stop_type"] == "limit"
    stopped = last(stop=["is", "x"])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "is")
    fake.script = Script(("a\n", "b"))
    assert last()["has_new_line"]
    fake.script = Script(("a",), endless=True)
    full = last(n_predict=512 - N_PROMPT)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert not last(n_predict=5)["truncated"]


def test_nothing_but_the_prompt(http: httpx.Client) -> None:
    body = complete(http, n_predict=0)
    assert (body["content"], body["tokens_predicted"]) == ("", 0)
    assert (body["stop_type"], body["tokens_cached"]) == ("limit", N_PROMPT)
    [last] = stream(http, n_predict=0)
    assert last["stop"] and last["tokens_evaluated"] == N_PROMPT


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("Hi", ["Hi"]),
        (["Hi"], ["Hi"]),
        (["Hi", "you"], ["Hi", "you"]),
        ([72, 105], ["Hi"]),
        ([[72, 105]], ["Hi"]),
        ([72, "i ", 33, "<s>"], ["Hi !"]),
        (["Hi", [72, "i"], {"prompt_string": "yes"}], ["Hi", "Hi", "yes"]),
    ],
)
def test_prompts(http: httpx.Client, fake: FakeEngine, prompt: Any, texts: list[str]) -> None:
    bodies = complete(http, prompt=prompt)
    bodies = bodies if isinstance(bodies, list) else [bodies]
    assert [body["prompt"] for body in bodies] == texts
    assert [body["index"] for body in bodies] == list(range(len(texts)))


def test_bos_goes_before_a_text_and_a_special_token_may_be_written(
    http: httpx.Client, fake: FakeEngine
) -> None:
    complete(http, prompt=[72, "i", "<s>"])
    assert fake.submitted[-1].prompt_ids == [72, 105, BOS]
    complete(http, prompt=[["H", 105]])
    assert fake.submitted[-1].prompt_ids == [BOS, 72, 105]


def test_several_choices(http: httpx.Client) -> None:
    assert [one["index"] for one in complete(http, n_cmpl=2)] == [0, 1]
    ends = [one["index"] for one in stream(http, n=2, prompt=["a", "b"]) if one["stop"]]
    assert sorted(ends) == [0, 1, 2, 3]


def test_tokens_and_probabilities(http: httpx.Client) -> None:
    body = complete(http, return_tokens=True, n_probs=2)
    assert body["tokens"] == [ord("P"), ord("i"), ord(".")]
    first = body["completion_probabilities"][0]
    assert (first["id"], first["token"], first["bytes"]) == (ord("P"), "P", [ord("P")])
    assert first["logprob"] == -1
    assert first["top_logprobs"] == [
        {"id": ord("P"), "token": "P", "logprob": -1.0, "bytes": [ord("P")]},
        {"id": ord("Q"), "token": "Q", "logprob": -2.0, "bytes": [ord("Q")]},
    ]
    *pieces, last = stream(http, logprobs=1)
    assert [len(piece["completion_probabilities"]) for piece in pieces] == [1, 1, 1]
    assert "completion_probabilities" not in last
    assert "completion_probabilities" not in complete(http)


def test_probabilities_after_the_samplers(http: httpx.Client, fake: FakeEngine) -> None:
    body = complete(http, n_probs=1, post_sampling_probs=True)
    first = body["completion_probabilities"][0]
    listed = {"id": ord("P"), "token": "P", "bytes": [ord("P")], "prob": pytest.approx(0.3678794)}
    assert first == {**listed, "top_probs": [listed]}  # e to the -1
    assert fake.submitted[-1].params.post_sampling_probs
    assert body["generation_settings"]["post_sampling_probs"]


@pytest.mark.parametrize("streamed", [False, True])
def test_response_fields(http: httpx.Client, streamed: bool) -> None:
    wanted = ["content", "timings/predicted_n", "generation_settings/top_k", "nothing", "model/x"]
    if streamed:
        *pieces, body = stream(http, response_fields=wanted)
        assert all(piece.keys() >= {"index", "content", "stop"} for piece in pieces)
    else:
        body = complete(http, response_fields=wanted)
    text = "" if streamed else "Paris."
    expected = {"content": text, "timings/predicted_n": 4, "generation_settings/top_k": 40}
    assert body == expected
    assert complete(http, response_fields=[""]) == {}


def test_what_is_obeyed(http: httpx.Client, fake: FakeEngine) -> None:
    body = complete(
        http,
        n_predict=7,
        samplers=["top_k", "infill"],
        n_indent=4,
        t_max_predict_ms=500,
        logit_bias=[[80, 1.5], ["81", False]],
        json_schema={"type": "integer"},
        max_time_ms=9000,
        cache_prompt=False,
    )
    sent = fake.submitted[-1]
    assert sent.options.max_time_s == 9 and not sent.options.use_cache
    assert sent.params.max_tokens == 7 and sent.params.samplers == ("top_k", "infill")
    assert sent.params.logit_bias == {80: 1.5, 81: -100.0}
    assert (sent.options.n_indent, sent.options.max_write_s) == (4, 0.5)
    assert (fake.rules.kind, fake.rules.source) == ("json_schema", {"type": "integer"})
    assert body["generation_settings"]["max_tokens"] == 7
    complete(http, samplers="edkypmxt", logit_bias={"80": False})
    sent = fake.submitted[-1]
    assert sent.params.samplers == (
        *("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    )
    assert sent.params.logit_bias == {80: -100.0}
    assert sent.options.max_write_s is None and sent.options.use_cache


def test_what_has_no_effect_here(http: httpx.Client, fake: FakeEngine) -> None:
    body = {"id_slot": 2, "n_keep": 64, "n_discard": 5, "t_max_prompt_ms": 500, "verbose": True}
    idle = {"cache_prompt": True, "t_max_predict_ms": -1, "n_indent": 0, "lora": []}
    idle |= {"echo": False, "best_of": 1, "suffix": ""}
    reply = http.post("/completion", json={**PROMPT, **body, **idle})
    assert reply.status_code == 200 and "x-rushlight-ignored" not in reply.headers
    assert fake.submitted[-1].options.max_write_s is None
    reply = http.post("/completion", json={**PROMPT, "colour": "red"})
    assert reply.headers["x-rushlight-ignored"] == "colour"


def test_unknown_keys_of_a_prompt_are_named(http: httpx.Client) -> None:
    prompt = {"prompt_string": "Hi", "multimodal_data": None, "colour": "red"}
    reply = http.post("/completion", json={"prompt": prompt})
    assert reply.status_code == 200 and reply.json()["prompt"] == "Hi"
    assert reply.headers["x-rushlight-ignored"] == "prompt[].colour"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "reads text only"),
        ({"prompt": {"prompt_string": 5}}, "prompt: prompt_string: Input should be a valid string"),
        ({"prompt": ["a", {"text": "a"}]}, "prompt: prompt_string: Field required"),
        ({"prompt": [9999]}, "token id 9999"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_indent": -1}, "n_indent"),
        ({"n_cmpl": 0}, "n_cmpl"),
        ({"samplers": ["top_x"]}, "samplers"),
        ({"samplers": "kq"}, "samplers"),
        ({"samplers": ["top_k", "penalties"]}, "samplers"),
        ({"logit_bias": [["Hello", 1]]}, "logit_bias"),
        ({"logit_bias": [[1, 2, 3]]}, "logit_bias"),
        ({"logit_bias": [[[1], 1]]}, "logit_bias"),
        ({"logit_bias": [[{}, 1]]}, "logit_bias"),
        ({"logit_bias": [[None, 1]]}, "logit_bias"),
        ({"logit_bias": [[1.5, 1]]}, "logit_bias"),
        ({"logit_bias": [[True, 1]]}, "logit_bias"),
        ({"logit_bias": [[1, 2], ["1", 3]]}, "logit_bias"),
        ({"response_fields": "content"}, "response_fields"),
        ({"lora": [{"id": 0, "scale": 0.5}]}, "lora"),
        ({"image_data": [{"data": ""}]}, "image_data"),
        ({"timings_per_token": 1}, "timings_per_token"),
        ({"messages": []}, "messages"),
        ({"suffix": "x"}, "input_suffix"),
        ({"grammar": "root ::= [a]", "json_schema": {}}, "json_schema"),
        ({"context_policy": "slide"}, "context_policy"),
    ],
)
def test_what_is_refused(http: httpx.Client, wrong: dict[str, Any], named: str) -> None:
    reply = http.post("/completion", json={**PROMPT, **wrong})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["code"] == 400 and error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert error.keys() == {"code", "message", "type"}


def test_a_prompt_that_is_too_long(http: httpx.Client) -> None:
    reply = http.post("/completion", json={"prompt": "x" * 600})
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (601, 512)


def test_who_may_not_ask_is_told_in_the_same_way(serve: Any) -> None:
    running = serve(FakeEngine(), server={"api_keys": ["secret"]})
    for path in ("/completion", "/infill"):
        reply = httpx.post(f"{running.url}{path}", json=PROMPT)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (401, 401)
        assert error["type"] == "authentication_error"


def test_an_error_in_mid_stream(http: httpx.Client, fake: FakeEngine) -> None:
    fake.script = Script(fail_after=1, error=EngineError("broken"))
    first, last = stream(http)
    assert first["content"] == "Par"
    assert last["error"]["code"] == 500 and last["error"]["type"] == "server_error"


def test_who_waits_is_told(serve: Any) -> None:
    running = serve(FakeEngine(Script(prefill_s=0.3)), server={"progress_every_s": 0.1})
    body = {**PROMPT, "stream": True, "return_progress": True}
    text = httpx.post(f"{running.url}/completion", json=body, timeout=20).text
    data, comments = parse_sse(text)
    assert any(comment.startswith("prefill ") for comment in comments)
    waiting = [o for o in map(json.loads, data) if "prompt_progress" in o]
    assert waiting and all(o["content"] == "" and not o["stop"] for o in waiting)
    assert waiting[-1]["prompt_progress"]["total"] == N_PROMPT
