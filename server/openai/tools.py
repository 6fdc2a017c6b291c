"""The tools of a chat request, and which of them a reply may or must call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from engine import InvalidRequest
from server.ask import ToolChoice
from server.request_object import Object, RequestObject

MAX_TOOLS = 128  # OpenAI's limit


def _of_an_object(schema: Object) -> Object:
    """Arguments have names: a call whose arguments are a list would break every client."""
    kind = schema.get("type") or "object"
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError(f'must be the schema of an object: "type": "object", not {kind!r:.40}')
    return schema


ArgumentsSchema = Annotated[Object, AfterValidator(_of_an_object)]


class FunctionDefinition(RequestObject):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: ArgumentsSchema | None = None  # a JSON schema; absent = no arguments
    strict: bool | None = None


class Tool(RequestObject):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(RequestObject):
    name: str


class NamedTool(RequestObject):
    type: Literal["function"]
    function: FunctionName


class AllowedToolList(RequestObject):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedTools(RequestObject):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolList


_MODES = ("none", "auto", "required")


def one_choice(kinds: Mapping[str, type[RequestObject]], forms: str) -> BeforeValidator:
    """Says the same as the type, in one message: pydantic would report on each kind by itself.

    kinds: of objects, by their `type`; forms: those, for people.
    """

    def choose(value: Any) -> Any:
        if isinstance(value, str) and value in _MODES:
            return value
        name = value.get("type") if isinstance(value, dict) else None
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ValueError(f'must be "none", "auto", "required", {forms}')
        return kind.model_validate(value)

    return BeforeValidator(choose)


WireToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool | AllowedTools,
    one_choice(
        {"function": NamedTool, "allowed_tools": AllowedTools},
        '{"type": "function", "function": {"name": ...}} '
        'or {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}',
    ),
]


def choose_tools(
    tools: list[Tool], choice: WireToolChoice | None, parallel: bool
) -> tuple[list[Object], ToolChoice]:
    """The tools to show to the model, and the choice it has. Raises: InvalidRequest."""
    names = [tool.function.name for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidRequest(f"tools: the name '{min(twice):.80}' is given twice", "tools")
    mode, only = _mode_and_names(choice)
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", "tool_choice")
    if unknown := sorted((only or frozenset()) - set(names)):
        raise InvalidRequest(
            f"tool_choice names the tool '{unknown[0]:.80}', which tools does not have",
            "tool_choice",
        )
    shown = [] if mode == "none" else tools
    if isinstance(choice, AllowedTools):
        shown = [tool for tool in tools if only and tool.function.name in only]
    wire = [tool.model_dump(exclude_none=True) for tool in shown]
    return wire, ToolChoice(mode, only, parallel)


def _mode_and_names(
    choice: WireToolChoice | None,
) -> tuple[Literal["none", "auto", "required"], frozenset[str] | None]:
    match choice:
        case NamedTool():
            return "required", frozenset({choice.function.name})
        case AllowedTools(allowed_tools=allowed):
            return allowed.mode, frozenset(tool.function.name for tool in allowed.tools)
        case None:
            return "auto", None
        case _:
            return choice, None
