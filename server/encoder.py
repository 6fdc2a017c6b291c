"""What a family of APIs hands to the code that collects or streams a reply: its objects.

One Encoder serves one reply. It knows its family's shapes and nothing of bytes, engines or waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from server.errors import ApiError
from server.framing import Framing
from server.progress import Status
from server.reply_events import Choice, Ended, Piece
from server.wire_object import Wire


class Encoder(Protocol):
    """Each method returns objects to send, in order; none where the family sends nothing then."""

    @property
    def framing(self) -> Framing:
        """How objects of a stream become bytes."""

    def whole(self, choices: Sequence[Choice], ends: Sequence[Ended]) -> Wire:
        """The one object of a reply that is not streamed.

        ends: of every choice that was made, also of those that are not shown.
        """

    def opening(self) -> Iterable[Wire]:
        """At once, while the request still waits."""

    def waiting(self, status: Status) -> Iterable[Wire]:
        """About once a second while no text comes; a comment tells the same where the framing has
        comments.
        """

    def piece(self, piece: Piece) -> Iterable[Wire]:
        """More of a choice. May have no deltas, but tokens only."""

    def ended(self, end: Ended, ends: Sequence[Ended] | None) -> Iterable[Wire]:
        """A choice is complete. ends: of all choices, where it is the last one."""

    def closing(self, ends: Sequence[Ended]) -> Iterable[Wire]:
        """All choices are complete."""

    def failed(self, error: ApiError) -> Iterable[Wire]:
        """Nothing more comes, because of this."""
