"""llama-server's completions on the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.model_files import SMOLLM2, needs
from tests.server.wire import parse_sse

pytestmark = [pytest.mark.model, needs(SMOLLM2)]

PROMPT = {"prompt": "The capital of France is", "n_predict": 12}


@pytest.fixture(scope="module")
def model() -> Path:
    return SMOLLM2


@pytest.fixture(scope="module")
def plain(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_completions_of_every_kind_of_prompt_are_alike(plain: httpx.Client) -> None:
    whole = ask(plain, "/completion", **PROMPT, return_tokens=True)
    assert "Paris" in whole["content"] and whole["stop_type"] == "limit"
    text = plain.post("/detokenize", json={"tokens": whole["tokens"]}).json()["content"]
    assert text == whole["content"]
    ids = ask(plain, "/tokenize", content=PROMPT["prompt"], add_special=True)["tokens"]
    assert (whole["tokens_evaluated"], whole["tokens_predicted"]) == (len(ids), 12)
    last_word = ask(plain, "/tokenize", content=" is")["tokens"]
    mixed = ["The capital of France", *last_word]
    for one in ask(plain, "/completion", prompt=[ids, PROMPT["prompt"], mixed], n_predict=12):
        assert one["content"] == whole["content"] and one["prompt"] == whole["prompt"]


def test_a_stream_joins_to_the_whole(plain: httpx.Client) -> None:
    whole = ask(plain, "/completion", **PROMPT, return_tokens=True, n_probs=2)
    reply = plain.post("/completion", json={**PROMPT, "stream": True, "n_probs": 2})
    *pieces, last = [json.loads(item) for item in parse_sse(reply.text)[0]]
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
    scored = [one for piece in pieces for one in piece["completion_probabilities"]]
    assert [one["id"] for one in scored] == whole["tokens"]
    assert all(one["top_logprobs"][0]["id"] == one["id"] for one in scored)  # temperature 0
    assert last["stop"] and last["tokens_predicted"] == 12


def test_a_prompt_that_was_only_read_is_there_afterwards(plain: httpx.Client) -> None:
    prompt = "Once upon a time, in a country far away, there lived a king who had three sons."
    read = ask(plain, "/completion", prompt=prompt, n_predict=0)
    assert (read["content"], read["tokens_predicted"]) == ("", 0)
    more = ask(plain, "/completion", prompt=f"{prompt} The youngest", n_predict=4)
    assert more["timings"]["cache_n"] == read["tokens_cached"] == read["tokens_evaluated"]


def test_a_chat_that_was_only_read_is_there_afterwards(plain: httpx.Client) -> None:
    """As llama.vim has it: the instruction is typed while the rest of the chat is read."""
    context = "The SELECTION stands in a letter to the captain of a ship. " * 5
    system = {"role": "system", "content": f"Edit the SELECTION.\n{context}"}
    read = ask(
        plain,
        "/v1/chat/completions",
        messages=[system, {"role": "user", "content": ""}],
        id_slot=1,
        samplers=[],
        n_predict=0,
        response_fields=[""],
    )
    assert (read["choices"][0]["message"]["content"], read["usage"]["completion_tokens"]) == ("", 0)
    asked = {"role": "user", "content": "INSTRUCTION: make it polite"}
    more = ask(plain, "/v1/chat/completions", messages=[system, asked], max_tokens=4)
    assert more["timings"]["cache_n"] > 0.8 * read["usage"]["prompt_tokens"]


def test_samplers_that_are_not_listed_are_off(plain: httpx.Client) -> None:
    greedy = ask(plain, "/completion", **PROMPT)["content"]
    hot = {"temperature": 1000.0, "top_k": 1, "min_p": 0.0, "repeat_penalty": 50.0}
    assert ask(plain, "/completion", **PROMPT, **hot, samplers=["top_k"])["content"] == greedy
    assert ask(plain, "/completion", **PROMPT, **hot, samplers="e")["content"] != greedy


def test_probabilities_after_the_samplers_add_up(plain: httpx.Client) -> None:
    body = {**PROMPT, "temperature": 1.5, "top_k": 3, "n_probs": 5, "post_sampling_probs": True}
    for one in ask(plain, "/completion", **body, samplers="kt")["completion_probabilities"]:
        probs = {other["id"]: other["prob"] for other in one["top_probs"]}
        assert len(probs) == 3 and sum(probs.values()) == pytest.approx(1, abs=1e-5)
        assert probs[one["id"]] == one["prob"] > 0
    greedy = ask(plain, "/completion", **{**body, "temperature": 0})["completion_probabilities"]
    assert all(one["prob"] == 1 and len(one["top_probs"]) == 1 for one in greedy)


def test_a_reply_ends_with_a_line(plain: httpx.Client) -> None:
    body = {"prompt": "A list of three fruits:\n- apple\n", "n_predict": 60}
    late = ask(plain, "/completion", **body, t_max_predict_ms=1)
    assert late["content"].index("\n") == len(late["content"]) - 1
    assert (late["stop_type"], late["has_new_line"]) == ("limit", True)
    assert ask(plain, "/completion", **body)["content"].startswith(late["content"])
    indented = ask(plain, "/completion", **body, n_indent=1)
    assert indented["content"].rstrip("\n") == late["content"].rstrip("\n")


def test_a_model_without_the_tokens_cannot_fill_in(plain: httpx.Client) -> None:
    reply = plain.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (501, "not_supported_error")
