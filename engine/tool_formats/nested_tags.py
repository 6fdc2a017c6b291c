"""Objects and lists as MiniMax M3 writes them: a tag for each property, `item` for each in a list.

    ]<]minimax[>[<a>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</a>     {"a": [1]}

`mark` is what stands before each tag. No schema tells numbers from text here: looks do.
"""

from __future__ import annotations

import json
import re
from typing import Any

from engine.tool_formats.python_literal import to_json


def read_nested(text: str, mark: str) -> Any:
    """The value between two tags: an object, a list, or what the bare text looks like."""
    properties = _properties(text, mark)
    if not properties:
        value = to_json(text)
        return json.loads(value) if value else text
    values = [read_nested(inner, mark) for _, inner in properties]
    if all(name == "item" for name, _ in properties):
        return values
    return {name: value for (name, _), value in zip(properties, values, strict=True)}


def _properties(text: str, mark: str) -> list[tuple[str, str]]:
    """(name, text inside) of each outermost tag; what is not closed goes on to the end."""
    tag = re.compile(re.escape(mark) + "<(/?)([^<>]+)>")
    found: list[tuple[str, str]] = []
    open_names: list[str] = []
    start = 0
    for match in tag.finditer(text):
        closes, name = match.groups()
        if not closes:
            open_names.append(name)
            if len(open_names) == 1:
                start = match.end()
        elif open_names and open_names[-1] == name:
            open_names.pop()
            if not open_names:
                found.append((name, text[start : match.start()]))
    if open_names:
        found.append((open_names[0], text[start:]))
    return found
