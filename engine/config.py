"""EngineConfig: everything a user may set about the engine. Frozen; derived values are computed
elsewhere, once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

_CHOICES = {
    "kv_type": ("f16", "f32", "q8_0"),
    "policy": ("fcfs", "sjf", "priority"),
    "context_policy": ("error", "slide"),
}
_RANGES = {
    "n_ctx": (0, 1 << 24),
    "n_threads": (0, 1024),
    "prefill_chunk": (1, 4096),
    "cache_bytes": (0, 1 << 50),
    "disk_bytes": (0, 1 << 50),
    "max_running": (1, 64),
    "max_waiting": (0, 1 << 20),
    "queue_timeout_s": (0, 1e7),
    "request_timeout_s": (0, 1e7),
    "linger_s": (0, 3600),
    "max_memory_bytes": (0, 1 << 50),
}


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An adapter, and how much of it is added."""

    path: Path
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> LoraFile:
        """From FILE, or FILE:SCALE. Raises ConfigError."""
        path, colon, end = text.rpartition(":")
        try:
            file = cls(Path(path), float(end)) if colon else cls(Path(text))
        except ValueError:  # a colon in the name
            file = cls(Path(text))
        if not text or not math.isfinite(file.scale):
            raise ConfigError(f"lora = {text!r}: neither FILE nor FILE:SCALE")
        return file


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    A 0 means: chosen from the model or the machine, and logged with its reason.
    """

    model_path: str | Path
    n_ctx: int = 0  # tokens a chat may hold; 0 = what fits, up to the model's own
    n_threads: int = 0  # 0 = as many as are fastest, of the CPUs this process may use
    prefill_chunk: int = 256  # prompt tokens per plan run; more is faster, and needs more workspace
    lora: tuple[LoraFile, ...] = ()  # adapters, added to the weights
    tokenizer_pre: str = ""  # pre-tokenizer to use in place of one that this engine does not know
    cache_bytes: int = 0  # keys and values of all chats; 0 = a share of what memory is free
    kv_type: str = "f16"  # numbers of keys and values: f16, f32, or q8_0 for half the memory
    disk_bytes: int = 2 << 30  # chats on the disk that left memory; 0 = none
    disk_folder: str | Path = ""  # where they are; "" = in the cache folder
    saved_folder: str | Path = ""  # where chats are saved by name; "" = they cannot be
    policy: str = "fcfs"  # who comes first (policy.py)
    max_running: int = 1  # chats that decode together
    max_waiting: int = 32  # requests that may wait; one more is refused with QueueFull
    queue_timeout_s: float = 0  # a request may wait for its turn; 0 = for ever
    request_timeout_s: float = 0  # a request may take in all; 0 = any time
    linger_s: float = 0  # a request goes on after its client has left, to be joined by a retry
    prepare_next_turn: bool = True  # read in idle time what the next turn is going to begin with
    context_policy: str = "error"  # for chats longer than n_ctx (context.py)
    max_memory_bytes: int = 0  # anonymous memory of the process; 0 = what the machine has free
    lock_weights: bool = False  # keep the weights in memory, whatever else needs it (mlock)

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} = {value} is outside {low}..{high}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} = {value!r} is none of {', '.join(allowed)}")
