"""A JSON object becomes a request body of some API, or a 400 that names what is wrong.

A null is an absent field. Knows no fields: each body's class says which it takes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from engine import InvalidRequest
from server.errors import ApiError
from server.known_fields import is_inactive, unknown_fields
from server.request_object import RequestBody

AnyBody = TypeVar("AnyBody", bound=RequestBody)


def parse_request(
    kind: type[AnyBody], body: dict[str, Any], max_prompts: int
) -> tuple[AnyBody, list[str]]:
    """The body as a `kind`, and the names of the fields that nobody knows. Raises: ApiError 400."""
    given = {name: value for name, value in body.items() if value is not None}
    _refuse_misplaced(kind, given)
    _refuse_disagreeing_aliases(kind, given)
    try:
        request = kind.model_validate(given, context={"max_prompts": max_prompts})
    except ValidationError as error:
        raise _refusal(error, given) from None
    return request, _unknown(request)


def name_as_sent(
    error: InvalidRequest, kind: type[RequestBody], body: dict[str, Any]
) -> InvalidRequest:
    """`error` about a field, told by the name that `body` has for it."""
    aliases = kind.aliases.get(error.param or "", ())
    for name in aliases:
        if body.get(name) is not None:
            return InvalidRequest(str(error).replace(aliases[0], name, 1), name)
    return error


def _refuse_misplaced(kind: type[RequestBody], given: dict[str, Any]) -> None:
    for name, route in kind.elsewhere.items():
        if name in given and not is_inactive(given[name], kind.inactive.get(name, ())):
            raise ApiError(
                400,
                f"{name} belongs to {route}, not to this route",
                param=name,
                code="unsupported_parameter",
            )


def _refuse_disagreeing_aliases(kind: type[RequestBody], given: dict[str, Any]) -> None:
    for names in kind.aliases.values():
        used = [name for name in names if name in given]
        if any(given[name] != given[used[0]] for name in used):
            raise ApiError(400, f"{' and '.join(used)} disagree; send one of them", param=used[1])


def _unknown(request: RequestBody) -> list[str]:
    """Paths of the keys that nobody knows. Raises: ApiError for one that we cannot obey."""
    aliases = {name for names in request.aliases.values() for name in names}
    extra = {k: v for k, v in (request.model_extra or {}).items() if k not in aliases}
    unknown = unknown_fields(extra, request.inactive, request.without_effect)
    return [*unknown, *dict.fromkeys(request.unknown_keys_inside())]


def first_problem(error: ValidationError, given: Any) -> tuple[str, str]:
    """(path in `given`, what is wrong there) of the first thing wrong. Where a value may be of
    several types, it is judged as the one that it comes nearest to.
    """
    errors = error.errors(include_url=False, include_context=False)
    first = _path(errors[0], given)
    tried: list[tuple[str, str]] = []
    for one in errors:  # those of one value stand together
        path = _path(one, given)
        if path != first and not path.startswith(f"{first}."):
            break
        tried.append((path, one["msg"].removeprefix("Value error, ")))
    path = max((path for path, _ in tried), key=len)
    problems = dict.fromkeys(problem for where, problem in tried if where == path)
    return path, ", or ".join(problems).replace(", or Input should be ", ", or ")


def _refusal(error: ValidationError, given: dict[str, Any]) -> ApiError:
    path, problem = first_problem(error, given)
    return ApiError(400, f"{path}: {problem}", param=path)


def _path(error: ErrorDetails, given: Any) -> str:
    """Without the names of the types that a value was tried as, which stand among its steps."""
    path, value, last = "", given, len(error["loc"]) - 1
    for i, step in enumerate(error["loc"]):
        if isinstance(step, int):
            path += f"[{step}]"
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif isinstance(value, dict) and (
            step in value or (i == last and error["type"] == "missing")
        ):
            path += f".{step}" if path else step
            value = value.get(step)
    return path
