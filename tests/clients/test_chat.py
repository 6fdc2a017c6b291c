"""The terminal chat against a scripted stand-in for the Client."""

import io
from collections.abc import Callable, Generator, Sequence
from typing import Any

from rich.console import Console

from clients.chat import Chat
from clients.client import Ended, Message, ServerUnreachable, StreamEvent, Text, Waiting


class ScriptedClient:
    """Plays one list of events per request; an exception in it is raised."""

    def __init__(self, *scripts: list[StreamEvent | BaseException]) -> None:
        self.scripts = list(scripts)
        self.asked: list[list[Message]] = []
        self.n_closed = 0

    def stream(
        self, prompt: Sequence[Message], **options: Any
    ) -> Generator[StreamEvent, None, None]:
        self.asked.append(list(prompt))
        try:
            for event in self.scripts.pop(0):
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.n_closed += 1


def said(text: str) -> list[StreamEvent | BaseException]:
    return [Text(text), Ended("stop")]


def typing(*lines: str | BaseException) -> Callable[[], str]:
    rest = list(lines)

    def read_line() -> str:
        if not rest:
            raise EOFError
        line = rest.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read_line


def talk(client: ScriptedClient, *lines: str | BaseException, system: str | None = None) -> str:
    screen = io.StringIO()
    Chat(client, Console(file=screen, width=200), system).run(typing(*lines))  # type: ignore[arg-type]
    return screen.getvalue()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_each_turn_sends_the_whole_conversation() -> None:
    client = ScriptedClient(said("Paris."), said("Two million."))
    screen = talk(client, "Capital of France?", "", "How many live there?", "/exit", "unread")
    assert client.asked == [
        [user("Capital of France?")],
        [user("Capital of France?"), assistant("Paris."), user("How many live there?")],
    ]
    assert "Paris.\n" in screen
    assert "Two million.\n" in screen


def test_the_system_message_comes_first_and_survives_a_reset() -> None:
    client = ScriptedClient(said("a"), said("b"))
    talk(client, "one", "/reset", "two", system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert client.asked == [[system, user("one")], [system, user("two")]]


def test_an_interrupt_stops_the_reply_and_keeps_what_was_shown() -> None:
    client = ScriptedClient([Text("One, two"), KeyboardInterrupt()], said("b"))
    screen = talk(client, "count", "go on")
    assert client.asked[1] == [user("count"), assistant("One, two"), user("go on")]
    assert client.n_closed == 2
    assert "Stopped." in screen


def test_an_interrupt_before_the_first_word_forgets_the_question() -> None:
    client = ScriptedClient([Waiting("prefill 1 of 9"), KeyboardInterrupt()], said("b"))
    talk(client, "one", "two")
    assert client.asked[1] == [user("two")]


def test_an_interrupt_at_the_prompt_does_not_leave() -> None:
    client = ScriptedClient(said("a"))
    assert "/exit or Ctrl-D leaves." in talk(client, KeyboardInterrupt(), "one")
    assert client.asked == [[user("one")]]


def test_a_failed_turn_is_told_and_the_chat_goes_on() -> None:
    client = ScriptedClient([ServerUnreachable("no server answers [here]")], said("b"))
    screen = talk(client, "one", "two")
    assert "Error: no server answers [here]" in screen
    assert client.asked[1] == [user("two")]


def test_a_reply_cut_by_its_length_says_so() -> None:
    client = ScriptedClient([Text("a"), Ended("length")])
    assert "length limit" in talk(client, "one")


def test_an_unknown_command_is_not_sent() -> None:
    client = ScriptedClient()
    screen = talk(client, "/frobnicate now", "/help")
    assert "no command /frobnicate" in screen
    assert "/reset  forget" in screen
    assert client.asked == []


def test_a_reply_cannot_act_on_the_terminal() -> None:
    screen = talk(ScriptedClient(said("a\x1b]0;owned\x07[bold]\tb\nc\x9b2J")), "one")
    assert "a�]0;owned�[bold]\tb\nc�2J" in screen
