"""The grammar of a whole reply: thinking, then the text that a request constrains, or tool calls.

Written in Lark, of rules that call_grammar.py and grammar.py make. What is allowed here is what
ChatFormat's parser reads, and in free text nothing that it would take for a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.errors import InvalidRequest
from engine.grammar.call_grammar import call_rules, form_of, lark_literal, thinking_rules
from engine.grammar.grammar import Grammar, GrammarKind, lark_json
from engine.grammar.json_schema import check_schema
from engine.replies.chat_format import ChatFormat
from engine.replies.reply_parser import FENCES
from engine.replies.reply_rules import ReplyRules
from engine.text.special_tokens import SpecialTokens
from engine.text.tokenizer import Tokenizer


def reply_grammar(
    rules: ReplyRules, chat_format: ChatFormat, tokenizer: Tokenizer, prompt_tail: str
) -> Grammar | None:
    """None where everything is allowed.

    prompt_tail: as ChatFormat.parser wants it.
    Raises InvalidRequest: a schema or grammar is wrong, or cannot be enforced here.
    """
    if rules.are_free:
        return None
    for tool in rules.tools:
        _check_parameters(tool)
    control = tokenizer.vocabulary.control
    thinking = chat_format.parser(prompt_tail).open_thinking
    form = form_of(chat_format.tool_format)
    first = thinking_rules(form, control, thinking)
    if rules.kind and not rules.tools and not first and not form.before_answer:
        return Grammar.compile(rules.kind, rules.source, tokenizer, rules.param)
    written = chat_format.written(prompt_tail)
    body = _body(rules, chat_format, control, written)
    start = f"start: {'first ' if first else ''}body"
    lark = "\n".join([start, *first, *body, ""])
    return Grammar.compile(GrammarKind.LARK, lark, tokenizer, rules.param or "tools")


def _body(
    rules: ReplyRules, chat_format: ChatFormat, control: Mapping[str, int], written: str
) -> list[str]:
    """The rule `body`, of what comes after the thinking, and its parts.

    written: what the prompt holds of the reply: the beginning of a call, in some formats.
    """
    tool_format = chat_format.tool_format
    form = form_of(tool_format)
    begin = form.opening + form.before_name
    opened = written if written and begin.startswith(written) else ""
    before_text = lark_literal(form.before_answer.removeprefix(opened), SpecialTokens(control))
    if not rules.tools:
        return [f"body: {before_text} text", f"text: {_text(rules)}"]
    if rules.must_call or rules.kind:
        calls = call_rules(form, rules.tools, rules.parallel, control, opened)
        if rules.must_call:
            return ["body: calls", *calls]
        return [f"body: {before_text} text | calls", f"text: {_text(rules)}", *calls]
    # Free text, and calls behind it. Where their first mark is text like any other, the text before
    # has to end with it, and the calls begin without it.
    free = f"FREE: {_no_call(rules, tool_format.openers)}"
    if opened:  # it is text or calls
        calls = call_rules(form, rules.tools, rules.parallel, control, opened)
        return [f"body: {before_text} FREE | calls", free, *calls]
    opener = next((o for o in tool_format.openers if tool_format.form and begin.startswith(o)), "")
    mark = lark_literal(opener, SpecialTokens(control))
    calls = [
        *call_rules(form, rules.tools, rules.parallel, control, opener),
        *_plain_calls(rules),
    ]
    if not opener:
        return ["body: FREE | calls | plain", free, *calls]
    before = f"before: FREE {mark}" if "<[" in mark else f"before[suffix={mark}]: FREE"
    return ["body: FREE | before calls | plain", free, before, *calls]


def _text(rules: ReplyRules) -> str:
    """The right side of the rule of the text that is asked for."""
    match rules.kind:
        case GrammarKind.JSON_SCHEMA:
            return lark_json(rules.source, rules.param)
        case GrammarKind.JSON_OBJECT:
            return lark_json({"type": "object"}, rules.param)
        case GrammarKind.REGEX:
            unescaped = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\/", rules.source)
            return f"/{unescaped}/".replace("\n", "\\n")
        case _:
            raise InvalidRequest(
                f"{rules.param}: a grammar cannot be combined with tools, nor with a model that "
                "thinks before it answers; use a JSON schema or a regular expression",
                rules.param,
            )


def _plain_calls(rules: ReplyRules) -> list[str]:
    """The rule `plain`: JSON where a reply begins, fenced or not, which weak models take for a call
    whatever their format is; and the parser with them.
    """
    lines = ['plain: named | "```json\\n" named "\\n```"']
    for i, tool in enumerate(rules.tools):
        name = _escaped(_function(tool)["name"])
        keys = rf'"name"\s{{0,4}}:\s{{0,4}}"{name}"\s{{0,4}},\s{{0,8}}"(arguments|parameters)"'
        lines.append(
            rf"named_{i}: /\{{\s{{0,8}}{keys}\s{{0,4}}:\s{{0,4}}/ arguments_{i} /\s{{0,8}}\}}/"
        )
    return [*lines, "named: " + " | ".join(f"named_{i}" for i in range(len(rules.tools)))]


def _no_call(rules: ReplyRules, openers: tuple[str, ...]) -> str:
    """A regular expression of all text that is no call, whichever way it were written."""
    names = "|".join(_escaped(_function(tool)["name"]) for tool in rules.tools)
    fences = "|".join(map(_escaped, FENCES))
    calls = "|".join([*map(_escaped, openers), rf"({fences})\s*([{{\[]|({names})\s*\()"])
    return rf"~/(?s:.*)({calls})(?s:.*)/ & /(\s*[^\s{{\[](?s:.*))?/"


def _check_parameters(tool: Mapping[str, Any]) -> None:
    function = _function(tool)
    try:
        check_schema(function.get("parameters") or {}, "tools")
    except InvalidRequest as error:
        problem = str(error).removeprefix("tools: ")
        raise InvalidRequest(f"tools: {function['name']:.80}: {problem}", "tools") from None


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function


def _escaped(text: str) -> str:
    """Text as a regular expression of itself, inside slashes."""
    special = r"\/.+*?()|[]{}^$#&-~"
    return "".join(f"\\{c}" if c in special else c for c in text).replace("\n", "\\n")
