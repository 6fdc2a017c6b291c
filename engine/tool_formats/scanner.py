"""Scanner: streamed text, read in order by generators that wait where they need more.

A parser on it is written top to bottom as for whole text: `yield from` stops it until the next
piece comes. How the text was cut into pieces therefore cannot matter. Knows no format but JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # runs on when more text has come, or the end
Emit = Callable[[str], None]

QUOTES: Final = "`'\""
_NOWHERE: Final = 1 << 62
_SCALAR_END: Final = ("", ",", "}", "]", "<")


class Unexpected(Exception):
    """The text does not go on as the format says."""


class Markers:
    """Texts to look for. Of those that begin at the same place the longest counts.

    quotable: one between two equal quotes is text, as somebody speaks of it.
    """

    def __init__(self, texts: Iterable[str], quotable: bool = False) -> None:
        self.quotable: Final = quotable
        self.texts: Final = tuple(sorted(set(texts), key=len, reverse=True))
        self._found = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self._longest = max(map(len, self.texts), default=0)

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._found.search(text, start)

    def half(self, text: str, start: int) -> int:
        """Where the end of the text may be the beginning of a marker; its length if nowhere."""
        for pos in range(max(start, len(text) - self._longest + 1), len(text)):
            tail = text[pos:]
            if any(len(marker) > len(tail) and marker.startswith(tail) for marker in self.texts):
                return pos
        return len(text)


class Scanner:
    """The text that has come and is not read yet.

    ended: no more comes.
    """

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._pos = 0  # what lies before is read
        self._kept = _NOWHERE  # where `rewind` goes
        self._silent = 0  # what lies before is never emitted

    def feed(self, text: str) -> None:
        done = max(0, min(self._pos, self._kept) - 1)  # but for one: a quote before a marker counts
        self._text = self._text[done:] + text
        self._pos -= done
        self._silent -= done
        if self._kept != _NOWHERE:
            self._kept -= done

    def silence(self) -> None:
        """Text that has come so far may be part of a marker, but `until` does not emit it."""
        self._silent = len(self._text)

    def keep(self) -> None:
        """From now on, `rewind` comes back to here."""
        self._kept = self._pos

    def rewind(self) -> None:
        """Unread what was read since `keep`."""
        self._pos = self._kept

    def release(self) -> None:
        """Nobody will rewind."""
        self._kept = _NOWHERE

    @property
    def is_at_end(self) -> bool:
        """Whether all is read, and no more comes."""
        return self.ended and self._pos >= len(self._text)

    def skip_cut(self, *texts: str) -> Steps[None]:
        """Read the beginning of one of the texts, after whitespace, where the end cuts it off."""
        while _is_cut(self._text[self._pos :].lstrip(), texts):
            if self.ended:
                self._pos = len(self._text)
                return
            yield

    def unread(self, text: str) -> None:
        """Give back what was read last."""
        self._pos -= len(text)

    def until(self, markers: Markers, emit: Emit) -> Steps[str]:
        """Pass the text before the first marker to `emit` as it comes, and read the marker.

        Returns the marker; '' at the end of the text.
        """
        n_quoted = 0  # characters that come next and hold only quoted markers
        while True:
            text, pos = self._text, self._pos
            found = markers.search(text, pos + n_quoted)
            half = len(text) if self.ended else markers.half(text, pos + n_quoted)
            if not found or found.start() >= half:
                shown = half
            elif not markers.quotable or (quoted := self._is_quoted(found)) is False:
                self._pos = found.end()
                emit(text[max(pos, self._silent) : found.start()])
                return found[0]
            elif quoted:
                n_quoted = found.end() - pos
                continue
            else:
                shown = found.start()
            self._pos, n_quoted = shown, 0
            emit(text[max(pos, self._silent) : shown])
            if self.ended:
                return ""
            yield

    def _is_quoted(self, found: re.Match[str]) -> bool | None:
        """Whether a marker stands between quotes; None: that depends on what comes."""
        quote, after = self._text[: found.start()][-1:], self._text[found.end() :][:1]
        if quote and quote in QUOTES:
            return after == quote if after or self.ended else None
        return False

    def take_until(self, *texts: str, most: int = _NOWHERE) -> Steps[tuple[str, str]]:
        """(the text before the first of the markers, the marker or '' at the end).

        most: characters of a text that is what it should be. Raises Unexpected beyond.
        """
        pieces: list[str] = []
        room = most

        def take(piece: str) -> None:
            nonlocal room
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise Unexpected

        marker = yield from self.until(Markers(texts), take)
        return "".join(pieces), marker

    def peek(self) -> Steps[str]:
        """The next character, which stays unread; '' at the end."""
        while self._pos >= len(self._text) and not self.ended:
            yield
        return self._text[self._pos : self._pos + 1]

    def take_char(self) -> Steps[str]:
        """The next character; '' at the end."""
        char = yield from self.peek()
        self._pos += len(char)
        return char

    def take_space(self) -> Steps[str]:
        """The whitespace that comes next."""
        taken = ""
        while (yield from self.peek()).isspace():
            taken += yield from self.take_char()
        return taken

    def accept(self, *texts: str) -> Steps[str]:
        """Read the longest of the texts that comes next; '' if none does.

        While `rewind` goes anywhere, what the end leaves of one is read too.
        """
        while True:
            rest = self._text[self._pos :][: max(map(len, texts))]
            come = max((text for text in texts if rest.startswith(text)), key=len, default="")
            may_come = _is_cut(rest, texts)
            if not may_come or self.ended:
                is_left = may_come and not come and self._kept != _NOWHERE
                self._pos += len(rest if is_left else come)
                return come
            yield

    def expect(self, *texts: str) -> Steps[str]:
        """Read one of the texts, after whitespace. Raises Unexpected."""
        yield from self.take_space()
        found = yield from self.accept(*texts)
        if not found:
            raise Unexpected
        return found

    def json_value(self, emit: Emit) -> Steps[None]:
        """Pass one JSON value to `emit` as it comes. A bare control character in a string, as weak
        models write it, is escaped. At the end of the text it may be cut.
        """
        first = yield from self.peek()
        if first not in '{["' or not first:
            yield from self._json_scalar(emit)
            return
        depth, in_string, escaped = 0, False, False
        while True:
            pieces: list[str] = []
            for char in self._text[self._pos :]:
                self._pos += 1
                if in_string:
                    pieces.append(char if char >= " " else json.dumps(char)[1:-1])
                    in_string = escaped or char != '"'
                    escaped = char == "\\" and not escaped
                else:
                    pieces.append(char)
                    in_string = char == '"'
                    depth += (char in "{[") - (char in "}]")
                if depth <= 0 and not in_string:
                    emit("".join(pieces))
                    return
            emit("".join(pieces))
            if self.ended:
                return
            yield

    def _json_scalar(self, emit: Emit) -> Steps[None]:
        while (char := (yield from self.peek())) not in _SCALAR_END and not char.isspace():
            self._pos += 1
            emit(char)

    def take_json(self) -> Steps[str]:
        """One JSON value, whole or cut."""
        pieces: list[str] = []
        yield from self.json_value(pieces.append)
        return "".join(pieces)

    def take_json_string(self) -> Steps[str]:
        """What a JSON string says. Raises Unexpected."""
        try:
            value = json.loads((yield from self.take_json()))
        except ValueError:
            raise Unexpected from None
        if not isinstance(value, str):
            raise Unexpected
        return value


def _is_cut(text: str, texts: Iterable[str]) -> bool:
    """Whether the text is but the beginning of one of the texts."""
    return any(len(whole) > len(text) and whole.startswith(text) for whole in texts)
