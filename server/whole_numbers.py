"""Whole numbers in settings and requests, as large as the engine's machine code takes.

JSON does not tell 5.0 from 5, and some clients' languages write the one for the other.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Int32 = Annotated[Whole, Field(ge=-(2**31), le=2**31 - 1)]
