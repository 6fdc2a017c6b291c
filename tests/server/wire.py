"""What a client sees on the wire: a raw connection, and server-sent events taken apart."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CRLF = b"\r\n"


def parse_sse(text: str) -> tuple[list[str], list[str]]:
    """Data of each event, and the comments. Every event must be one data line and a blank line."""
    data: list[str] = []
    comments: list[str] = []
    assert text.endswith("\n\n"), "the last event is not complete"
    for event in text.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in event, f"more than one line in {event!r}"
        if event.startswith(":"):
            comments.append(event[1:].strip())
        else:
            assert event.startswith("data: "), event
            data.append(event.removeprefix("data: "))
    return data, comments


def chunks_of(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a stream that ended well."""
    data, _ = parse_sse(text)
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    return [json.loads(item) for item in data[:-1]]


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Until `condition()` holds. Fails after `timeout_s`."""
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.002)


@dataclass(frozen=True)
class RawReply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """A socket that speaks just enough HTTP/1.1 to be rude with."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=20)
        self._buffer = b""

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, path: str, body: bytes | dict[str, Any], *headers: str) -> None:
        """A POST with a Content-Length."""
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(payload)}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode() + payload)

    def reply(self) -> RawReply:
        """The next reply, body read whole."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := self.chunk():
                body += chunk
        else:
            body = self._take(int(headers.get("content-length", 0)))
        return RawReply(status, headers, body)

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next reply."""
        head = self._until(CRLF + CRLF).decode()
        first, *lines = head.split("\r\n")
        pairs = (line.split(": ", 1) for line in lines if line)
        return int(first.split()[1]), {name.lower(): value for name, value in pairs}

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; b"" is the last."""
        n = int(self._until(CRLF), 16)
        data = self._take(n + 2)
        return data[:n]

    def is_closed(self, within_s: float = 10.0) -> bool:
        """Whether the server closes, whatever it still sends."""
        limit = time.monotonic() + within_s
        while (left := limit - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True
        return False

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._receive()
        data, _, self._buffer = self._buffer.partition(mark)
        return data

    def _take(self, n: int) -> bytes:
        while len(self._buffer) < n:
            self._receive()
        data, self._buffer = self._buffer[:n], self._buffer[n:]
        return data

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the server closed; read so far: {self._buffer[:200]!r}"
        self._buffer += data
