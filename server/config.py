"""AppConfig: everything a user may set, from config.toml, the environment and flags.

Flags win over RUSHLIGHT_SECTION__KEY variables, those over the file, the file over the defaults.
Unknown names and bad values are refused by name. Nobody else reads the file or these variables;
how kernels are compiled and where they are kept, the environment tells engine/jit.py alone.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from engine import ConfigError, EngineConfig, InvalidRequest, LoraFile, SamplingParams
from server.sampling_fields import Int32

DEFAULT_FILE = Path("config.toml")
ENV_PREFIX = "RUSHLIGHT_"

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


Lora = Annotated[LoraFile, BeforeValidator(_parse_lora)]
Loras = Annotated[tuple[Lora, ...], NoDecode, BeforeValidator(_split_list)]


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
Keys = Annotated[list[Key], NoDecode, BeforeValidator(_split_list)]
Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]
Origins = Annotated[list[Origin], NoDecode, BeforeValidator(_split_list)]


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
    dry_sequence_breakers: list[str] = list(_sampling["dry_sequence_breakers"])
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


class AppConfig(BaseSettings):
    """All settings. Use `load_config`, which turns what is wrong into one clear message."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
    )

    engine: EngineSection = EngineSection()
    cache: CacheSection = CacheSection()
    scheduler: SchedulerSection = SchedulerSection()
    queue: QueueSection = QueueSection()
    request: RequestSection = RequestSection()
    memory: MemorySection = MemorySection()
    server: ServerSection = ServerSection()
    sampling: SamplingSection = SamplingSection()
    log: LogSection = LogSection()
    from_file: ClassVar[dict[str, Any]] = {}

    def to_engine_config(self) -> EngineConfig:
        """What the engine is made with. Raises: ConfigError."""
        parts = [section.to_engine() for _, section in self if isinstance(section, EngineSettings)]
        return EngineConfig(**{name: value for part in parts for name, value in part.items()})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls.from_file)


Overrides = Mapping[str, Mapping[str, Any]]  # section -> key -> value, from flags


def load_config(path: Path | None = None, overrides: Overrides | None = None) -> AppConfig:
    """The settings in force. `path` None: ./config.toml if there is one. Raises: ConfigError."""
    _refuse_unknown_variables()

    class Settings(AppConfig):
        from_file = _read_file(path)

    try:
        return Settings(**dict(overrides or {}))  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError(_problems(error, path, overrides or {})) from None


def _read_file(path: Path | None) -> dict[str, Any]:
    """What the file holds, whatever kind of file it is. Raises: ConfigError."""
    file = path or DEFAULT_FILE
    try:
        return tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError:
        if path is None:
            return {}
        raise ConfigError(f"{file}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{file}: it cannot be read: {error.strerror}{_hint(path)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: it is not UTF-8 (at byte {error.start}){_hint(path)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}{_hint(path)}") from None


def _hint(path: Path | None) -> str:
    """For a file that nobody asked for: it may be another program's."""
    return "" if path else f" (if this {DEFAULT_FILE} is not Rushlight's, use --config FILE)"


def _refuse_unknown_variables() -> None:
    """By name: pydantic-settings would pass over an unknown section and take JSON for a known one.

    Other variables without a double underscore are not ours: RUSHLIGHT_CPU_PROFILE is the engine's.
    """
    for name, value in os.environ.items():
        if not name.upper().startswith(ENV_PREFIX):
            continue
        section, separator, key = name.lower()[len(ENV_PREFIX) :].partition("__")
        if section in AppConfig.model_fields:
            known = type(AppConfig.model_fields[section].default).model_fields
            if separator and key not in known:
                raise ConfigError(f"{name}: {section}.{key}: there is no such setting")
            if not separator and value:
                settings = ", ".join(f"{name}__{key}".upper() for key in known)
                raise ConfigError(f"{name}: it is a section; its settings are {settings}")
        elif separator:
            sections = ", ".join(AppConfig.model_fields)
            raise ConfigError(f"{name}: there is no section '{section}'; there are {sections}")


def _problems(error: ValidationError, path: Path | None, overrides: Overrides) -> str:
    problems = error.errors(include_url=False)
    sources = [_source(problem["loc"], overrides) for problem in problems]
    told = "; ".join(
        f"{source or path or DEFAULT_FILE}: {'.'.join(map(str, problem['loc']))}: {_text(problem)}"
        for source, problem in zip(sources, problems, strict=True)
    )
    return told if all(sources) else told + _hint(path)


def _source(loc: tuple[int | str, ...], overrides: Overrides) -> str:
    """Where a bad setting was set: the higher of the two places over the file, "" if neither."""
    section, key = map(str, (*loc, "")[:2])
    if key in overrides.get(section, {}):
        return "command line"
    variable = f"{ENV_PREFIX}{section}__{key}".upper()
    return next((n for n, value in os.environ.items() if value and n.upper() == variable), "")


def _text(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "there is no such setting"
    said: str = problem["msg"]
    if problem["type"] == "value_error":  # ours, and names the value itself
        return said.removeprefix("Value error, ")
    return f"{said} (it is {problem['input']!r:.60})"
