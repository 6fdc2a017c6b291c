"""HTTP that is none: what was wrong comes back as JSON, whatever still follows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_engine import FakeEngine, Script
from tests.server.conftest import Running
from tests.server.wire import RawConnection

CHAT = "/v1/chat/completions"
GET = b"GET /health HTTP/1.1\r\n"


@pytest.fixture
def raw(server: Running) -> Iterator[RawConnection]:
    with RawConnection(server.port) as connection:
        yield connection
    with RawConnection(server.port) as other:  # nobody else has noticed anything
        other.send(GET + b"Host: x\r\n\r\n")
        assert other.reply().status == 200


@pytest.mark.parametrize(
    ("sent", "status", "word"),
    [
        (b"hello?\r\n\r\n", 400, "request line"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "request line"),  # TLS begins
        (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400, "request line"),
        (GET + b"\r\n", 400, "Host"),
        (GET + b"Host: x\r\nno colon\r\n\r\n", 400, "header line: 'no colon'"),
        (GET + b"Host: x\r\nA: b\x00c\r\n\r\n", 400, "header"),
        (GET + b"Host: x\r\nContent-Length: -1\r\n\r\n", 400, "Content-Length"),
        (GET + b"Host: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "Content-Length"),
        (GET + b"Host: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (GET + b"Host: x\r\nA: " + b"a" * 3_000_000, 431, "too long"),
    ],
)
def test_a_broken_head(raw: RawConnection, sent: bytes, status: int, word: str) -> None:
    raw.send(sent)
    reply = raw.reply()
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json" and "date" in reply.headers
    error = reply.json()["error"]
    assert word in error["message"] and "bytearray" not in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert error["code"] == "invalid_http"
    assert raw.is_closed(1)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (CHAT, {"error": {"message", "type", "param", "code"}}),
        ("/v1/messages", {"type": set(), "error": {"message", "type"}}),
        ("/api/chat", {"error": set()}),
    ],
)
def test_a_broken_body(
    raw: RawConnection, fake: FakeEngine, path: str, keys: dict[str, Any], at_once: bool
) -> None:
    """Told as the route tells errors, once it has been reached."""
    n_before = len(fake.submitted)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"
    if not at_once:
        raw.send(head.encode())
        with RawConnection(raw.socket.getpeername()[1]) as other:  # by then the first is read
            other.send(GET + b"Host: x\r\n\r\n")
            assert other.reply().status == 200
        head = ""
    raw.send(head.encode() + b"zz\r\n" + b"x" * 3_000_000)
    reply = raw.reply()
    assert reply.status == 400
    told = reply.json()
    if not at_once:
        assert set(told) == set(keys)
        assert not keys["error"] or set(told["error"]) == keys["error"]
    assert "chunk" in json.dumps(told)
    assert raw.is_closed(1)
    assert len(fake.submitted) == n_before


def test_what_follows_a_whole_request_is_not_told(raw: RawConnection, fake: FakeEngine) -> None:
    """The reply to that one comes first, whole; only then is the rest looked at."""
    fake.script = Script(pieces=tuple(map(str, range(20))), delay_s=0.01)
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    raw.post(CHAT, body)
    raw.send(b"\x00\x01garbage\r\n\r\n")
    status, _ = raw.head()
    assert status == 200
    said = b""
    while chunk := raw.chunk():
        said += chunk
    assert said.endswith(b"data: [DONE]\n\n")
    assert raw.reply().json()["error"]["code"] == "invalid_http"
    assert raw.is_closed(1)
    fake.wait_until_idle()
