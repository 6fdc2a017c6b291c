"""Whole numbers in settings and requests, as large as the engine's machine code takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
