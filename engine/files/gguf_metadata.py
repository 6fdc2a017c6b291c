"""Metadata read by key: each getter checks that the value is of the kind that is asked for.

Knows no keys, and not where the values come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import numpy as np
import numpy.typing as npt

from engine.errors import GGUFError
from engine.files.string_array import StringArray

Default = TypeVar("Default")
_REQUIRED: Final[Any] = object()


class Metadata:
    """Metadata of a file.

    path:     the file that errors name.
    metadata: scalars and strings as Python values, numeric arrays as NumPy arrays (own memory),
              string arrays as StringArray (read from the mapping).
    """

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.metadata: Final = metadata

    # The getters return the value, checked, or the default when the key is missing. They raise
    # GGUFError naming the key when there is no default, or when the value is of another type.

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: Default) -> int | Default: ...
    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width."""
        return self._get(key, default, "an integer", lambda value: type(value) is int)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: Default) -> float | Default: ...
    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """A finite number; an integer is taken as one."""
        value = self._get(key, default, "a finite number", _is_finite_number)
        return float(value) if type(value) is int else value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: Default) -> bool | Default: ...
    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        return self._get(key, default, "a boolean", lambda value: type(value) is bool)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: Default) -> str | Default: ...
    def get_str(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string; bytes that are not UTF-8 become lone surrogates, as in StringArray."""
        return self._get(key, default, "a string", lambda value: type(value) is str)

    @overload
    def get_strings(self, key: str) -> StringArray: ...
    @overload
    def get_strings(self, key: str, default: Default) -> StringArray | Default: ...
    def get_strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of strings; `to_list()` decodes them all."""
        return self._get(key, default, "an array of strings", lambda v: type(v) is StringArray)

    @overload
    def get_array(self, key: str) -> npt.NDArray[Any]: ...
    @overload
    def get_array(self, key: str, default: Default) -> npt.NDArray[Any] | Default: ...
    def get_array(self, key: str, default: Any = _REQUIRED) -> Any:
        """A one-dimensional array of numbers or booleans."""
        return self._get(key, default, "an array of numbers", lambda v: type(v) is np.ndarray)

    def _get(self, key: str, default: Any, kind: str, is_kind: Callable[[Any], bool]) -> Any:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(self.path, f"metadata {key!r} is missing; it should be {kind}")
            return default
        value = self.metadata[key]
        if not is_kind(value):
            raise GGUFError(self.path, f"metadata {key!r} should be {kind}, not {_shown(value)}")
        return value


def _is_finite_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _shown(value: object) -> str:
    if isinstance(value, (StringArray, np.ndarray)):
        return f"an array of {len(value)}"
    return repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
