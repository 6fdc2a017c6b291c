"""After a reply the engine hears how the chat will go on, and reads it before it is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine import Engine, EngineConfig, TemplateOptions
from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection, wait_until
from tests.tiny_gguf import write_tiny_gguf

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
THINKING = ("<think>", "hm", "</think>", "Par", "is")
CALL = ('<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>',)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def http(serve: Any, engine: FakeEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=serve(engine).url, timeout=10) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_the_reply_as_it_comes_back(http: httpx.Client, engine: FakeEngine, stream: bool) -> None:
    engine.script = Script(THINKING)
    body = {"messages": HELLO, "stream": stream, "chat_template_kwargs": {"style": "terse"}}
    assert http.post(CHAT, json=body).status_code == 200
    wait_until(lambda: engine.next_turns)
    [turn] = engine.next_turns
    assert turn["messages"] == [*HELLO, {"role": "assistant", "content": "Paris"}]
    assert turn["template_kwargs"] == {"style": "terse"}
    assert turn["tools"] == []


def test_calls_come_back_too(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script = Script(CALL)
    reply = http.post(CHAT, json={"messages": HELLO, "tools": [TOOL]}).json()
    wait_until(lambda: engine.next_turns)
    [turn] = engine.next_turns
    assert turn["messages"][-1]["tool_calls"] == reply["choices"][0]["message"]["tool_calls"]
    assert turn["tools"] == [TOOL]


def test_a_continued_message_is_one(http: httpx.Client, engine: FakeEngine) -> None:
    begun = {"role": "assistant", "content": "It is "}
    http.post(CHAT, json={"messages": [*HELLO, begun]})
    wait_until(lambda: engine.next_turns)
    [turn] = engine.next_turns
    assert turn["messages"] == [*HELLO, {"role": "assistant", "content": "It is Paris."}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
        ("/v1/responses", {"input": "Hello"}),
        ("/api/chat", {"model": "m", "messages": HELLO}),
    ],
)
def test_every_family(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    assert http.post(path, json=body).status_code == 200
    wait_until(lambda: engine.next_turns)
    assert engine.next_turns[0]["messages"][-1] == {"role": "assistant", "content": "Paris."}


def test_nothing_where_it_is_not_clear_what_goes_on(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.post(CHAT, json={"messages": HELLO, "n": 2}).status_code == 200
    assert http.post("/v1/completions", json={"prompt": "Hello"}).status_code == 200
    http.post(CHAT, json={"messages": [{"role": "user", "content": "Last"}]})
    wait_until(lambda: engine.next_turns)
    assert [turn["messages"][0]["content"] for turn in engine.next_turns] == ["Last"]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_after_a_cancel(serve: Any, engine: FakeEngine, stream: bool) -> None:
    running: Running = serve(engine)
    engine.script = Script(("word ",), endless=True, delay_s=0.01)
    with RawConnection(running.port) as client:
        client.post(CHAT, {"messages": HELLO, "stream": stream})
        wait_until(lambda: engine.is_busy)
    engine.wait_until_idle()
    time.sleep(0.1)
    assert engine.next_turns == []


TEMPLATE = (  # drops earlier thinking, and ends each turn with tokens that the model does not write
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\nhm\n</think>' }}{% endif %}"
)


def test_the_next_turn_finds_the_whole_first_one_in_the_cache(serve: Any, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=TEMPLATE, n_ctx=512)
    with Engine(EngineConfig(path, n_ctx=512, disk_bytes=0)) as engine:
        with httpx.Client(base_url=serve(engine).url, timeout=20) as http:
            # Only letters: random bytes are no text, and would not come back as the same tokens.
            letters = {str(i): 100 for i in engine.encode_prompt("abcdefgh")}
            options = {"max_tokens": 60, "logit_bias": letters, "seed": 1}
            chat = [{"role": "user", "content": "Why is the sky blue? " * 3}]
            first = http.post(CHAT, json={"messages": chat, **options}).json()
            reply = first["choices"][0]["message"]["content"]
            assert len(reply) == 60
            chat.append({"role": "assistant", "content": reply})
            so_far = TemplateOptions(add_generation_prompt=False)
            n_first = len(engine.encode_chat(chat, so_far))
            chat.append({"role": "user", "content": "Really?"})
            wait_until(lambda: engine.estimate(engine.encode_chat(chat)).n_cached >= n_first)
            second = http.post(CHAT, json={"messages": chat, **options}).json()
        usage = second["usage"]
        n_cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert n_first <= n_cached < usage["prompt_tokens"]
