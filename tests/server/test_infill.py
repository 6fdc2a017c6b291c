"""llama-server's /infill: what editors send, and what they read of the answer. And the chats that
they edit texts with.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine, Script
from tests.server.wire import chunks_of, wait_until

# As llama.vim sends it when one types: its version of 2025.
VIM: dict[str, Any] = {
    "input_prefix": "def add(a, b):\n",
    "input_suffix": "\n\nprint(add(1, 2))\n",
    "input_extra": [{"text": "x = 1\n", "time": [12, 345], "filename": "other.py"}],
    "prompt": "    return ",
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": [
        "content",
        "timings/prompt_n",
        "timings/prompt_ms",
        "timings/prompt_per_token_ms",
        "timings/prompt_per_second",
        "timings/predicted_n",
        "timings/predicted_ms",
        "timings/predicted_per_token_ms",
        "timings/predicted_per_second",
        "truncated",
        "tokens_cached",
    ],
}
# And before that, for the files only.
VIM_WARM_UP: dict[str, Any] = {
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": VIM["input_extra"],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "stream": False,
    "samplers": [],
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}


def test_what_an_editor_sends(http: httpx.Client, fake: FakeEngine) -> None:
    reply = http.post("/infill", json=VIM)
    assert reply.status_code == 200, reply.text
    assert "x-rushlight-ignored" not in reply.headers
    body = reply.json()
    assert list(body) == VIM["response_fields"]
    assert (body["content"], body["truncated"]) == ("Paris.", False)
    assert body["timings/predicted_n"] == 4
    sent = fake.submitted[-1]
    assert sent.prompt_ids == fake.encode_prompt(
        "<FILE>other.py:x = 1\n<PRE>def add(a, b):\n    return <SUF>\n\nprint(add(1, 2))\n<MID>"
    )
    assert (sent.options.n_indent, sent.options.max_write_s) == (4, 0.25)
    assert sent.params.samplers == ("top_k", "top_p", "infill")


def test_a_warm_up_is_answered_with_nothing(http: httpx.Client, fake: FakeEngine) -> None:
    reply = http.post("/infill", json=VIM_WARM_UP)
    assert (reply.status_code, reply.json()) == (200, {})
    assert fake.submitted[-1].params.max_tokens == 0
    vscode = {k: v for k, v in VIM_WARM_UP.items() if k not in ("response_fields", "temperature")}
    body = http.post("/infill", json=vscode).json()
    assert (body["content"], body["tokens_predicted"]) == ("", 0)
    assert body["prompt"] == "<FILE>other.py:x = 1\n<PRE><SUF><MID>"


def test_what_an_editor_sends_to_have_text_edited(http: httpx.Client, fake: FakeEngine) -> None:
    """llama.vim: while the instruction is typed, the chat as far as it is known; then all of it."""
    system = {"role": "system", "content": "Edit the SELECTION."}
    known = {"messages": [system, {"role": "user", "content": ""}], "id_slot": 1}
    warm_up = {"samplers": [], "n_predict": 0, "stream": False, "response_fields": [""]}
    n_prepared = len(fake.next_turns)
    reply = http.post("/v1/chat/completions", json={**known, **warm_up, "cache_prompt": True})
    assert reply.status_code == 200 and "x-rushlight-ignored" not in reply.headers
    [choice] = reply.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert fake.submitted[-1].params.max_tokens == 0
    asked = {"messages": [system, {"role": "user", "content": "INSTRUCTION: x"}], "id_slot": 1}
    asked |= {"min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"]}
    reply = http.post("/v1/chat/completions", json={**asked, "cache_prompt": True, "stream": True})
    assert reply.status_code == 200 and "x-rushlight-ignored" not in reply.headers
    deltas = [c["delta"] for chunk in chunks_of(reply.text) for c in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Paris."
    wait_until(lambda: len(fake.next_turns) > n_prepared)
    assert len(fake.next_turns) == n_prepared + 1  # none goes on from a chat that was only read


def test_choices_and_probabilities(http: httpx.Client, fake: FakeEngine) -> None:
    asked = {"input_prefix": "a", "input_suffix": "b", "n_cmpl": 2, "n_probs": 2}
    bodies = http.post("/infill", json=asked).json()
    assert [body["index"] for body in bodies] == [0, 1]
    for body in bodies:
        first = body["completion_probabilities"][0]
        assert first["token"] == "P" and len(first["top_logprobs"]) == 2
    assert [sent.params.n_probs for sent in fake.submitted[-2:]] == [2, 2]


def test_what_is_cut_is_told(http: httpx.Client) -> None:
    sent = {"input_prefix": "x" * 300, "input_suffix": "y"}
    reply = http.post("/infill", json=sent)
    body = reply.json()
    assert body["truncated"] and body["rushlight"]["cut_tokens"] == 300 - 256
    assert reply.headers["x-rushlight-dropped"] == "44 tokens"
    streamed = http.post("/infill", json={**sent, "stream": True})
    assert streamed.headers["x-rushlight-dropped"] == "44 tokens"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": None}, "input_suffix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"prompt": ["a"]}, "prompt"),
        ({"input_extra": {}}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a", "filename": 5}]}, "input_extra[0].filename"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_what_is_refused(http: httpx.Client, wrong: dict[str, Any], named: str) -> None:
    reply = http.post("/infill", json={**VIM, **wrong})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, 400)
    assert error["message"].startswith(named)


def test_a_model_that_cannot(serve: Any) -> None:
    engine = FakeEngine(Script())
    engine.can_infill = False
    reply = httpx.post(f"{serve(engine).url}/infill", json=VIM)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (501, 501)
    assert error["type"] == "not_supported_error" and "Qwen2.5-Coder" in error["message"]
