"""How the objects of a stream become bytes: server-sent events, or JSON line by line.

Knows nothing of what the objects hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from server.wire_object import Wire


class Framing(Protocol):
    @property
    def media_type(self) -> str: ...

    @property
    def end(self) -> bytes:
        """After a reply that ended well."""

    def object(self, value: Wire) -> bytes:
        """One object of the stream."""

    def comment(self, text: str) -> bytes:
        """Words that every client skips; b"" where there is no such thing."""


@dataclass(frozen=True, slots=True)
class ServerSentEvents:
    """JSON of ours has no line breaks, so one `data:` line holds it.

    named: the value's `type` is the event's name too.
    """

    named: bool = False
    end: bytes = b""
    media_type: str = "text/event-stream"

    def object(self, value: Wire) -> bytes:
        name = f"event: {value.type}\n" if self.named else ""  # type: ignore[attr-defined]
        return f"{name}data: {value.wire()}\n\n".encode()

    def comment(self, text: str) -> bytes:
        return f": {text}\n\n".encode()


@dataclass(frozen=True, slots=True)
class JsonLines:
    """One object on each line. A blank line would be one too many for some clients."""

    end: bytes = b""
    media_type: str = "application/x-ndjson"

    def object(self, value: Wire) -> bytes:
        return f"{value.wire()}\n".encode()

    def comment(self, text: str) -> bytes:
        return b""
