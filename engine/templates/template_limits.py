"""How large the result of one operation of a template would be, told before it is computed.

Sizes are characters or items: upper bounds, or near it, for what makes much out of little.
Does not know Jinja, nor who asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import chain
from typing import Any, Final

MAX_LENGTH: Final = 1 << 25  # characters of a text, or items of a list
BIT_SIZE: Final = 256  # of an integer, as arithmetic on long ones takes long


class TooLarge(Exception):
    """More than MAX_LENGTH."""


def refuse_large(size: int) -> None:
    if size > MAX_LENGTH:
        raise TooLarge


def refuse_large_result(result: Any) -> None:
    refuse_large(len(result) if isinstance(result, Sized) else 0)


def counted(items: Iterable[Any], separator: str | bytes = "") -> Iterator[Any]:
    """The items, as long as their joined texts are not too large."""
    total = 0
    for item in items:
        total += text_length(item) + len(separator)
        refuse_large(total)
        yield item


def text_length(value: Any, indent: int = 0, depth: int = 1) -> int:
    """About the characters that `str` or JSON makes of a value; beyond MAX_LENGTH stops counting.

    Numbers and the like count as one character. indent: JSON's, per level of nesting.
    """
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        items: Iterable[Any] = chain.from_iterable(value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    else:
        return 1
    total = 2
    for item in items:
        total += 2 + indent * depth + text_length(item, indent, depth + 1)
        if total > MAX_LENGTH:
            break
    return total


def operator_size(operator: str, left: Any, right: Any) -> int:
    """Size of what + * ** or % gives, as far as it can be large."""
    both_int = isinstance(left, int) and isinstance(right, int)
    if operator == "%":
        values = right if isinstance(right, tuple) else (right,)
        return _percent(left, *values) if isinstance(left, str) else 0
    if operator == "**":
        return BIT_SIZE * left.bit_length() * max(right, 0) if both_int else 0
    if operator == "+":
        both_sized = isinstance(left, Sized) and isinstance(right, Sized)
        return len(left) + len(right) if both_sized else 0
    if both_int:
        return BIT_SIZE * int(left.bit_length() + right.bit_length())
    if isinstance(right, Sized):
        left, right = right, left
    return len(left) * right if isinstance(left, Sized) and isinstance(right, int) else 0


# --- filters and methods: each takes what the filter or method takes ------------------------------


def _text(value: Any, *_: Any, **__: Any) -> int:
    return text_length(value)


def _width(value: Any, width: int = 0, *_: Any) -> int:
    return max(text_length(value), width)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> int:
    n = len(width) if isinstance(width, str) else width
    return text_length(s) + n * _n_lines(s)


def _wordwrap(
    s: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> int:
    n = text_length(s)
    n_lines = _n_lines(s) + 2 * n // max(width, 1)  # a long word may leave a line half empty
    return n + n_lines * len(wrapstring or "\n")


def _n_lines(text: Any) -> int:
    return len(text.splitlines()) + 1 if isinstance(text, str) else 1


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> int:
    n_found = s.count(old) if isinstance(s, (str, bytes)) else text_length(s)
    return text_length(s) + n_found * text_length(new)


def _batch(value: Any, n: int, fill_with: Any = None) -> int:
    return n  # lists, or items in the last one


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> int:
    return text_length(value, len(indent) if isinstance(indent, str) else indent or 0)


def _expandtabs(s: Any, tabsize: int = 8) -> int:
    n_tabs: int = s.count("\t" if isinstance(s, str) else b"\t")
    return len(s) + n_tabs * tabsize


def _translate(s: Any, table: Any) -> int:
    texts = table.values() if isinstance(table, dict) else ()
    return len(s) * max([1, *map(text_length, texts)])


# A key such as %(name)s may hold anything, so what counts is how it ends.
_PERCENT: Final = re.compile(r"[%)][-#0 +]*([\d*]*\.?[\d*]*)[hlL]?[a-zA-Z]")
_BRACES: Final = re.compile(r"\{([^}]*)")
_NUMBER: Final = re.compile(r"\d+")


def _percent(s: Any, *args: Any, **kwargs: Any) -> int:
    values = [*args, *kwargs.values()]
    widest = max([0, *(abs(value) for value in values if isinstance(value, int))])
    return _formatted(str(s), _PERCENT, values, widest)


def _format(s: Any, *args: Any, **kwargs: Any) -> int:
    # A width that is itself a field can come from anywhere; no template needs that.
    text = str(s).replace("{{", "")
    return _formatted(text, _BRACES, [*args, *kwargs.values()], MAX_LENGTH + 1)


def _format_map(s: Any, mapping: Any) -> int:
    return _format(s, mapping)


def _formatted(text: str, field: re.Pattern[str], values: list[Any], given_width: int) -> int:
    """Each field may be as long as the longest value and as the sum of its numbers.

    given_width: of a field that has not its own but takes it from the values.
    """
    longest = max(map(text_length, [1, *values]))
    total = len(text)
    for match in field.finditer(text):
        total += longest + sum(map(_number, _NUMBER.findall(match[1])))
        total += given_width if "*" in match[1] or "{" in match[1] else 0
        if total > MAX_LENGTH:
            break
    return total


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 12 else MAX_LENGTH + 1


_TEXT_FILTERS: Final = (
    "string", "pprint", "upper", "lower", "title", "capitalize", "trim", "striptags", "escape",
    "e", "forceescape", "urlencode", "urlize", "wordcount", "truncate", "xmlattr",
)  # fmt: skip
FILTER_SIZES: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(_TEXT_FILTERS, _text),
    "center": _width,
    "indent": _indent,
    "wordwrap": _wordwrap,
    "replace": _replace,
    "format": _percent,
    "batch": _batch,
    "slice": _batch,
    "tojson": _tojson,
}
METHOD_SIZES: Final[dict[str, Callable[..., int]]] = {  # of str, bytes and int
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes"), _width),
    "expandtabs": _expandtabs,
    "replace": _replace,
    "translate": _translate,
    "format": _format,
    "format_map": _format_map,
}
