"""ReplyRules: what a request demands of a reply's form. A server makes them without NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What a reply must be.

    kind, source, param: of its text, as for Grammar.compile; kind "" = any text.
    tools:               those it may call, as the request has them (OpenAI's form).
    must_call:           it is a call, and no text.
    parallel:            several calls are allowed.
    """

    kind: str = ""
    source: Any = None
    param: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    must_call: bool = False
    parallel: bool = True

    @property
    def are_free(self) -> bool:
        """Nothing has to be enforced: calls are the model's own, if no tool is strict."""
        is_strict = any(tool.get("function", tool).get("strict") for tool in self.tools)
        return not self.kind and not self.must_call and not is_strict
