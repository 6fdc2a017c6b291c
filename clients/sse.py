"""Server-sent events: bytes in, events out. Incremental and pure; knows nothing of HTTP or JSON.

Follows the WHATWG's event stream format, with one addition: comments are reported too, since the
server says in them what a waiting client waits for. `id` and `retry` fields mean nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event."""

    data: str
    name: str = "message"


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that began with a colon."""

    text: str


class SSEDecoder:
    """Feed it the body's bytes, cut anywhere. An event cut off by the stream's end is not seen."""

    def __init__(self) -> None:
        self._pending = b""  # the line that has not ended yet
        self._at_start = True
        self._after_cr = False  # a "\n" that comes now is the second half of "\r\n"
        self._data: list[str] = []
        self._name = ""

    def feed(self, chunk: bytes) -> list[ServerEvent | Comment]:
        """What `chunk` completes, in order."""
        if chunk and self._after_cr:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        *lines, self._pending = _LINE_END.split(self._without_bom(self._pending + chunk))
        return [event for line in lines for event in self._line(line.decode("utf-8", "replace"))]

    def _without_bom(self, data: bytes) -> bytes:
        if not self._at_start or _BOM.startswith(data):  # too short to tell: looked at again
            return data
        self._at_start = False
        return data.removeprefix(_BOM)

    def _line(self, line: str) -> Iterator[ServerEvent | Comment]:
        if not line:
            if self._data:
                yield ServerEvent("\n".join(self._data), self._name or "message")
            self._data, self._name = [], ""
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not field:
            yield Comment(value)
        elif field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
