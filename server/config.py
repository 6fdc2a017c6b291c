"""AppConfig: everything a user may set, from config.toml, the environment and flags.

Flags win over RUSHLIGHT_SECTION__KEY variables, those over the file, the file over the defaults.
Unknown names and bad values are refused by name. Nobody else reads the environment or the file.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from engine import ConfigError, EngineConfig, InvalidRequest, SamplingParams
from server.requests import Int32

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
    def _no_booleans(cls, value: Any) -> Any:
        if isinstance(value, bool):  # pydantic would take true for 1
            raise ValueError("is true or false, which no setting here can be")
        return value


class EngineSection(Section):
    """[engine]: EngineConfig, key by key."""

    model_path: str = ""
    n_ctx: int = _engine["n_ctx"]
    n_threads: int = _engine["n_threads"]
    prefill_chunk: int = _engine["prefill_chunk"]
    max_waiting: int = _engine["max_waiting"]
    tokenizer_pre: str = _engine["tokenizer_pre"]

    @model_validator(mode="after")
    def _in_range(self) -> EngineSection:
        try:
            self.to_engine_config()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def to_engine_config(self) -> EngineConfig:
        """What the engine is made with. Raises: ConfigError."""
        return EngineConfig(**self.model_dump())


class ServerSection(Section):
    """[server]: where it listens and what it accepts."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
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

    @model_validator(mode="after")
    def _in_range(self) -> SamplingSection:
        try:
            self.to_sampling_params()
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return self

    def to_sampling_params(self) -> SamplingParams:
        """The defaults of every request. Raises: InvalidRequest."""
        return SamplingParams(**{**self.model_dump(), "max_tokens": self.max_tokens or None})


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
    server: ServerSection = ServerSection()
    sampling: SamplingSection = SamplingSection()
    log: LogSection = LogSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


Overrides = Mapping[str, Mapping[str, Any]]  # section -> key -> value, from flags


def load_config(path: Path | None = None, overrides: Overrides | None = None) -> AppConfig:
    """The settings in force. `path` None: ./config.toml if there is one. Raises: ConfigError."""
    file = path or DEFAULT_FILE
    if path and not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    _refuse_unknown_variables()

    class FromFile(AppConfig):
        model_config = SettingsConfigDict(toml_file=file)

    try:
        return FromFile(**dict(overrides or {}))  # type: ignore[arg-type]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: it is not UTF-8 (at byte {error.start})") from None
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from None
    except ValidationError as error:
        raise ConfigError(_problems(error, file, overrides or {})) from None


def _refuse_unknown_variables() -> None:
    """pydantic-settings sees to unknown keys, but not to a section that does not exist.

    Variables without a double underscore belong to others: RUSHLIGHT_CPU_PROFILE is the engine's.
    """
    for name in os.environ:
        section, separator, _ = name.upper().removeprefix(ENV_PREFIX).partition("__")
        if not name.upper().startswith(ENV_PREFIX) or not separator:
            continue
        if section.lower() not in AppConfig.model_fields:
            known = ", ".join(AppConfig.model_fields)
            raise ConfigError(f"{name}: there is no section '{section.lower()}'; there are {known}")


def _problems(error: ValidationError, file: Path, overrides: Overrides) -> str:
    return "; ".join(
        f"{_source(problem['loc'], file, overrides)}{'.'.join(map(str, problem['loc']))}: "
        f"{_text(problem)}"
        for problem in error.errors(include_url=False)
    )


def _source(loc: tuple[int | str, ...], file: Path, overrides: Overrides) -> str:
    """Where a bad setting was set: the highest of the three places that names it."""
    if len(loc) != 2:
        return "" if loc[0] in AppConfig.model_fields else f"{file}: "
    section, key = map(str, loc)
    if key in overrides.get(section, {}):
        return "command line: "
    variable = f"{ENV_PREFIX}{section}__{key}".upper()
    return next((f"{name}: " for name in os.environ if name.upper() == variable), f"{file}: ")


def _text(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return "there is no such setting"
    said: str = problem["msg"].removeprefix("Value error, ")
    value = problem["input"]
    return said if isinstance(value, dict) else f"{said} (it is {value!r:.60})"
