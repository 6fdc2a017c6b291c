"""WireObject: base of everything that is sent, and one of them as a whole reply.

A key that was not given is left out of the JSON, a key given as None is null: clients tell the two
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response


class Wire(Protocol):
    """Whatever can be sent."""

    def wire(self) -> str:
        """Its JSON."""


class WireObject(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    def wire(self) -> str:
        """JSON with exactly the keys that were given."""
        return self.model_dump_json(exclude_unset=True)


def json_response(
    value: Wire, headers: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    """A reply that is one object."""
    return Response(value.wire(), status, headers, "application/json")
