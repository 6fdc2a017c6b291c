"""What a chat template can show, and in which form: found out by trying it on small chats.

Templates agree on names but not on forms: one wants tool arguments as an object and one as JSON
text, one takes null for absent content and one prints "None", one knows tools and one drops them.
Does not know how they are rendered, nor what is done about what they cannot show.
"""

from __future__ import annotations

import enum
import itertools
import json
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from engine.templates.template_sandbox import GivenList

Message = dict[str, Any]


class SystemText(enum.Enum):
    """What becomes of a system message."""

    SHOWN = enum.auto()
    DROPPED = enum.auto()
    REFUSED = enum.auto()


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """The forms of a template's variables. The defaults are what most templates take."""

    typed_content: bool = False  # content as a list of parts
    absent_content: str | None = ""  # where an assistant message has only tool calls
    json_arguments: bool = False  # tool-call arguments as JSON text, not as an object
    absent_tools: tuple[()] | None = None  # where there are none
    system: SystemText = SystemText.SHOWN
    late_system: SystemText = SystemText.SHOWN  # behind other messages
    one_system: bool = False  # shows only one system message of several at the beginning
    drops_lone_system: bool = False  # where nobody else says anything
    shows_developer: bool = False  # has this role, OpenAI's newer word for system
    shows_tools: bool = True
    shows_calls: bool = True
    calls_or_content: bool = False  # does not show both of one message
    text_arguments: bool = True  # takes arguments that are no object, as broken calls have
    shows_results: bool = True  # messages of the role `tool`
    inline_results: bool = False  # wants them as the calling message's `tool_responses`
    one_call: bool = False  # shows only one call of a message, or refuses several
    short_ids: bool = False  # call ids must be nine letters and digits
    reasoning_key: str = ""  # under which name a message's reasoning is looked for; '' = nowhere
    reasoning_or_content: bool = False  # a message with calls may not have both

    def message(self, message: Message) -> Message:
        """A normalised message in this style, changed only where they differ."""
        content = self.absent_content if message["content"] is None else message["content"]
        if self.typed_content and content is not None:
            content = GivenList([{"type": "text", "text": content}])
        result = {**message, "content": content}
        if self.json_arguments and "tool_calls" in message:
            result["tool_calls"] = GivenList(map(_with_json_arguments, message["tool_calls"]))
        return result


class TryRender(Protocol):
    """Renders messages in a style, with more variables; '' when the template fails on them."""

    def __call__(self, messages: list[Message], style: TemplateStyle, **variables: Any) -> str: ...


def find_style(try_render: TryRender, source: str) -> TemplateStyle:
    """The style in which the template prints most of some small chats.

    source: the template's own text. It has the role `developer` where it speaks of it; and calls
    and results, where it fails on ours.
    """
    probe = _Probe(try_render)
    style = probe.find_content_style()
    style = probe.find_call_style(style)
    one, both = _calling(NEEDLE), {**_calling("it"), "content": NEEDLE}
    shows_call = probe.shows(style, one, _FOUND)
    is_tried = bool(probe.calls(style, one, _FOUND))
    system = probe.find_system(style, _told("system"), _HI)
    key = next((k for k in REASONING_KEYS if probe.shows(style, _thinking(k), _FOUND)), "")
    return replace(
        style,
        system=system,
        late_system=probe.find_system(style, _HI, _SAID, _told("system"), _HI),
        one_system=system is SystemText.SHOWN and not probe.shows_two_systems(style),
        drops_lone_system=probe.drops_lone_system(style),
        shows_developer=NEEDLE in try_render([_told("developer"), _HI], style)
        and "developer" in source,
        shows_tools=probe.shows_tools(style),
        shows_calls=shows_call or (not is_tried and "tool_calls" in source),
        calls_or_content=shows_call
        and not probe.shows_both(style, {**one, "content": OTHER}, _FOUND)
        and probe.shows_both(style, {**_SAID, "content": OTHER}, one, _FOUND, _SAID, _HI),
        text_arguments=not shows_call or probe.shows(style, _with_text_arguments(one), _FOUND),
        shows_results=probe.shows(style, _calling("it"), _FOUND_NEEDLE)
        or (not is_tried and ("'tool'" in source or '"tool"' in source)),
        inline_results=probe.prefers_inline(style),
        one_call=shows_call and not probe.shows(style, _calling("it", NEEDLE), _FOUND, _FOUND),
        short_ids=shows_call and not probe.shows(style, *map(_with_long_id, (one, _FOUND))),
        reasoning_key=key,
        reasoning_or_content=bool(key)
        and probe.shows(style, both, _FOUND)
        and not probe.shows(style, {**both, key: "thinking"}, _FOUND),
    )


@dataclass(frozen=True, slots=True)
class _Probe:
    try_render: TryRender

    def shows(self, style: TemplateStyle, *messages: Message) -> bool:
        """Whether the needle in the messages is printed."""
        return NEEDLE in self.calls(style, *messages)

    def prefers_inline(self, style: TemplateStyle) -> bool:
        """Whether results inside of the calling message are shown, and those in messages of their
        own not in the same way.
        """
        inline = self.calls(style, {**_calling("it"), "tool_responses": _INLINE})
        return NEEDLE in inline and inline != self.calls(style, _calling("it"), _FOUND_NEEDLE)

    def calls(self, style: TemplateStyle, *messages: Message) -> str:
        variables = {"tools": [_tool("find")], **SPECIMEN_VARIABLES}
        return self.try_render([_HI, *messages], style, **variables)

    def find_content_style(self) -> TemplateStyle:
        usual = TemplateStyle()
        others = TemplateStyle(absent_tools=()), TemplateStyle(typed_content=True)
        said = [{"role": "user", "content": NEEDLE}]
        shown = (style for style in (usual, *others) if NEEDLE in self.try_render(said, style))
        return next(shown, usual)

    def find_call_style(self, style: TemplateStyle) -> TemplateStyle:
        for json_arguments, absent_content in itertools.product((False, True), (None, "")):
            candidate = replace(style, json_arguments=json_arguments, absent_content=absent_content)
            text = self.calls(candidate, _calling(NEEDLE), _FOUND)
            is_python = f"'what': '{NEEDLE}'" in text or "None" in text  # printed as such
            if NEEDLE in text and not is_python:
                return candidate
        return style

    def shows_both(self, style: TemplateStyle, *messages: Message) -> bool:
        """Whether the needle and the other word are printed."""
        text = self.calls(style, *messages)
        return NEEDLE in text and OTHER in text

    def shows_two_systems(self, style: TemplateStyle) -> bool:
        first = {"role": "system", "content": OTHER}
        text = self.try_render([first, _told("system"), _HI], style)
        return NEEDLE in text and OTHER in text

    def drops_lone_system(self, style: TemplateStyle) -> bool:
        """Whether system text alone is lost, though a user's would be shown."""
        alone, said = (self.try_render([_told(role)], style) for role in ("system", "user"))
        return bool(alone) and NEEDLE not in alone and NEEDLE in said

    def find_system(self, style: TemplateStyle, *messages: Message) -> SystemText:
        text = self.try_render(list(messages), style)
        if not text:
            return SystemText.REFUSED
        is_dropped = _HI["content"] in text and NEEDLE not in text
        return SystemText.DROPPED if is_dropped else SystemText.SHOWN

    def shows_tools(self, style: TemplateStyle) -> bool:
        text = self.try_render([_HI], style, tools=[_tool(NEEDLE)])
        return NEEDLE in text or _HI["content"] not in text


NEEDLE: Final = "NEEDLE"
OTHER: Final = "HAYSTACK"
REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning", "thought")
SPECIMEN_VARIABLES: Final = {"enable_thinking": True, "thinking": True}
_ID: Final = "call00001"  # nine letters and digits: Mistral's templates want just that
_HI: Final[Message] = {"role": "user", "content": "GREETING"}
_SAID: Final[Message] = {"role": "assistant", "content": "reply"}
_FOUND: Final[Message] = {"role": "tool", "tool_call_id": _ID, "name": "find", "content": "found"}
_FOUND_NEEDLE: Final[Message] = {**_FOUND, "content": NEEDLE}
_INLINE: Final = [{"name": "find", "response": NEEDLE}]


def _calling(*arguments: str) -> Message:
    """A message that calls `find` once for each argument."""
    calls = [
        {"id": _ID, "type": "function", "function": {"name": "find", "arguments": {"what": what}}}
        for what in arguments
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _told(role: str) -> Message:
    return {"role": role, "content": NEEDLE}


def _with_text_arguments(message: Message) -> Message:
    call = message["tool_calls"][0]
    return {**message, "tool_calls": [{**call, "function": {"name": "find", "arguments": NEEDLE}}]}


def _thinking(key: str) -> Message:
    return {**_calling("it"), key: NEEDLE}


def _tool(name: str) -> dict[str, Any]:
    properties = {"what": {"type": "string", "description": "what to find"}}
    parameters = {"type": "object", "properties": properties, "required": ["what"]}
    function = {"name": name, "description": "finds things", "parameters": parameters}
    return {"type": "function", "function": function}


def _with_long_id(message: Message) -> Message:
    long_id = "call_0123456789abcdef"
    if "tool_call_id" in message:
        return {**message, "tool_call_id": long_id}
    return {**message, "tool_calls": [{**call, "id": long_id} for call in message["tool_calls"]]}


# A small chat with thinking and a call, and the tool.
SPECIMEN: Final = [_HI, {**_calling("it"), **dict.fromkeys(REASONING_KEYS, "thinking")}, _FOUND]
SPECIMEN_TOOL: Final = _tool("find")


def _with_json_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
