"""Filling in the middle by a model that can, as editors ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.model_files import QWEN, needs

pytestmark = [pytest.mark.model, pytest.mark.slow, needs(QWEN)]

TAX = {"filename": "tax.py", "text": "WEIRD_TAX_RATE = 0.0725\n", "time": [1, 2]}


@pytest.fixture(scope="module")
def model() -> Path:
    return QWEN


@pytest.fixture(scope="module")
def coder(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def infill(coder: httpx.Client, before: str, after: str, **body: Any) -> Any:
    body |= {"input_prefix": before, "input_suffix": after}
    reply = coder.post("/infill", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_function_is_filled_in_and_works(coder: httpx.Client) -> None:
    before, after = "def add(a, b):\n", "\n\nprint(add(1, 2))\n"
    asked = {"prompt": "    return ", "n_predict": 32, "n_indent": 4, "top_k": 40, "top_p": 0.9}
    for samplers in (["top_k", "top_p", "infill"], ["temperature"]):
        body = infill(coder, before, after, samplers=samplers, **asked)
        code = before + asked["prompt"] + body["content"]  # type: ignore[operator]
        scope: dict[str, Any] = {}
        exec(code, scope)
        assert scope["add"](2, 3) == 5, code
    assert body["prompt"] == f"<|fim_prefix|>{before}    return <|fim_suffix|>{after}<|fim_middle|>"


def test_other_files_are_read_before_and_known(coder: httpx.Client) -> None:
    """As llama.vim does: first the files alone, then what stands around the cursor."""
    warm_up = {"input_extra": [TAX], "n_predict": 0, "samplers": [], "temperature": 0.0}
    read = infill(coder, "", "", **warm_up)
    assert read["prompt"] == (
        "<|repo_name|>myproject\n<|file_sep|>tax.py\nWEIRD_TAX_RATE = 0.0725\n"
        "<|file_sep|>filename\n<|fim_prefix|><|fim_suffix|><|fim_middle|>"
    )
    before = "from tax import WEIRD_TAX_RATE\n\ndef tax(price):\n"
    asked = {"prompt": "    return price * W", "n_predict": 16, "n_indent": 4}
    body = infill(coder, before, "\n", input_extra=[TAX], **asked)
    assert body["content"].startswith("EIRD_TAX_RATE")
    assert body["timings"]["cache_n"] >= read["tokens_cached"] - 2  # all but suffix and middle


def test_a_long_file_is_cut_to_what_fits(coder: httpx.Client) -> None:
    line = "value = compute(value, 1)\n"
    body = infill(coder, line * 300, line * 300, n_predict=8)
    assert body["truncated"] and body["rushlight"]["cut_tokens"] > 1000
    assert body["tokens_evaluated"] <= 1024 * 7 / 8
    typed = infill(coder, line * 300, line * 300, n_predict=8, prompt="value")
    assert typed["timings"]["cache_n"] > 500  # one who types on does not wait for it all again
