"""Bodies over a raw socket: framing, limits and JSON."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from server.body import MAX_DEPTH, parse_json_object
from server.errors import ApiError
from tests.fake_engine import FakeEngine
from tests.server.conftest import Running
from tests.server.wire import RawConnection

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
BODY = json.dumps(HELLO).encode()


@pytest.fixture
def raw(server: Running) -> Any:
    with RawConnection(server.port) as connection:
        yield connection


def assert_health(server: Running) -> None:
    with RawConnection(server.port) as connection:
        connection.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.reply().status == 200


def test_chunked_body(raw: RawConnection) -> None:
    raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    for piece in (BODY[:10], BODY[10:11], BODY[11:]):
        raw.send(b"%x\r\n%s\r\n" % (len(piece), piece))
    raw.send(b"0\r\n\r\n")
    assert raw.reply().json()["choices"][0]["message"]["content"] == "Paris."


def test_expect_100_continue(raw: RawConnection) -> None:
    raw.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n"
        "Expect: 100-continue\r\n\r\n".encode()
    )
    began = time.monotonic()
    assert raw.head()[0] == 100
    assert time.monotonic() - began < 1
    raw.send(BODY)
    assert raw.reply().status == 200


def test_two_lengths_are_refused(server: Running, raw: RawConnection, fake: FakeEngine) -> None:
    n_before = len(fake.submitted)
    raw.post(CHAT, b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), "Transfer-Encoding: chunked")
    reply = raw.reply()
    assert reply.status == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert raw.is_closed()
    assert len(fake.submitted) == n_before
    assert_health(server)


DEEP_SCHEMA = '{"items":' * 1000 + "{}" + "}" * 1000
WITH_DEEP_SCHEMA = BODY.decode().removesuffix("}") + ', "%s": ' + DEEP_SCHEMA + "}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"temperature": NaN, "messages": []}', "NaN"),
        (b'{"temperature": -Infinity, "messages": []}', "Infinity"),
        (b'{"temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}', "temperature"),
        (b"null", "object"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "JSON"),
        (b'{"a": 1} x', "JSON"),
        (b'{"a": "\xff"}', "UTF-8"),
        (BODY.decode().encode("utf-16"), "UTF-8"),
        (b"[" * 20000 + b"]" * 20000, "nested"),
        (b'{"x": ' + b"[" * 10000 + b"]" * 10000 + b"}", "nested"),
        (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "surrogate"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
        ((WITH_DEEP_SCHEMA % "response_format").encode(), "nested"),
        ((WITH_DEEP_SCHEMA % "tools").encode(), "nested"),
    ],
)
def test_bad_bodies(server: Running, raw: RawConnection, body: bytes, message: str) -> None:
    raw.post(CHAT, body)
    reply = raw.reply()
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    assert message in reply.json()["error"]["message"]
    raw.post(CHAT, HELLO)  # the same connection serves on
    assert raw.reply().status == 200


def test_depth_is_exact() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * depth + b"1" + b"}" * depth

    assert parse_json_object(nested(MAX_DEPTH))
    with pytest.raises(ApiError, match="nested deeper than 100 levels"):
        parse_json_object(nested(MAX_DEPTH + 1))


def test_what_is_allowed() -> None:
    assert parse_json_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
    assert parse_json_object('{"a": "é\u2028"}'.encode()) == {"a": "é\u2028"}


def test_too_large_by_its_header(server: Running, raw: RawConnection) -> None:
    n = 8 * 1024 * 1024 + 1
    raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {n}\r\n\r\n".encode())
    reply = raw.reply()  # without a byte of the body having been sent
    assert reply.status == 413
    assert reply.json()["error"]["code"] == "body_too_large"
    assert reply.headers["connection"] == "close"
    assert raw.is_closed()
    assert_health(server)


def test_too_large_while_it_is_sent(serve: Any) -> None:
    running: Running = serve(FakeEngine(), server={"max_body_bytes": 4096})
    for chunked in (False, True):
        with RawConnection(running.port) as raw:
            framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {10**7}"
            raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())
            piece = b" " * 50_000
            raw.send(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            assert raw.reply().status == 413  # not lost in a reset, though bytes were unread
            assert raw.is_closed()


def test_no_100_for_what_is_too_large(raw: RawConnection) -> None:
    raw.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {10**9}\r\n"
        "Expect: 100-continue\r\n\r\n".encode()
    )
    assert raw.head()[0] == 413


@pytest.mark.parametrize("path", ["/nothing/here", "/health"])
def test_unread_body_is_never_a_request(raw: RawConnection, path: str) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n" * 5000
    raw.post(path, smuggled)
    assert raw.reply().status == (404 if path.startswith("/nothing") else 405)
    raw.post(CHAT, HELLO)
    assert raw.reply().status == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_compressed_bodies_are_refused(raw: RawConnection, encoding: str) -> None:
    raw.post(CHAT, gzip.compress(BODY), f"Content-Encoding: {encoding}")
    reply = raw.reply()
    assert reply.status == 415
    assert f"Content-Encoding: {encoding}" in reply.json()["error"]["message"]
    assert reply.headers["accept-encoding"] == "identity"
    raw.post(CHAT, HELLO, "Content-Encoding: Identity")  # the same connection serves on
    assert raw.reply().status == 200


def test_client_that_stops_in_the_middle(server: Running, fake: FakeEngine) -> None:
    n_before = len(fake.submitted)
    with RawConnection(server.port) as raw:
        raw.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    assert_health(server)
    assert len(fake.submitted) == n_before
