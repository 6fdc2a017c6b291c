"""Grammars for replies that must be tool calls, in the model's own format, or fit a schema.

Thinking that the prompt has opened is left free and comes first. Written in llguidance's Lark. Does
not compile them, and does not judge the schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.special_tokens import SpecialTokens
from engine.thinking import ThinkingMarks
from engine.tool_formats.base import JsonForm, Tool, ToolFormat
from engine.tool_formats.json_calls import PLAIN

# JSON is written as json.dumps writes: a weak model would get lost in whitespace. Each
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


def call_grammar(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    parallel: bool,
    control: Mapping[str, int],
    thinking: ThinkingMarks | None = None,
) -> str:
    """A grammar of one call of any of the tools, or of several if `parallel`.

    control:  the vocabulary's control tokens.
    thinking: the marks, when the prompt has opened the thinking: it comes first then.
    """
    form = tool_format.form or PLAIN.form  # which the parsers of all formats read too
    tokens = SpecialTokens(control)
    calls = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        before = _literal(form.before(function["name"]), tokens).replace("{i}", _NUMBER)
        end = _literal(form.end, tokens)
        calls.append(f"call_{i}: {before} arguments_{i} {end}")
        calls.append(f"arguments_{i}: %json {_schema(function.get('parameters'))}")
    prologue = _prologue(form, tokens, thinking)
    several = f"({_literal(form.separator or '', tokens)} call)*"
    start = [
        "first" if prologue else "",
        _literal(form.opening, tokens),
        "call",
        several if parallel and form.separator is not None else "",
        _literal(form.closing, tokens),
    ]
    return "\n".join([
        f"start: {' '.join(filter(None, start))}",
        *prologue,
        "call: " + " | ".join(f"call_{i}" for i in range(len(tools))),
        *calls,
        "",
    ])  # fmt: skip


def schema_grammar(
    tool_format: ToolFormat,
    schema: Any,
    control: Mapping[str, int],
    thinking: ThinkingMarks | None = None,
) -> str | None:
    """A grammar of an answer by a JSON schema; None where nothing comes before it, so that the
    schema alone will do.
    """
    tokens = SpecialTokens(control)
    form = tool_format.form or PLAIN.form
    prologue = _prologue(form, tokens, thinking)
    if not prologue:
        return None
    schema = {"enum": []} if schema is False else {} if schema is True else schema
    answer = json.dumps({**schema, "x-guidance": JSON_STYLE})
    start = f"start: first {_literal(form.before_answer, tokens)} answer"
    return "\n".join([start, *prologue, f"answer: %json {answer}", ""])


def _prologue(form: JsonForm, tokens: SpecialTokens, thinking: ThinkingMarks | None) -> list[str]:
    """Rules for what comes before all else; `first` is the one to begin with."""
    if form.prologue:
        begin, end = (_literal(text, tokens) for text in form.prologue)
        return [f"first: ({begin} text {end})?", f"text: {_ANYTHING}"]
    if not thinking:
        return []
    close = _literal(thinking.close, tokens)
    if "<[" in close:
        return [f'first: text {close} "\\n\\n"?', f"text: {_ANYTHING}"]
    return ['first: text "\\n\\n"?', f"text[suffix={close}]: {_ANYTHING}"]


def _literal(text: str, tokens: SpecialTokens) -> str:
    """The text in Lark; control tokens by number, since names such as [ARGS] cannot be written."""
    pieces = tokens.split(text)
    return " ".join(
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
    )


def _schema(parameters: Any) -> str:
    """The schema of a call's arguments, always of an object.

    Without a word on other properties than those it names there are none: a weak model would never
    stop inventing them.
    """
    schema = dict(parameters) if isinstance(parameters, Mapping) else {}
    if not schema:
        schema = {"properties": {}}
    if not _COMPOSED & schema.keys():
        schema.setdefault("type", "object")
        if "properties" in schema and "patternProperties" not in schema:
            schema.setdefault("additionalProperties", False)
    return json.dumps({**schema, "x-guidance": JSON_STYLE})
