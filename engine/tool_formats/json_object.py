"""A call as one JSON object, the form that most formats share or fall back on.

Models differ in the keys and in their order, and weak ones forget braces. Does not know what stands
around the object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from engine.tool_formats.base import Calls
from engine.tool_formats.scanner import Emit, Scanner, Steps, Unexpected

NAMES: Final = ("name", "tool_name", "function", "function_name", "tool")
ARGUMENTS: Final = ("arguments", "parameters", "args", "params", "input")
IDS: Final = ("id", "call_id", "tool_call_id")
_KEYS: Final = (*NAMES, *ARGUMENTS, *IDS, "type", "index")


@dataclass(slots=True)
class _Progress:
    """What is known of a call half read."""

    id: str = ""
    has_name: bool = False
    has_arguments: bool = False
    early: list[str] = field(default_factory=list)  # arguments that came before the name


def read_json_call(scanner: Scanner, calls: Calls, only_offered: bool = False) -> Steps[None]:
    """One call. only_offered: a name that the request does not offer is no call.

    Raises Unexpected.
    """
    call = _Progress()
    yield from _read_object(scanner, calls, only_offered, call)
    if not call.has_name:
        raise Unexpected
    if not call.has_arguments:
        calls.arguments("{}")
    calls.end()


def read_json_calls(scanner: Scanner, calls: Calls, only_offered: bool = False) -> Steps[None]:
    """One call, or a list of them, or several one after the other. Raises Unexpected."""
    yield from scanner.take_space()
    is_list = yield from scanner.accept("[")
    while True:
        yield from scanner.take_space()
        yield from read_json_call(scanner, calls, only_offered)
        space = yield from scanner.take_space()
        comma = yield from scanner.accept(",", ";")
        if not comma and (is_list or not space or (yield from scanner.peek()) != "{"):
            break
    if is_list:
        yield from scanner.accept("]")


def read_keyed_calls(scanner: Scanner, calls: Calls) -> Steps[None]:
    """One call, or a list of them, each an object whose one key is the name. Raises Unexpected."""
    yield from scanner.take_space()
    is_list = yield from scanner.accept("[")
    while True:
        yield from scanner.expect("{")
        yield from scanner.take_space()
        name = yield from scanner.take_json_string()
        yield from scanner.expect(":")
        calls.start(name)
        yield from scanner.take_space()
        yield from read_arguments(scanner, calls)
        calls.end()
        yield from scanner.take_space()
        yield from scanner.accept("}")
        yield from scanner.take_space()
        if not is_list or not (yield from scanner.accept(",")):
            break
    if is_list:
        yield from scanner.accept("]")


def read_arguments(scanner: Scanner, calls: Calls, early: list[str] | None = None) -> Steps[None]:
    """A JSON object; or one written as a JSON string, as in OpenAI's API; or null for none; or the
    bare value of an only parameter. early: where they go if they come before the call's name.
    """
    emit: Emit = calls.arguments if early is None else early.append
    first = yield from scanner.peek()
    if first == "{":
        yield from scanner.json_value(emit)
        return
    text = yield from scanner.take_json()
    if not text:  # cut
        return
    try:
        value = json.loads(text)
    except ValueError:  # cut
        emit(text)
        return
    if isinstance(value, str) and _is_object(value):
        text = value
    elif value is None or value == "":
        text = "{}"
    elif early is None and not isinstance(value, dict):
        text = calls.as_only_parameter(value) or text
    emit(text)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _read_object(
    scanner: Scanner, calls: Calls, only_offered: bool, call: _Progress
) -> Steps[None]:
    separator = yield from scanner.expect("{")
    while separator != "}":
        yield from scanner.take_space()
        key = yield from scanner.take_json_string()
        if only_offered and key not in _KEYS:
            raise Unexpected
        yield from scanner.expect(":")
        yield from scanner.take_space()
        first = yield from scanner.peek()
        if key == "function" and first == "{":
            yield from _read_object(scanner, calls, only_offered, call)
        elif key in NAMES and first == '"' and not call.has_name:
            name = yield from scanner.take_json_string()
            if only_offered and not calls.offers(name):
                raise Unexpected
            call.has_name = True
            calls.start(name, call.id)
            if call.early:
                calls.arguments("".join(call.early))
        elif key in ARGUMENTS and not call.has_arguments:
            call.has_arguments = True
            yield from read_arguments(scanner, calls, None if call.has_name else call.early)
        elif key in IDS and first == '"':
            call.id = yield from scanner.take_json_string()
        else:
            yield from scanner.take_json()
        yield from scanner.take_space()
        separator = yield from scanner.accept(",", "}")
        if not separator:
            if call.has_name and call.has_arguments:
                return  # weak models forget the last brace
            raise Unexpected
