"""load_config: the settings in force, from config.toml, the environment and flags.

Flags win over RUSHLIGHT_SECTION__KEY variables, those over the file, the file over the defaults.
Unknown names and bad values are refused by name and place. Nobody else reads the file or these
variables; how kernels are compiled and where they are kept, the environment tells engine/jit.py
alone.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine import ConfigError
from server.config import AppConfig

DEFAULT_FILE = Path("config.toml")
ENV_PREFIX = "RUSHLIGHT_"

Overrides = Mapping[str, Mapping[str, Any]]  # section -> key -> value, from flags


def load_config(path: Path | None = None, overrides: Overrides | None = None) -> AppConfig:
    """The settings in force. `path` None: ./config.toml if there is one. Raises: ConfigError."""
    flags = overrides or {}
    settings = _read_file(path)
    for place in (_read_variables(), flags):
        for section, values in place.items():
            below = settings.get(section, {})
            if isinstance(below, dict):  # if not, it is refused all the same
                settings[section] = {**below, **values}
    try:
        return AppConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(_problems(error, path, flags)) from None


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


def _read_variables() -> dict[str, dict[str, str]]:
    """Section -> key -> value of the environment; empty ones count as not set. Raises: ConfigError.

    Other variables without a double underscore are not ours: RUSHLIGHT_CPU_PROFILE is the engine's.
    """
    found: dict[str, dict[str, str]] = {}
    for name, value in os.environ.items():
        if not name.upper().startswith(ENV_PREFIX):
            continue
        section, separator, key = name.lower()[len(ENV_PREFIX) :].partition("__")
        if section in AppConfig.model_fields:
            known = type(AppConfig.model_fields[section].default).model_fields
            if separator and key not in known:
                raise ConfigError(f"{name}: {section}.{key}: there is no such setting")
            if value and separator:
                found.setdefault(section, {})[key] = value
            elif value:
                settings = ", ".join(f"{name}__{key}".upper() for key in known)
                raise ConfigError(f"{name}: it is a section; its settings are {settings}")
        elif separator:
            sections = ", ".join(AppConfig.model_fields)
            raise ConfigError(f"{name}: there is no section '{section}'; there are {sections}")
    return found


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
