"""The terminal chat: reads lines, keeps the conversation, shows replies as they come.

Ctrl-C stops a reply and keeps what was shown of it, so the model remembers what the user saw.
Knows the Client only; what it reads from and writes to is given to it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from clients.client import Client, ClientError, Ended, Message, StreamEvent, Text, Waiting

HELP = """\
/reset  forget the conversation (the system message stays)
/help   show this
/exit   leave (Ctrl-D too)
Ctrl-C stops a reply; what it said so far stays part of the conversation."""

# Characters that would act on the terminal; a model can be talked into writing them.
_CONTROL = {code: "�" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Chat:
    """One conversation with one server."""

    def __init__(
        self, client: Client, console: Console, system: str | None = None, **options: Any
    ) -> None:
        """options: fields of every request, as the API names them."""
        self._client = client
        self._options = options
        self._console = console
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._history: list[Message] = []

    def run(self, read_line: Callable[[], str]) -> None:
        """Talk until /exit or the end of input. read_line: raises EOFError there."""
        self._note("/help lists the commands.")
        while True:
            try:
                line = read_line().strip()
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print()
                self._note("/exit or Ctrl-D leaves.")
                continue
            if line in ("/exit", "/quit"):
                return
            if line == "/reset":
                self._history.clear()
                self._note("Forgotten.")
            elif line == "/help":
                self._note(HELP)
            elif line.startswith("/"):
                self._note(f"There is no command {line.split()[0]}; /help lists them.")
            elif line:
                self._turn(line)

    def _turn(self, line: str) -> None:
        """Send one message and show the reply; an exchange without a reply leaves no trace."""
        asked: Message = {"role": "user", "content": line}
        shown: list[str] = []
        ending = ""
        try:
            ending = self._show_reply([*self._system, *self._history, asked], shown)
        except KeyboardInterrupt:
            ending = "Stopped."
        except ClientError as error:
            ending = f"Error: {error}"
        self._console.print()
        if ending:
            self._note(ending)
        if shown:
            self._history += [asked, {"role": "assistant", "content": "".join(shown)}]

    def _show_reply(self, messages: list[Message], shown: list[str]) -> str:
        """Print the reply's pieces and collect them in `shown`; a note on how it ended, or ''."""
        # Closing the stream hangs up, and that is what stops the server.
        with contextlib.closing(self._client.stream(messages, **self._options)) as events:
            with self._console.status("Waiting for the server ...") as status:
                first = _first_piece(events, status)
            for event in itertools.chain([first], events):
                if isinstance(event, Text):
                    shown.append(event.text)
                    self._console.file.write(printable(event.text))  # as it is: no wrapping
                    self._console.file.flush()
                elif isinstance(event, Ended) and event.finish_reason == "length":
                    return "The reply reached its length limit."
        return ""

    def _note(self, text: str) -> None:
        self._console.print(printable(text), style="dim", markup=False, highlight=False)


def printable(text: str) -> str:
    """`text` without the characters that a terminal would obey."""
    return text.translate(_CONTROL)


def _first_piece(events: Iterator[StreamEvent], status: Status) -> Text | Ended:
    """The first event that is not Waiting; what is waited for is told meanwhile."""
    while isinstance(event := next(events), Waiting):  # a stream ends with Ended, never before
        if event.text:
            status.update(escape(printable(event.text)))
    return event
