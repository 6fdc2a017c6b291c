"""Grammar rules of tool calls: in the model's own format, arguments by schema.

Written in llguidance's Lark. Does not compile them, and does not judge the schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.grammar.closed_objects import close_objects
from engine.grammar.schema_dialects import plain_schema
from engine.replies.thinking import ThinkingMarks
from engine.text.special_tokens import SpecialTokens
from engine.tool_formats.base import JsonForm, Tool, ToolFormat
from engine.tool_formats.json_calls import PLAIN

# Arguments are written as json.dumps writes: a weak model would get lost in whitespace. Each
# character has one spelling, or "\u0061" would be another name for the property "a".
JSON_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": '"\\bfnrt',
    "lenient": False,
    "coerce_one_of": False,
}
_COMPOSED: Final = {"$ref", "anyOf", "oneOf", "allOf"}
_ANYTHING: Final = r"/(.|\n)*/"
_NUMBER: Final = '" /[0-9]{1,2}/ "'  # in the middle of a literal


def form_of(tool_format: ToolFormat) -> JsonForm:
    """How calls are to be written: a format without JSON arguments has its parser read PLAIN."""
    return tool_format.form or PLAIN.form


def call_rules(
    form: JsonForm,
    tools: Sequence[Tool],
    parallel: bool,
    control: Mapping[str, int],
    opened: str = "",
) -> list[str]:
    """The rule `calls`, of one call of any of the tools or of several if `parallel`, and its parts.

    control: the vocabulary's control tokens.
    opened:  the beginning of the calls that stands before them already.
    """
    tokens = SpecialTokens(control)
    rules = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        before, end = form.before(function["name"]), lark_literal(form.end, tokens)
        for name, text in (("call", before), ("opened", before.removeprefix(opened))):
            start = lark_literal(text, tokens).replace("{i}", _NUMBER)
            rules.append(f"{name}_{i}: {start} arguments_{i} {end}")
        rules.append(f"arguments_{i}: %json {_schema(function.get('parameters'))}")
    is_opened = bool(opened) and not form.opening.startswith(opened)
    several = f"({lark_literal(form.separator or '', tokens)} call)*"
    calls = [
        lark_literal(form.opening.removeprefix(opened), tokens),
        "opened" if is_opened else "call",
        several if parallel and form.separator is not None else "",
        lark_literal(form.closing, tokens),
    ]
    numbers = range(len(tools))
    return [
        f"calls: {' '.join(filter(None, calls))}",
        "call: " + " | ".join(f"call_{i}" for i in numbers),
        "opened: " + " | ".join(f"opened_{i}" for i in numbers),
        *rules,
    ]


def thinking_rules(
    form: JsonForm, control: Mapping[str, int], thinking: ThinkingMarks | None
) -> list[str]:
    """The rule `first`, of what comes before the calls or the text, and its parts; none where
    nothing comes.

    form:     of the model's calls, as its format may have thinking of its own.
    thinking: the marks, when the prompt has opened the thinking: it comes first then.
    """
    tokens = SpecialTokens(control)
    if form.prologue:
        begin, end = (lark_literal(text, tokens) for text in form.prologue)
        return [f"first: ({begin} thought {end})?", f"thought: {_ANYTHING}"]
    if not thinking:
        return []
    close = lark_literal(thinking.close, tokens)
    if "<[" in close:
        return [f'first: thought {close} "\\n\\n"?', f"thought: {_ANYTHING}"]
    return ['first: thought "\\n\\n"?', f"thought[suffix={close}]: {_ANYTHING}"]


def lark_literal(text: str, tokens: SpecialTokens) -> str:
    """The text in Lark; control tokens by number, since names such as [ARGS] cannot be written."""
    pieces = tokens.split(text)
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
    )


def _schema(parameters: Any) -> str:
    """The schema of a call's arguments, always of an object.

    A tool without any properties has no arguments.
    """
    schema = plain_schema(dict(parameters)) if isinstance(parameters, Mapping) else {}
    if not schema:
        schema = {"properties": {}}
    if not _COMPOSED & schema.keys():
        schema.setdefault("type", "object")
        if schema.get("properties") == {} and not {"patternProperties", "required"} & schema.keys():
            schema.setdefault("additionalProperties", False)
    return json.dumps({**close_objects(schema), "x-guidance": JSON_STYLE})
