"""The grammar of a whole reply: thinking, then the text that a request constrains, or tool calls.

Written in Lark, of parts that grammar.py makes. Does not know how replies are taken apart, but that
ChatFormat's parser reads what is allowed here.

    start: thought? (text | before? call (space call)*)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.chat_format import ChatFormat
from engine.errors import InvalidRequest
from engine.grammar import Grammar, GrammarKind, lark_json, lark_text
from engine.reply_parser import FENCES
from engine.reply_rules import ReplyRules
from engine.thinking import ThinkingMarks
from engine.tokenizer import Tokenizer
from engine.tool_formats.json_calls import PLAIN

Tool = Mapping[str, Any]  # as in OpenAI's `tools`

_ANY_TEXT: Final = "/(?s:.*)/"
_SPACE: Final = r"/\s{0,4}/"  # more would be a way for a weak model to go on for ever


def reply_grammar(
    rules: ReplyRules, chat_format: ChatFormat, tokenizer: Tokenizer, prompt_tail: str
) -> Grammar | None:
    """None where everything is allowed.

    prompt_tail: as ChatFormat.parser wants it.
    Raises InvalidRequest: a schema or grammar is wrong, or cannot be enforced here.
    """
    if rules.are_free:
        return None
    thought = _thought(chat_format, tokenizer, prompt_tail)
    if rules.kind and not rules.tools and not thought:
        return Grammar.compile(rules.kind, rules.source, tokenizer, rules.param)
    lark = _Lark(rules, chat_format, tokenizer)
    body = " | ".join(lark.alternatives())
    lines = [f"start: {'thought ' if thought else ''}body", f"body: {body}", *lark.lines]
    if thought:
        lines.append(thought)
    return Grammar.compile(GrammarKind.LARK, "\n".join(lines), tokenizer, rules.param or "tools")


class _Lark:
    """Collects the rules of one grammar."""

    def __init__(self, rules: ReplyRules, chat_format: ChatFormat, tokenizer: Tokenizer) -> None:
        self._rules, self._tokenizer = rules, tokenizer
        self._format = chat_format.tool_format
        self.lines: list[str] = []
        self._arguments: dict[str, str] = {}  # of each tool the rule of its arguments

    def alternatives(self) -> list[str]:
        """What may stand after the thinking."""
        found = []
        if not self._rules.must_call:
            found.append("text")
            self.lines.append(f"text: {self._text()}")
        if self._rules.tools:
            found.append(self._calls())
        return found

    def _text(self) -> str:
        rules = self._rules
        match rules.kind:
            case "":
                return self._free_text()
            case GrammarKind.JSON_SCHEMA:
                return lark_json(rules.source, rules.param)
            case GrammarKind.JSON_OBJECT:
                return lark_json({"type": "object"}, rules.param)
            case GrammarKind.REGEX:
                return _regex(rules.source)
            case _:
                raise InvalidRequest(
                    f"{rules.param} cannot be combined with tools, nor with a model that thinks "
                    "before it answers; use a JSON schema or a regular expression",
                    rules.param,
                )

    def _free_text(self) -> str:
        """Any text that the parser will not take for a call, whichever way it were written."""
        names = "|".join(_escaped(_function(tool)["name"]) for tool in self._rules.tools)
        fences = "|".join(map(_escaped, FENCES))
        openers = map(_escaped, self._format.openers)
        calls = "|".join([*openers, rf"({fences})\s*([{{\[]|({names})\s*\()"])
        self.lines.append(rf"FREE: ~/(?s:.*)({calls})(?s:.*)/ & /(\s*[^\s{{\[](?s:.*))?/")
        return "FREE"

    def _calls(self) -> str:
        """One call or several, where free text may stand before them."""
        self.lines.append(f"call: {' | '.join(map(self._call, self._rules.tools))}")
        opener = self._opener()
        several = f" ({_SPACE} call)*" if self._rules.parallel and opener else ""
        if self._rules.must_call or self._rules.kind or not opener:
            return f"call{several}"
        # The text before ends with the opener, which the first call then has no more.
        token = lark_text(opener, self._tokenizer)
        if _is_token(token):
            self.lines.append(f"before: FREE {token}")
        else:
            self.lines.append(f"before[suffix={_quoted(opener)}]: FREE")
        first = " | ".join(self._call(tool, opened=True) for tool in self._rules.tools)
        self.lines.append(f"opened: {first}")
        return f"before opened{several}"

    def _call(self, tool: Tool, opened: bool = False) -> str:
        name = _function(tool)["name"]
        before, after = self._around(name)
        if opened:
            before = before.removeprefix(self._opener())
        if name not in self._arguments:
            self._arguments[name] = f"arguments_{len(self._arguments)}"
            self.lines.append(f"{self._arguments[name]}: {_arguments(tool)}")
        parts = (lark_text(before, self._tokenizer), lark_text(after, self._tokenizer))
        return f" {self._arguments[name]} ".join(parts)

    def _around(self, name: str) -> tuple[str, str]:
        return self._format.around(name) or PLAIN.around(name)

    def _opener(self) -> str:
        """The mark before a call; '' where calls have none, or their arguments are not JSON."""
        if self._format.around("f") is None:
            return ""
        return next((o for o in self._format.openers if self._around("f")[0].startswith(o)), "")


def _thought(chat_format: ChatFormat, tokenizer: Tokenizer, prompt_tail: str) -> str:
    """The rule of the thinking that the prompt has begun; '' where it has not."""
    marks = chat_format.open_thinking(prompt_tail)
    return f"thought: {_until_closed(marks, tokenizer)}" if marks else ""


def _until_closed(marks: ThinkingMarks, tokenizer: Tokenizer) -> str:
    token = lark_text(marks.close, tokenizer)
    if _is_token(token):
        return f"{_ANY_TEXT} {token} {_SPACE}"
    return f"closed {_SPACE}\nclosed[suffix={_quoted(marks.close)}]: {_ANY_TEXT}"


def _arguments(tool: Tool) -> str:
    function = _function(tool)
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    try:
        return lark_json(schema, "tools")
    except InvalidRequest as error:
        message = str(error).removeprefix("tools: ")
        raise InvalidRequest(f"tools: {function['name']:.80}: {message}", "tools") from None


def _function(tool: Tool) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool.get("function", tool)
    return function


def _is_token(lark: str) -> bool:
    return lark.startswith("<[")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _regex(source: str) -> str:
    """A regular expression as a Lark terminal."""
    escaped = "".join(
        f"\\{c}" if c == "/" and (i == 0 or source[i - 1] != "\\") else c
        for i, c in enumerate(source)
    )
    return "/" + escaped.replace("\n", "\\n") + "/"


def _escaped(text: str) -> str:
    """Text as a regular expression of itself, inside slashes."""
    special = r"\/.+*?()|[]{}^$#&-~"
    return "".join(f"\\{c}" if c in special else c for c in text).replace("\n", "\\n")
