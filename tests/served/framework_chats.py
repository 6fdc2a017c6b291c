"""What test_frameworks.py runs in the frameworks' own Python: a conversation with a tool.

    python framework_chats.py langchain|llama_index URL by_itself|forced

by_itself: the model calls a tool where it is only offered, and knows what to say. A smaller one is
forced to its calls: then their form is looked at, and what comes back, not the sense of it.
"""

from __future__ import annotations

import sys
from typing import Any

ASK = "What is the weather in Paris?"
THEN = "So, do I need an umbrella?"
FACT = "What is the capital of France?"
CITY = {
    "title": "City",
    "description": "A city",
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "country"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """Gets the weather of a city"""
    return f"Rain in {city}, 12 degrees."


def check_call(name: str, arguments: dict[str, Any], by_itself: bool) -> None:
    assert name == "weather", name
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str), arguments
    assert not by_itself or arguments == {"city": "Paris"}, arguments


def check_answer(text: str, by_itself: bool) -> None:
    assert "umbrella" in text if by_itself else text.strip(), text  # right or wrong


def langchain(url: str, by_itself: bool) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    given: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 100}
    model = ChatOpenAI(base_url=url, api_key="none", **given)
    with_tool = model.bind_tools([weather], tool_choice=None if by_itself else "weather")
    called = with_tool.invoke(ASK)
    call = called.tool_calls[0]
    check_call(call["name"], call["args"], by_itself)
    told = [
        ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in called.tool_calls
    ]
    answer = model.invoke([HumanMessage(ASK), called, *told, HumanMessage(THEN)])
    check_answer(answer.content, by_itself)
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0

    whole = None
    for chunk in model.bind_tools([weather], tool_choice="any").stream(ASK):
        whole = chunk if whole is None else whole + chunk
    for call in whole.tool_calls:
        check_call(call["name"], call["args"], by_itself)
    assert whole.tool_calls and not whole.invalid_tool_calls
    pieces = [chunk.content for chunk in model.stream(FACT)]
    assert "Paris" in "".join(pieces) and len(pieces) > 2

    for method in ("json_schema", "function_calling"):
        city = model.with_structured_output(CITY, method=method).invoke("Paris is in France.")
        assert set(city) == {"name", "country"}
        assert not by_itself or city == {"name": "Paris", "country": "France"}, city
    responses = ChatOpenAI(base_url=url, api_key="none", use_responses_api=True, **given)
    choice = None if by_itself else "weather"
    [call, *_] = responses.bind_tools([weather], tool_choice=choice).invoke(ASK).tool_calls
    check_call(call["name"], call["args"], by_itself)


def llama_index(url: str, by_itself: bool) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="any",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=1024,
        temperature=0,
        max_tokens=100,
    )
    offered: dict[str, Any] = {
        "tools": [FunctionTool.from_defaults(weather)],
        "tool_required": not by_itself,
    }
    chat = [ChatMessage(role="user", content=ASK)]
    called = model.chat_with_tools(chat_history=chat, **offered)
    calls = model.get_tool_calls_from_response(called)
    told = []
    for call in calls:
        check_call(call.tool_name, call.tool_kwargs, by_itself)
        extra = {"tool_call_id": call.tool_id}
        text = weather(**call.tool_kwargs)
        told.append(ChatMessage(role="tool", content=text, additional_kwargs=extra))
    answer = model.chat([*chat, called.message, *told, ChatMessage(role="user", content=THEN)])
    assert answer.message.content is not None
    check_answer(answer.message.content, by_itself)

    *_, last = model.stream_chat_with_tools(chat_history=chat, **offered)
    [call, *_] = model.get_tool_calls_from_response(last)
    check_call(call.tool_name, call.tool_kwargs, by_itself)
    pieces = [
        piece.delta or "" for piece in model.stream_chat([ChatMessage(role="user", content=FACT)])
    ]
    assert "Paris" in "".join(pieces) and len(pieces) > 2


if __name__ == "__main__":
    framework, url, how = sys.argv[1:]
    {"langchain": langchain, "llama_index": llama_index}[framework](url, how == "by_itself")
