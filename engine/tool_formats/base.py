"""What every format of tool calls has: marks, a reader for streamed text, a writer.

Does not know any format, nor which one a model speaks.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.tool_formats.argument_types import allowed_types, type_of
from engine.tool_formats.deltas import Delta, ToolCallDelta, ToolCallStart
from engine.tool_formats.scanner import Scanner, Steps, Unexpected

MAX_NAME: Final = 256  # characters of a function's name, with what belongs to it

Tool = Mapping[str, Any]  # as in OpenAI's `tools`


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call, as clients replay it."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How calls with JSON arguments are put together: before_name NAME after_name ARGUMENTS end.

    Opening and closing stand around all calls of a reply, the separator between them; where it is
    None, there is but one. "{i}" in after_name is the call's number.
    prologue: what stands around thinking that may come first, where the format has its own.
    before_answer: what stands before an answer in words.
    """

    before_name: str
    after_name: str
    end: str = ""
    opening: str = ""
    closing: str = ""
    separator: str | None = ""
    prologue: tuple[str, str] | None = None
    before_answer: str = ""

    def before(self, name: str) -> str:
        """All before a call's arguments."""
        return self.before_name + name + self.after_name

    def write(self, calls: Sequence[Call]) -> str:
        texts = [
            self.before(call.name).replace("{i}", str(i))
            + json.dumps(call.arguments, ensure_ascii=False)
            + self.end
            for i, call in enumerate(calls)
        ]
        return self.opening + (self.separator or "").join(texts) + self.closing


class ToolFormat(ABC):
    """How a family of models writes calls."""

    __slots__ = ()

    @property
    @abstractmethod
    def signs(self) -> tuple[str, ...]:
        """What templates of such models hold; all of them."""

    @property
    @abstractmethod
    def openers(self) -> tuple[str, ...]:
        """What begins one call or several."""

    @property
    @abstractmethod
    def closers(self) -> tuple[str, ...]:
        """Marks that may be left over behind the calls."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All that may be one token of the vocabulary, openers and closers included."""
        return (*self.openers, *self.closers)

    @property
    def form(self) -> JsonForm | None:
        """How calls are put together where arguments are JSON; None where they are not."""
        return None

    @abstractmethod
    def read(self, scanner: Scanner, calls: Calls, opener: str) -> Steps[None]:
        """Read what follows an opener. Raises Unexpected when it is no call: text that `calls`
        has not heard of is content then.
        """

    @abstractmethod
    def write(self, calls: Sequence[Call]) -> str:
        """The calls as a model of this format writes them."""


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
        self._ids: set[str] = set()
        self._name = ""  # of the call begun last

    def offers(self, name: str) -> bool:
        """Whether the request has such a tool, or does not tell."""
        return name in self._schemas or not self._are_known

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """The JSON types that a tool's parameter may be of."""
        return allowed_types(self._properties(name).get(parameter), self._schemas.get(name))

    def parameters(self, name: str) -> list[str]:
        """A tool's parameters, in order; none when they are not known."""
        return list(self._properties(name))

    def as_only_parameter(self, value: Any) -> str | None:
        """The open call's arguments, as JSON, where the model wrote no object of them but one
        value: that of the one parameter that there is. None where it is not.
        """
        names = self.parameters(self._name)
        if len(names) != 1 or type_of(value) not in self.types(self._name, names[0]):
            return None
        return json.dumps({names[0]: value}, ensure_ascii=False)

    def _properties(self, name: str) -> Mapping[str, Any]:
        parameters = self._schemas.get(name)
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        return properties if isinstance(properties, Mapping) else {}

    def start(self, name: str, call_id: str = "") -> None:
        """A call's name is complete. call_id: the model's own; a short one would not be unique."""
        if not name:
            raise Unexpected
        self.end()
        if len(call_id) < 6 or call_id in self._ids:
            call_id = f"call_{secrets.token_hex(12)}"
        self._ids.add(call_id)
        self._emit(ToolCallStart(self.n, call_id, name))
        self.n += 1
        self.is_open, self._name = True, name
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
