"""Responses that were kept, so that a later request can go on from them or fetch them.

In memory and bounded; the longest unused ones go first, and all of them with the process. Used on
the event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from server.errors import ApiError
from server.request_object import Object

MAX_BYTES: Final = 16 << 20
MAX_RESPONSES: Final = 1000


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """wire: its JSON; n_input: of the items, those before the reply; items: the conversation to
    its end, the reply included, but no instructions: each request brings its own.
    """

    wire: str
    items: Sequence[Object]
    n_input: int


class ResponseStore:
    def __init__(self, max_bytes: int = MAX_BYTES, max_responses: int = MAX_RESPONSES) -> None:
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._kept: OrderedDict[str, tuple[KeptResponse, int]] = OrderedDict()
        self._n_bytes = 0

    @classmethod
    def of(cls, request: Request) -> ResponseStore:
        """That of the application that serves `request`."""
        state = request.app.state
        if not hasattr(state, "responses"):
            state.responses = cls()
        store: ResponseStore = state.responses
        return store

    def keep(self, id: str, response: KeptResponse) -> None:
        """Keep it, unless it alone is too large."""
        n_bytes = len(response.wire) + sum(len(str(item)) for item in response.items)
        if n_bytes > self._max_bytes:
            return
        self._kept[id] = response, n_bytes
        self._n_bytes += n_bytes
        while self._n_bytes > self._max_bytes or len(self._kept) > self._max_responses:
            _, (_, n_gone) = self._kept.popitem(last=False)
            self._n_bytes -= n_gone

    def get(self, id: str, param: str | None = None) -> KeptResponse:
        """Raises: ApiError 404, naming the field of a body where it comes from one."""
        if id not in self._kept:
            raise ApiError(
                404,
                f"there is no response '{id:.100}': it was not stored, or is no longer",
                param=param,
                code="previous_response_not_found" if param else "response_not_found",
            )
        self._kept.move_to_end(id)
        return self._kept[id][0]

    def drop(self, id: str) -> None:
        """Raises: ApiError 404."""
        self.get(id)
        self._n_bytes -= self._kept.pop(id)[1]
