"""Chats made to fit a template: what it has no place for is said in the places that it has.

Nothing a client sent is dropped in silence: tools, calls, results and system text that a template
would not print become text of the messages that it does print. Does not know Jinja.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from engine.templates.template_style import REASONING_KEYS, Message, SystemText, TemplateStyle
from engine.tool_formats.base import Call, ToolFormat

# Put where a template has no place for tools. Models that were not trained on tools do best with
# one plain form.
TOOL_PROMPT: Final = """\
You can call functions. To call one, answer with nothing but this form, with the function's name \
and its arguments in it:
{form}
When you have the result, or need none, answer in words. The functions are:
{functions}"""
SYSTEM_ROLES: Final = ("system", "developer")
_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


def fit(
    messages: Sequence[Message],
    tools: Sequence[Any] | None,
    style: TemplateStyle,
    tool_format: ToolFormat,
) -> list[Message]:
    """New messages with everything in places where the template prints it."""
    fitted = [_with_reasoning(_in_its_role(message, style), style) for message in messages]
    if style.calls_or_content:
        fitted = list(_calls_apart(fitted))
    if not style.text_arguments:
        fitted = [_with_object_arguments(message) for message in fitted]
    if style.one_call:
        fitted = list(_one_call_each(fitted))
    if not style.shows_calls:
        fitted = [_with_object_arguments(message) for message in fitted]
        fitted = [_with_calls_as_text(message, tool_format) for message in fitted]
    if style.inline_results:
        fitted = list(_with_inline_results(fitted))
    elif not style.shows_results:
        fitted = list(_with_results_as_text(fitted))
    if style.short_ids:
        fitted = [_with_short_ids(message) for message in fitted]
    if tools and not style.shows_tools:
        fitted = _with_tool_prompt(fitted, tools, style, tool_format)
    if style.one_system:
        fitted = _with_one_system(fitted)
    is_lone = all(message["role"] in SYSTEM_ROLES for message in fitted)
    if style.system is SystemText.DROPPED or (is_lone and style.drops_lone_system):
        return _with_folded_system(fitted)
    if style.late_system is SystemText.DROPPED:
        return list(_with_late_system_folded(fitted))
    return fitted


def completed(tool: Any) -> Any:
    """A tool with the fields that some templates rely on though OpenAI's API does not."""
    function = {k: v for k, v in tool.get("function", tool).items() if v is not None}
    parameters = function.get("parameters") or {}
    function = {
        **function,
        "description": function.get("description", ""),
        "parameters": {"type": "object", "properties": {}, **parameters},
    }
    return {**tool, "function": function} if "function" in tool else function


def _in_its_role(message: Message, style: TemplateStyle) -> Message:
    if message["role"] == "developer" and not style.shows_developer:
        return {**message, "role": "system"}
    return message


def _with_reasoning(message: Message, style: TemplateStyle) -> Message:
    """The reasoning under the name by which the template looks for it."""
    found = [message[key] for key in REASONING_KEYS if message.get(key)]
    if not found:
        return message
    rest = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    if style.reasoning_or_content and message.get("tool_calls") and message["content"]:
        return rest
    return {**rest, style.reasoning_key or REASONING_KEYS[0]: found[0]}


def _calls_apart(messages: Iterable[Message]) -> Iterable[Message]:
    """Content and calls of one message as two."""
    for message in messages:
        if message.get("tool_calls") and message["content"]:
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            message = {**message, "content": None}
        yield message


def _with_object_arguments(message: Message) -> Message:
    """Arguments that a weak model broke, as an object."""
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}


def _with_object(call: Message) -> Message:
    function = call["function"]
    if isinstance(function["arguments"], dict):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}


def _one_call_each(messages: Iterable[Message]) -> Iterable[Message]:
    """A message for each call, each with its result behind it."""
    waiting: list[Message] = []  # calls that are not told yet
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool":
            ours = [w for w in waiting if w["tool_calls"][0]["id"] == message.get("tool_call_id")]
            for call in ours[:1]:
                waiting.remove(call)
                yield call
        else:
            yield from waiting
            waiting.clear()
        if len(calls) > 1:
            alone = {"role": "assistant", "content": None}
            waiting = [{**alone, "tool_calls": [call]} for call in calls]
            waiting[0] = {**message, "tool_calls": calls[:1]}
        else:
            yield message
    yield from waiting


def _with_calls_as_text(message: Message, tool_format: ToolFormat) -> Message:
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [Call(function["name"], function["arguments"]) for function in functions]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": _joined(message["content"], tool_format.write(calls))}


def _with_inline_results(messages: Iterable[Message]) -> Iterable[Message]:
    """Results as `tool_responses` of the message with the calls."""
    calling: Message | None = None
    for message in messages:
        if calling and message["role"] == "tool":
            response = {"name": message.get("name", ""), "response": message["content"]}
            calling["tool_responses"].append(response)
            continue
        if calling:
            yield calling
            calling = None
        if message.get("tool_calls"):
            calling = {**message, "tool_responses": []}
        else:
            yield message
    if calling:
        yield calling


def _with_results_as_text(messages: Iterable[Message]) -> Iterable[Message]:
    """Results as what the user says next."""
    said: Message = {}
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            said = {"role": "user", "content": _joined(said.get("content"), text)}
            continue
        if said and message["role"] == "user":
            message = {**message, "content": _joined(said["content"], message["content"])}
        elif said:
            yield said
        said = {}
        yield message
    if said:
        yield said


def _with_short_ids(message: Message) -> Message:
    fitted = dict(message)
    if "tool_call_id" in message:
        fitted["tool_call_id"] = _short_id(message["tool_call_id"])
    if "tool_calls" in message:
        fitted["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} for call in message["tool_calls"]
        ]
    return fitted


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_tool_prompt(
    messages: list[Message], tools: Sequence[Any], style: TemplateStyle, tool_format: ToolFormat
) -> list[Message]:
    functions = (json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    form = tool_format.write([Call("NAME", {"PARAMETER": "VALUE"})])
    prompt = TOOL_PROMPT.format(form=form, functions="\n".join(functions))
    if style.system is SystemText.REFUSED:
        return _before_first_user(messages, prompt)
    first = next((i for i, m in enumerate(messages) if m["role"] in SYSTEM_ROLES), None)
    if first is None:
        return [{"role": "system", "content": prompt}, *messages]
    told = {**messages[first], "content": _joined(messages[first]["content"], prompt)}
    return [*messages[:first], told, *messages[first + 1 :]]


def _with_folded_system(messages: list[Message]) -> list[Message]:
    told = [m["content"] for m in messages if m["role"] in SYSTEM_ROLES]
    others = [m for m in messages if m["role"] not in SYSTEM_ROLES]
    return _before_first_user(others, _joined(*told)) if told else messages


def _with_one_system(messages: list[Message]) -> list[Message]:
    """System messages at the beginning as one."""
    roles = (message["role"] for message in messages)
    n = sum(1 for _ in itertools.takewhile(messages[0]["role"].__eq__, roles))
    if n < 2 or messages[0]["role"] not in SYSTEM_ROLES:
        return messages
    told = _joined(*(message["content"] for message in messages[:n]))
    return [{**messages[0], "content": told}, *messages[n:]]


def _with_late_system_folded(messages: Iterable[Message]) -> Iterable[Message]:
    """System text behind other messages as the beginning of what the user says next."""
    told: list[str] = []
    is_late = False
    for message in messages:
        if is_late and message["role"] in SYSTEM_ROLES:
            told.append(message["content"])
            continue
        is_late = is_late or message["role"] not in SYSTEM_ROLES
        if told and message["role"] == "user":
            message = {**message, "content": _joined(*told, message["content"])}
            told = []
        yield message
    if told:
        yield {"role": "user", "content": _joined(*told)}


def _before_first_user(messages: list[Message], text: str) -> list[Message]:
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *messages]
    said = {**messages[first], "content": _joined(text, messages[first]["content"])}
    return [*messages[:first], said, *messages[first + 1 :]]


def _joined(*texts: str | None) -> str:
    return "\n\n".join(filter(None, texts))
