"""AppConfig: everything a user may set: sections of keys, their defaults and what they may be.

The same names in config.toml, the environment and the engine, but for those that a section lists.
Where values come from is config_sources.py's.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from engine import ConfigError, EngineConfig, InvalidRequest, LoraFile, SamplingParams
from server.whole_numbers import Int32

_engine: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
_sampling: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(SamplingParams)
}


class Section(BaseModel):
    """Base of the sections: no unknown keys, no odd numbers, never changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        if (
            isinstance(value, bool)
            and cls.model_fields[str(info.field_name)].annotation is not bool
        ):
            raise ValueError("is true or false, which it cannot be")  # pydantic takes true for 1
        return value


def _parse_bytes(value: Any) -> Any:
    """A number of bytes, or one with a unit: "512MB" (10^6), "2GiB" (2^30)."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kMGT])(i?)B?|B)?\s*", value)
    if not found:
        raise ValueError(f"is not a size like 512MB or 2GiB (it is {value!r:.60})")
    number, unit, binary = found.groups()
    step = 1024 if binary else 1000
    return round(float(number) * step ** ("kMGT".index(unit) + 1 if unit else 0))


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]


def _parse_lora(value: Any) -> Any:
    """An adapter's file, or FILE:SCALE."""
    try:
        return LoraFile.parse(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _split_list(value: Any) -> Any:
    """One string, as a variable of the environment is, with commas between."""
    return value.split(",") if isinstance(value, str) else value


def _parse_json(value: Any) -> Any:
    """A list of any strings, in a variable of the environment."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f'is no JSON like ["a", "b"] (it is {value!r:.60})') from None


Lora = Annotated[LoraFile, BeforeValidator(_parse_lora)]
Loras = Annotated[tuple[Lora, ...], BeforeValidator(_split_list)]
Texts = Annotated[list[str], BeforeValidator(_parse_json)]


class EngineSettings(Section):
    """Base of the sections that become EngineConfig.

    engine_names: how EngineConfig calls a key that has another name there.
    """

    engine_names: ClassVar[dict[str, str]] = {}

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any, info: ValidationInfo) -> Any:
        """Key by key, so that an error is told with the place where that key was set."""
        key = str(info.field_name)
        name = cls.engine_names.get(key, key)
        try:
            EngineConfig(**{"model_path": "", name: value})
        except ConfigError as error:
            raise ValueError(str(error).replace(f"{name} =", f"{key} =", 1)) from None
        return value

    def to_engine(self) -> dict[str, Any]:
        """Its part of EngineConfig's arguments."""
        return {self.engine_names.get(key, key): value for key, value in self}


class EngineSection(EngineSettings):
    """[engine]: the model, and how it is computed."""

    model_path: str = ""
    n_ctx: int = _engine["n_ctx"]
    n_threads: int = _engine["n_threads"]
    prefill_chunk: int = _engine["prefill_chunk"]
    lora: Loras = _engine["lora"]
    tokenizer_pre: str = _engine["tokenizer_pre"]


class CacheSection(EngineSettings):
    """[cache]: the chats that need not be read again."""

    engine_names: ClassVar = {
        "memory": "cache_bytes",
        "disk": "disk_bytes",
        "folder": "disk_folder",
    }
    memory: Bytes = _engine["cache_bytes"]
    kv_type: str = _engine["kv_type"]
    disk: Bytes = _engine["disk_bytes"]
    folder: str = _engine["disk_folder"]
    saved_folder: str = _engine["saved_folder"]
    prepare_next_turn: bool = _engine["prepare_next_turn"]


class SchedulerSection(EngineSettings):
    """[scheduler]: who runs."""

    policy: str = _engine["policy"]
    max_running: int = _engine["max_running"]


class QueueSection(EngineSettings):
    """[queue]: who waits."""

    engine_names: ClassVar = {"timeout_s": "queue_timeout_s"}
    max_waiting: int = _engine["max_waiting"]
    timeout_s: float = _engine["queue_timeout_s"]


class RequestSection(EngineSettings):
    """[request]: the limits of each."""

    engine_names: ClassVar = {"timeout_s": "request_timeout_s"}
    timeout_s: float = _engine["request_timeout_s"]
    linger_s: float = _engine["linger_s"]
    context_policy: str = _engine["context_policy"]


class MemorySection(EngineSettings):
    """[memory]: what the process may take."""

    engine_names: ClassVar = {"max_memory": "max_memory_bytes"}
    max_memory: Bytes = _engine["max_memory_bytes"]
    lock_weights: bool = _engine["lock_weights"]


Key = Annotated[str, Field(pattern=r"^[!-+\x2d-~]+$")]  # what a header can hold, without commas
Keys = Annotated[list[Key], BeforeValidator(_split_list)]
Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]
Origins = Annotated[list[Origin], BeforeValidator(_split_list)]


class ServerSection(Section):
    """[server]: where it listens and what it accepts."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    api_keys: Keys = []
    cors_origins: Origins = []
    progress_every_s: float = Field(default=1.0, ge=0.1, le=15)


class SamplingSection(Section):
    """[sampling]: what holds where a request says nothing."""

    max_tokens: Int32 = Field(default=0, ge=0)
    temperature: float = _sampling["temperature"]
    top_k: Int32 = _sampling["top_k"]
    top_p: float = _sampling["top_p"]
    min_p: float = _sampling["min_p"]
    repeat_penalty: float = _sampling["repeat_penalty"]
    repeat_last_n: Int32 = _sampling["repeat_last_n"]
    presence_penalty: float = _sampling["presence_penalty"]
    frequency_penalty: float = _sampling["frequency_penalty"]
    dry_multiplier: float = _sampling["dry_multiplier"]
    dry_base: float = _sampling["dry_base"]
    dry_allowed_length: Int32 = _sampling["dry_allowed_length"]
    dry_penalty_last_n: Int32 = _sampling["dry_penalty_last_n"]
    dry_sequence_breakers: Texts = list(_sampling["dry_sequence_breakers"])
    dynatemp_range: float = _sampling["dynatemp_range"]
    dynatemp_exponent: float = _sampling["dynatemp_exponent"]
    top_n_sigma: float = _sampling["top_n_sigma"]
    typical_p: float = _sampling["typical_p"]
    min_keep: Int32 = _sampling["min_keep"]
    xtc_probability: float = _sampling["xtc_probability"]
    xtc_threshold: float = _sampling["xtc_threshold"]
    mirostat: Int32 = _sampling["mirostat"]
    mirostat_tau: float = _sampling["mirostat_tau"]
    mirostat_eta: float = _sampling["mirostat_eta"]

    @field_validator("*")
    @classmethod
    def _in_range(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name != "max_tokens":  # its 0 is not the engine's
            try:
                SamplingParams(**{str(info.field_name): value})
            except InvalidRequest as error:
                raise ValueError(str(error)) from None
        return value

    def to_sampling_params(self) -> SamplingParams:
        """The defaults of every request. Raises: InvalidRequest."""
        return SamplingParams(
            **{
                **self.model_dump(),
                "max_tokens": self.max_tokens or None,
                "dry_sequence_breakers": tuple(self.dry_sequence_breakers),
            }
        )


class LogSection(Section):
    """[log]: how much is said."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class AppConfig(BaseModel):
    """All settings, checked. From where a user sets them, `load_config` makes one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineSection = EngineSection()
    cache: CacheSection = CacheSection()
    scheduler: SchedulerSection = SchedulerSection()
    queue: QueueSection = QueueSection()
    request: RequestSection = RequestSection()
    memory: MemorySection = MemorySection()
    server: ServerSection = ServerSection()
    sampling: SamplingSection = SamplingSection()
    log: LogSection = LogSection()

    def to_engine_config(self) -> EngineConfig:
        """What the engine is made with. Raises: ConfigError."""
        parts = [section.to_engine() for _, section in self if isinstance(section, EngineSettings)]
        return EngineConfig(**{name: value for part in parts for name, value in part.items()})
