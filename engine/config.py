"""EngineConfig: everything a user may set about the engine. Frozen; derived values are computed
elsewhere, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    A 0 means: chosen from the model or the machine, and logged with its reason.
    """

    model_path: str | Path
    n_ctx: int = 0  # tokens a chat may hold; 0 = the model's own, at most 4096
    n_threads: int = 0  # 0 = CPUs this process may use (affinity and cgroup quota)
    prefill_chunk: int = 256  # prompt tokens per plan run; more is faster, and needs more workspace
    max_waiting: int = 32  # requests that may wait; one more is refused with QueueFull
    tokenizer_pre: str = ""  # pre-tokenizer to use in place of one that this engine does not know

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_ctx", 0, 1 << 24),
            ("n_threads", 0, 1024),
            ("prefill_chunk", 1, 4096),
            ("max_waiting", 0, 1 << 20),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value} is outside {low}..{high}")
