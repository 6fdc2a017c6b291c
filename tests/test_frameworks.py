"""LangChain and LlamaIndex hold a conversation with a tool, with a model that calls it by itself.

They want an older `openai` than the development packages have, so each runs only where it is
installed: `pip install . pytest langchain-openai llama-index-llms-openai-like` in an environment of
its own, then `python -m pytest tests/test_frameworks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineConfig
from tests.server.conftest import start

MODEL = Path(__file__).resolve().parents[1] / "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.exists(), reason=f"needs {MODEL.name}"),
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]

ASK = "What is the weather in Paris?"
THEN = "So, do I need an umbrella?"
FACT = "What is the capital of France?"


def weather(city: str) -> str:
    """Gets the weather of a city"""
    return f"Rain in {city}, 12 degrees."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    running, stop = start(lambda on_load: Engine(EngineConfig(str(MODEL), n_ctx=1024), on_load))
    try:
        assert running.loaded.wait(120), "the engine does not load"
        yield f"{running.url}/v1"
    finally:
        stop()


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    given: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 100}
    model = langchain.ChatOpenAI(base_url=url, api_key="none", **given)
    called = model.bind_tools([weather]).invoke(ASK)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    told = ToolMessage(weather(**call["args"]), tool_call_id=call["id"])
    answer = model.invoke([HumanMessage(ASK), called, told, HumanMessage(THEN)])
    assert "umbrella" in answer.content  # right or wrong
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0

    whole = None
    for chunk in model.bind_tools([weather], tool_choice="any").stream(ASK):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Paris"}]
    assert "Paris" in "".join(chunk.content for chunk in model.stream(FACT))

    schema = {"title": "City", "description": "A city", "type": "object",
              "properties": {"name": {"type": "string"}, "country": {"type": "string"}},
              "required": ["name", "country"], "additionalProperties": False}  # fmt: skip
    for method in ("json_schema", "function_calling"):
        city = model.with_structured_output(schema, method=method).invoke("Paris is in France.")
        assert city == {"name": "Paris", "country": "France"}
    responses = langchain.ChatOpenAI(base_url=url, api_key="none", use_responses_api=True, **given)
    assert responses.bind_tools([weather]).invoke(ASK).tool_calls[0]["args"] == {"city": "Paris"}


def test_llama_index(url: str) -> None:
    llama_index = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool

    model = llama_index.OpenAILike(
        model="any",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
        temperature=0,
        max_tokens=100,
    )
    tool = FunctionTool.from_defaults(weather)
    chat = [ChatMessage(role="user", content=ASK)]
    called = model.chat_with_tools([tool], chat_history=chat)
    [call] = model.get_tool_calls_from_response(called)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Paris"})
    extra = {"tool_call_id": call.tool_id}
    told = ChatMessage(role="tool", content=weather(**call.tool_kwargs), additional_kwargs=extra)
    answer = model.chat([*chat, called.message, told, ChatMessage(role="user", content=THEN)])
    assert "umbrella" in answer.message.content  # right or wrong

    *_, last = model.stream_chat_with_tools([tool], chat_history=chat)
    assert model.get_tool_calls_from_response(last)[0].tool_kwargs == {"city": "Paris"}
    pieces = model.stream_chat([ChatMessage(role="user", content=FACT)])
    assert "Paris" in "".join(piece.delta or "" for piece in pieces)
