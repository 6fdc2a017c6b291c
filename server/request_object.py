"""Base classes of what clients send: strict types, and the names of the keys that nobody reads.

Knows no field of any API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from engine import InvalidRequest, SamplingParams
from server import known_fields
from server.ask import Ask, ContextPolicy

Object = dict[str, Any]


class RequestObject(BaseModel):
    """Strict types, finite numbers; unknown keys are kept for naming."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, defer_build=True)

    def unknown_keys(self) -> Iterator[str]:
        """Paths of the keys in here that no field takes. A null is an absent key."""
        yield from other_keys(self.model_extra or {}, ())
        yield from self.unknown_keys_inside()

    def unknown_keys_inside(self) -> Iterator[str]:
        """The same of the fields' own objects only."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, RequestObject):
                yield from (f"{name}.{key}" for key in value.unknown_keys())
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, RequestObject):
                        yield from (f"{name}[].{key}" for key in item.unknown_keys())


def other_keys(given: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    """The keys of `given` that are not `known`. A null is an absent key."""
    return (key for key, value in given.items() if key not in known and value is not None)


def string_at(given: Mapping[str, Any], key: str, path: str) -> str:
    """The string under a key of the object at `path`. Raises: InvalidRequest."""
    value = given.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{path}.{key} must be a string", f"{path}.{key}")
    return value


class RequestBody(RequestObject):
    """Base of whole bodies: one subclass for each route that reads one."""

    elsewhere: ClassVar[dict[str, str]] = {}  # fields of another route -> that route
    # Other names for one thing; a request may use any of them, but not two that disagree.
    aliases: ClassVar[dict[str, tuple[str, ...]]] = {}
    # Known and not obeyed -> the values that ask for nothing; any other is refused by name.
    inactive: ClassVar[dict[str, tuple[Any, ...]]] = known_fields.INACTIVE
    without_effect: ClassVar[frozenset[str]] = known_fields.WITHOUT_EFFECT
    prompt_field: ClassVar[str] = "messages"  # what to shorten when the prompt is too long

    stream: bool = False
    context_policy: ContextPolicy | None = None  # of a chat that does not fit; None = the config's

    @property
    def wanted_policy(self) -> ContextPolicy | None:
        """What is asked for, by whatever name."""
        return self.context_policy

    def ask(self, defaults: SamplingParams) -> Ask:
        """What this asks of the engine; `defaults` where it says nothing.

        Raises: InvalidRequest, ApiError.
        """
        raise NotImplementedError
