"""Types and ranges of the sampling settings, once, for requests and for config.toml alike.

Knows no defaults: those are config.toml's. Knows nothing of how a sampler works.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_INT32_MAX = 2**31 - 1

Temperature = Annotated[float, Field(ge=0)]
TopK = Annotated[int, Field(ge=-1, le=_INT32_MAX)]  # 0 and -1 = off
TopP = Annotated[float, Field(ge=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepeatPenalty = Annotated[float, Field(gt=0, le=100)]
RepeatLastN = Annotated[int, Field(ge=-1, le=_INT32_MAX)]  # -1 = all
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenLimit = Annotated[int, Field(ge=-1, le=_INT32_MAX)]
LogitBias = Annotated[float, Field(ge=-100, le=100)]
