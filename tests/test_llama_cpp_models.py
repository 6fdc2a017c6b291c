"""llama-server's /completion and /infill on real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.real_models import QWEN, SMOLLM2, served
from tests.server.wire import parse_sse

pytestmark = pytest.mark.model

PROMPT = {"prompt": "The capital of France is", "n_predict": 12}
TAX = {"filename": "tax.py", "text": "WEIRD_TAX_RATE = 0.0725\n", "time": [1, 2]}


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    """A model without tokens for filling in."""
    with served(SMOLLM2) as running, httpx.Client(base_url=running.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def coder() -> Iterator[httpx.Client]:
    with served(QWEN) as running, httpx.Client(base_url=running.url, timeout=60) as client:
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


@pytest.mark.slow
def test_a_function_is_filled_in_and_works(coder: httpx.Client) -> None:
    before, after = "def add(a, b):\n", "\n\nprint(add(1, 2))\n"
    asked = {"prompt": "    return ", "n_predict": 32, "n_indent": 4, "top_k": 40, "top_p": 0.9}
    for samplers in (["top_k", "top_p", "infill"], ["temperature"]):
        body = ask(
            coder, "/infill", input_prefix=before, input_suffix=after, samplers=samplers, **asked
        )
        code = before + asked["prompt"] + body["content"]  # type: ignore[operator]
        scope: dict[str, Any] = {}
        exec(code, scope)
        assert scope["add"](2, 3) == 5, code
    assert body["prompt"] == f"<|fim_prefix|>{before}    return <|fim_suffix|>{after}<|fim_middle|>"


@pytest.mark.slow
def test_other_files_are_read_before_and_known(coder: httpx.Client) -> None:
    """As llama.vim does: first the files alone, then what stands around the cursor."""
    warm_up = {"input_prefix": "", "input_suffix": "", "input_extra": [TAX], "n_predict": 0}
    read = ask(coder, "/infill", **warm_up, samplers=[], temperature=0.0)
    assert read["prompt"] == (
        "<|repo_name|>myproject\n<|file_sep|>tax.py\nWEIRD_TAX_RATE = 0.0725\n"
        "<|file_sep|>filename\n<|fim_prefix|><|fim_suffix|><|fim_middle|>"
    )
    before = "from tax import WEIRD_TAX_RATE\n\ndef tax(price):\n"
    body = ask(
        coder,
        "/infill",
        input_prefix=before,
        input_suffix="\n",
        input_extra=[TAX],
        prompt="    return price * W",
        n_predict=16,
        n_indent=4,
    )
    assert body["content"].startswith("EIRD_TAX_RATE")
    assert body["timings"]["cache_n"] >= read["tokens_cached"] - 2  # all but suffix and middle


@pytest.mark.slow
def test_a_long_file_is_cut_to_what_fits(coder: httpx.Client) -> None:
    line = "value = compute(value, 1)\n"
    long = {"input_prefix": line * 300, "input_suffix": line * 300, "n_predict": 8}
    reply = coder.post("/infill", json=long)
    body = reply.json()
    assert body["truncated"] and body["tokens_evaluated"] <= 1024 * 7 / 8
    assert reply.headers["x-rushlight-dropped"] == f"{body['rushlight']['cut_tokens']} tokens"
    typed = ask(coder, "/infill", **{**long, "prompt": "value"})
    assert typed["timings"]["cache_n"] > 500  # one who types on does not wait for it all again
