"""What every format of tool calls has: marks, a reader for streamed text, a writer.

Does not know any format, nor which one a model speaks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.deltas import Delta, ToolCallDelta, ToolCallStart
from engine.scanner import Scanner, Steps, Unexpected

Tool = Mapping[str, Any]  # as in OpenAI's `tools`


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call, as clients replay it."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


class ToolFormat(Protocol):
    """How a family of models writes calls.

    signs:   what templates of such models hold; all of them.
    openers: what begins one call or several.
    marks:   all that may be one token of the vocabulary, openers included.
    closers: marks that may be left over behind the calls.
    """

    @property
    def signs(self) -> tuple[str, ...]: ...
    @property
    def openers(self) -> tuple[str, ...]: ...
    @property
    def marks(self) -> tuple[str, ...]: ...
    @property
    def closers(self) -> tuple[str, ...]: ...

    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        """Read what follows an opener. Raises Unexpected when it is no call: text that `calls`
        has not heard of is content then.
        """
        ...

    def write(self, calls: Sequence[Call]) -> str:
        """The calls as a model of this format writes them."""
        ...

    def around(self, name: str) -> tuple[str, str] | None:
        """What stands before and after the JSON arguments of a single call; None where arguments
        are not JSON.
        """
        ...


class Calls:
    """Where readers put what they find: it becomes deltas, and the scanner will not go back."""

    def __init__(
        self, scanner: Scanner, emit: Callable[[Delta], None], tools: Sequence[Tool] | None
    ) -> None:
        """tools: those of the request; None when they are not known."""
        self.n = 0  # calls begun
        self.is_open = False
        self._scanner, self._emit = scanner, emit
        functions = [tool.get("function", tool) for tool in tools or ()]
        self._schemas = {f.get("name"): f.get("parameters") for f in functions}
        self._are_known = tools is not None

    def offers(self, name: str) -> bool:
        """Whether the request has such a tool, or does not tell."""
        return name in self._schemas or not self._are_known

    def schema(self, name: str, parameter: str) -> Any:
        """The JSON schema of a tool's parameter; None when it is not known."""
        parameters = self._schemas.get(name)
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        return properties.get(parameter) if isinstance(properties, Mapping) else None

    def start(self, name: str, call_id: str = "") -> None:
        """A call's name is complete. call_id: the model's own; one that is too short to be unique is none."""
        if not name:
            raise Unexpected
        self.end()
        if len(call_id) < 6:
            call_id = f"call_{secrets.token_hex(12)}"
        self._emit(ToolCallStart(self.n, call_id, name))
        self.n += 1
        self.is_open = True
        self._scanner.keep()

    def arguments(self, text: str) -> None:
        """The next piece of the open call's arguments."""
        if text:
            self._emit(ToolCallDelta(self.n - 1, text))
        self._scanner.keep()

    def end(self) -> None:
        """The call is complete."""
        if self.is_open:
            self.is_open = False
            self._scanner.keep()
