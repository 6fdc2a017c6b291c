"""The table of tool-call formats. Each file holds one family of them; a template's own marks tell
which one its model speaks.
"""

from __future__ import annotations

from typing import Final

from engine.tool_formats import gemma_calls, json_calls, named_calls, python_calls, tagged_formats
from engine.tool_formats.base import ToolFormat
from engine.tool_formats.channel_calls import ChannelCalls

# The first whose signs a template has. Special signs come before general ones.
TABLE: Final[tuple[ToolFormat, ...]] = (
    ChannelCalls(),
    *gemma_calls.FORMATS,
    *tagged_formats.FORMATS,
    *named_calls.FORMATS,
    *python_calls.FORMATS,
    *json_calls.FORMATS,
)


def find_tool_format(text: str) -> ToolFormat:
    """The format that a template's text, and what it prints, speaks of; PLAIN if of none."""
    found = (f for f in TABLE if all(sign in text for sign in f.signs))
    return next(found, json_calls.PLAIN)
