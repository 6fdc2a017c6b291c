"""Compiles and renders the Jinja templates that come with model files, as `transformers` does.

A template is code from a stranger: it runs in Jinja's immutable sandbox, with limits on steps, on
output, and on the size of whatever an operator, filter, method or block makes. They do not stop
every way to waste memory, such as a list of many long texts. Does not know chats.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.templates.template_limits import (
    FILTER_SIZES,
    MAX_LENGTH,
    METHOD_SIZES,
    TooLarge,
    counted,
    operator_size,
    refuse_large,
    refuse_large_result,
    text_length,
)
from engine.text.special_tokens import MARK

MAX_STEPS: Final = 10_000_000  # a loop's turn is one; a long chat takes some 100,000
CALL_STEPS: Final = 50  # a call takes about as long


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

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            optimized=False,  # which would run parts of the template while compiling it
            finalize=printable,
        )
        own = {"tojson": to_json, "metered": metered, "concatenated": concatenated}
        self.filters = {name: limited(name, f) for name, f in (self.filters | own).items()}
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = self._filtered(loop.iter, "metered")
        for tilde in tree.find_all(nodes.Concat):
            # Jinja lets no sandbox intercept `a ~ b`.
            operands = nodes.List(tilde.nodes, lineno=tilde.lineno, environment=self)
            tilde.nodes = [self._filtered(operands, "concatenated")]
        return tree

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Filter:
        arguments: tuple[Any, ...] = (name, [], [], None, None)
        return nodes.Filter(node, *arguments, lineno=node.lineno, environment=self)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What Jinja joins the output of a block, a macro or `{% set %}...{% endset %}` with."""
        pieces = list(pieces)
        with _limit("a block"):
            refuse_large(sum(map(len, pieces)))
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates collect things in a list of their own.
        own_list = type(obj) is list and attr in ("append", "pop")
        return own_list or super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _meter.get().spend(CALL_STEPS)
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if not isinstance(owner, (str, bytes, int)):
            return super().call(context, obj, *args, **kwargs)
        name = obj.__name__
        with _limit(f"'{name}'"):
            if name in METHOD_SIZES:
                refuse_large(METHOD_SIZES[name](owner, *args, **kwargs))
            if name == "join" and args and not isinstance(owner, int):
                args = (counted(args[0], owner), *args[1:])
            result = super().call(context, obj, *args, **kwargs)
            refuse_large_result(result)
            return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        with _limit(f"'{operator}'"):
            refuse_large(operator_size(operator, left, right))
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


@pass_context
def concatenated(_: Context, operands: list[Any]) -> str:
    """`a ~ b ~ c`."""
    with _limit("'~'"):
        return "".join(map(str, counted(operands)))


@pass_context
def printable(_: Context, value: Any) -> Any:
    """Around everything that `{{ }}` prints."""
    with _limit("'{{ }}'"):
        refuse_large(text_length(value))
    return value


def limited(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses to make something too large."""
    n_given = int(hasattr(made, "jinja_pass_arg"))  # arguments that Jinja puts first

    @functools.wraps(made)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given, (value, *rest) = args[:n_given], args[n_given:]
        with _limit(f"'{name}'"):
            if name in FILTER_SIZES:
                refuse_large(FILTER_SIZES[name](value, *rest, **kwargs))
            if name == "join":
                separator = rest[0] if rest else kwargs.get("d", "")
                value = counted(value, str(separator))
            result = made(*given, value, *rest, **kwargs)
            refuse_large_result(result)
            return result

    return checked


@contextlib.contextmanager
def _limit(what: str) -> Iterator[None]:
    try:
        yield
    except TooLarge:
        raise TemplateLimit(f"{what} makes something too large") from None


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
