"""Compiles and renders the Jinja templates that come with model files, as `transformers` does.

A template is code from a stranger: it runs in Jinja's immutable sandbox, with limits on steps and
output. They stop what loops or grows, not every way to waste memory in one expression.
Does not know chats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.special_tokens import MARK

MAX_STEPS: Final = 10_000_000  # a loop's turn is one; a long chat takes some 100,000
CALL_STEPS: Final = 50  # a call takes about as long
MAX_LENGTH: Final = 1 << 25  # characters of output, or items of one string or list


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`."""


class TemplateLimit(TemplateError):
    """The template ran too long or grew too large."""


class _Meter:
    def __init__(self, max_steps: int) -> None:
        self.max_steps = max_steps
        self.steps_left = max_steps

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TemplateLimit(f"it takes more than {self.max_steps} steps")

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(1)
            yield item


class GivenList(list[Any]):
    """A list among a template's variables. Unlike its own lists, a template cannot change it."""


_meter: ContextVar[_Meter] = ContextVar("_meter")


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks the assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with what chat templates expect to find, and with the meter running."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            optimized=False,  # which would run parts of the template while compiling it
        )
        self.filters["tojson"] = to_json
        self.filters["metered"] = metered
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            arguments: tuple[Any, ...] = ("metered", [], [], None, None)
            loop.iter = nodes.Filter(loop.iter, *arguments, lineno=loop.lineno, environment=self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates collect things in a list of their own.
        own_list = type(obj) is list and attr in ("append", "pop")
        return own_list or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _meter.get().spend(CALL_STEPS)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_LENGTH:
            raise TemplateLimit(f"'{operator}' makes something too large")
        return super().call_binop(context, operator, left, right)


def render(template: Template, variables: Mapping[str, Any], max_steps: int = MAX_STEPS) -> str:
    """The template's output. Raises TemplateError, or whatever a template can provoke."""
    token = _meter.set(_Meter(max_steps))
    try:
        pieces = []
        room = MAX_LENGTH
        for piece in template.generate(variables):
            room -= len(piece)
            if room < 0:
                raise TemplateLimit(f"it prints more than {MAX_LENGTH} characters")
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _meter.reset(token)


@pass_context  # which also keeps Jinja from calling it at compile time
def metered(_: Context, items: Any) -> Any:
    """Around every loop's items: counts the turns."""
    meter = _meter.get()
    if not isinstance(items, Sized):
        return meter.each(items)
    meter.spend(1 + len(items))
    return items


def raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes for HTML and sorts, which no model was trained on."""
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_list_of,
    )
    return text.replace(_ESCAPED_MARK, MARK) if ensure_ascii else text


def _list_of(value: object) -> list[Any]:
    """What filters such as `map` give, as JSON can hold it."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_ESCAPED_MARK: Final = json.dumps(MARK).strip('"')


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Items (or bits) in the result of an operator, as far as it can be large."""
    if operator == "**":
        both_int = isinstance(left, int) and isinstance(right, int)
        return left.bit_length() * max(right, 0) if both_int else 0
    if operator == "+":
        both_sized = isinstance(left, Sized) and isinstance(right, Sized)
        return len(left) + len(right) if both_sized else 0
    if isinstance(right, Sized):
        left, right = right, left
    return len(left) * right if isinstance(left, Sized) and isinstance(right, int) else 0
