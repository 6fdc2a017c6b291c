"""llama-server's helpers, estimates, memory, and the page at the root."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from engine import EngineFailed
from tests.fake_engine import FakeEngine, Script
from tests.fake_text import BOS

HELLO = [{"role": "user", "content": "Hello"}]


def test_tokenize(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"content": "Hi"}).json() == {"tokens": [72, 105]}
    with_bos = http.post("/tokenize", json={"content": "Hi", "add_special": True}).json()
    assert with_bos == {"tokens": [BOS, 72, 105]}
    pieces = http.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()
    assert pieces["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},  # half a character
        {"id": 0xA9, "piece": [0xA9]},
    ]


def test_special_tokens_are_parsed_where_asked(http: httpx.Client) -> None:
    body = {"content": "<s>a"}
    assert http.post("/tokenize", json=body).json()["tokens"] == [BOS, 97]
    plain = http.post("/tokenize", json={**body, "parse_special": False}).json()["tokens"]
    assert bytes(plain).decode() == "<s>a"


def test_detokenize(http: httpx.Client) -> None:
    assert http.post("/detokenize", json={"tokens": [72, 105]}).json() == {"content": "Hi"}
    assert http.post("/detokenize", json={"tokens": []}).json() == {"content": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 3}, "content"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [9999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/v1/estimate", {"messages": []}, "messages"),
    ],
)
def test_refusals(http: httpx.Client, path: str, body: Any, param: str) -> None:
    reply = http.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_apply_template(http: httpx.Client, fake: FakeEngine) -> None:
    reply = http.post("/apply-template", json={"messages": HELLO, "reasoning_effort": "none"})
    assert reply.json() == {"prompt": "<user>Hello<assistant>"}
    assert fake.chats[-1]["template_kwargs"] == {"enable_thinking": False}


def test_props(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (props["model_alias"], props["model_ftype"]) == ("fake-1b", "Q4_1")
    assert props["chat_template"] == "{{ messages }}"
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert props["modalities"] == {"vision": False, "audio": False}
    assert props["total_slots"] >= 1


def test_estimate(http: httpx.Client, fake: FakeEngine) -> None:
    n_submitted = len(fake.submitted)
    found = http.post("/v1/estimate", json={"messages": HELLO, "max_tokens": 10}).json()
    n_prompt = len("<user>Hello<assistant>") + 1
    assert found["prompt_tokens"] == n_prompt and found["fits"]
    assert (found["max_tokens"], found["n_ctx"], found["requests_ahead"]) == (10, 512, 0)
    # The fake's speeds: 100 prompt tokens and 10 of a reply each second.
    prefill_s = (n_prompt - found["cached_tokens"]) / 100
    assert found["seconds_to_first_token"] == pytest.approx(prefill_s)
    assert found["seconds_to_last_token"] == pytest.approx(prefill_s + 1)
    assert len(fake.submitted) == n_submitted  # nothing ran
    asked = {"messages": HELLO, "max_tokens": 1}
    assert http.post("/v1/chat/completions", json=asked).status_code == 200
    assert http.post("/v1/estimate", json=asked).json()["cached_tokens"] > 0
    anew = http.post("/v1/estimate", json={**asked, "cache_prompt": False}).json()
    assert anew["cached_tokens"] == 0
    unlimited = http.post("/v1/estimate", json={"messages": HELLO}).json()
    assert unlimited["max_tokens"] == 512 - n_prompt and unlimited["fits"]


def test_what_does_not_fit(http: httpx.Client) -> None:
    much = http.post("/v1/estimate", json={"messages": HELLO, "max_tokens": 500}).json()
    assert not much["fits"] and much["seconds_to_first_token"] is not None
    long = [{"role": "user", "content": "x" * 600}]
    found = http.post("/v1/estimate", json={"messages": long}).json()
    assert (found["fits"], found["max_tokens"]) == (False, 0)
    assert found["prompt_tokens"] > 600 and found["seconds_to_first_token"] is None


def test_memory(http: httpx.Client) -> None:
    memory = http.get("/v1/memory").json()
    parts = ("weights", "libraries", "kv", "workspace", "process")
    assert memory["rss"] == sum(memory[part] for part in parts)
    assert memory["chats"] == [{"n_tokens": 7, "n_bytes": 700, "is_running": False}]


def test_the_page_says_what_runs(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "fake-1b" in page.text and "512 tokens" in page.text
    assert "//" not in page.text.replace("<!doctype html>", "")  # loads nothing from elsewhere
    assert http.head("/").status_code == 200


def test_the_page_while_it_loads_and_after_a_failure(serve: Any) -> None:
    stuck = threading.Event()
    loading = serve(lambda on_load: stuck.wait(30) and FakeEngine(Script()))
    page = httpx.get(loading.url)
    assert page.status_code == 200 and "loading" in page.text
    stuck.set()
    engine = FakeEngine()
    failed = serve(engine)
    engine._fatal = EngineFailed("<b>broken</b>")
    assert "&lt;b&gt;broken" in httpx.get(failed.url).text
