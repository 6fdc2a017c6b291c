"""A real model behind the real server, asked through every client that a user may have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from clients.sse import ServerEvent, SSEDecoder
from tests.model_files import SMOLLM2, needs

ROOT = Path(__file__).resolve().parents[2]
QUESTION: Any = {"role": "user", "content": "What is the capital of France?"}

pytestmark = [pytest.mark.model, needs(SMOLLM2)]


def ask(*messages: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": SMOLLM2.stem,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": 32,
        **more,
    }


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where `rushlight serve` serves the demo model; it must end well when told to."""
    with subprocess.Popen(
        [sys.executable, "-m", "clients", "serve", str(SMOLLM2), "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            output = ""
            for line in process.stdout:
                output += line
                if line.startswith("curl "):
                    break
            found = re.search(r"listening on (http://\S+?),", output)
            assert found, output
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=20)
    assert process.returncode == 0


def test_httpx(url: str) -> None:
    reply = httpx.post(f"{url}/v1/chat/completions", json=ask(QUESTION), timeout=120)
    assert reply.status_code == 200
    assert "Paris" in reply.json()["choices"][0]["message"]["content"]


def test_httpx_streaming(url: str) -> None:
    asked = ask(QUESTION, stream=True)
    decoder = SSEDecoder()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=120) as reply:
        assert reply.status_code == 200
        events = [event for chunk in reply.iter_bytes() for event in decoder.feed(chunk)]
    data = [event.data for event in events if isinstance(event, ServerEvent)]
    assert data[-1] == "[DONE]"
    assert "Paris" in "".join(
        choice["delta"].get("content") or ""
        for line in data[:-1]
        for choice in json.loads(line)["choices"]
    )


def test_the_official_client(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**ask(QUESTION))
    assert "Paris" in reply.choices[0].message.content


def test_the_official_client_streaming(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(**ask(QUESTION, stream=True)))
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_second_turn_finds_all_of_the_first_in_the_cache(url: str) -> None:
    """Its reply too, and the end of its turn, which the model did not write."""

    def post(path: str, **body: Any) -> Any:
        return httpx.post(f"{url}/v1{path}", json=body, timeout=120).raise_for_status().json()

    first = post("/chat/completions", **ask(QUESTION))
    chat = [QUESTION, first["choices"][0]["message"]]
    counted = post("/chat/completions/input_tokens", messages=chat, add_generation_prompt=False)
    n_first = counted["input_tokens"]
    assert n_first > first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    chat.append({"role": "user", "content": "And of Italy?"})
    limit = time.monotonic() + 60
    while post("/estimate", messages=chat)["cached_tokens"] < n_first:
        assert time.monotonic() < limit, "it is not read in idle time"
        time.sleep(0.05)
    second = post("/chat/completions", **ask(*chat))
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_first


def test_prompt_needs_no_server() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "clients", "prompt", str(SMOLLM2), QUESTION["content"]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Paris" in shown.stdout
