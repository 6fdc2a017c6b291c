"""`rushlight prompt`: one question to a server of its own, the answer printed as it comes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from clients.private_server import private_server

if TYPE_CHECKING:
    from clients.client import Message


def ask_once(
    arguments: Sequence[str], asked: str | Sequence[Message], options: dict[str, Any]
) -> None:
    """Start a server, ask, and print the answer on standard output.

    arguments: of `rushlight serve`; asked: a chat, or text to be continued; options: of the
    request. Raises UserError.
    """
    status = Console(stderr=True).status("starting ...")
    with status, private_server(arguments, lambda health: status.update(str(health))) as client:
        from clients.chat import printable  # here, so that the server starts meanwhile
        from clients.client import Ended, Text

        show = printable if sys.stdout.isatty() else str
        try:
            for event in client.stream(asked, **options):
                if isinstance(event, Text):
                    status.stop()
                    print(show(event.text), end="", flush=True)
        finally:
            print(flush=True)  # an error or an interrupt begins on a line of its own
        if isinstance(event, Ended) and event.finish_reason == "length":
            print("rushlight: the reply reached its length limit", file=sys.stderr)
