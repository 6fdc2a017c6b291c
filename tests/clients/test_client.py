"""The client against answers as OpenAI documents them, and a real socket for hanging up."""

import json
import socket
import threading
from collections.abc import Callable

import httpx
import pytest

from clients.client import (
    Client,
    ClientError,
    Ended,
    Health,
    RequestRefused,
    ServerUnreachable,
    Text,
    Waiting,
)

MESSAGES = [{"role": "user", "content": "Hello"}]


def chat_chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    body = {"object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://test", transport=httpx.MockTransport(answer))


def answering(status: int, body: object, seen: list[httpx.Request] | None = None) -> Client:
    """A client whose server knows one model and answers everything else with `body`."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"object": "list", "data": [{"id": "tiny"}]})
        if seen is not None:
            seen.append(request)
        if isinstance(body, bytes):
            return httpx.Response(status, content=body)
        return httpx.Response(status, json=body)

    return client_of(answer)


def test_a_stream_gives_waiting_then_text_then_the_reply() -> None:
    seen: list[httpx.Request] = []
    body = b": prefill 256 of 512\n\n" + chat_chunk({"role": "assistant", "content": ""})
    body += chat_chunk({"content": "Hel"}) + chat_chunk({"content": "lo"})
    body += chat_chunk({}, "stop") + DONE
    with answering(200, body, seen) as client:
        assert list(client.stream(MESSAGES, temperature=0)) == [
            Waiting("prefill 256 of 512"),
            Text("Hel"),
            Text("lo"),
            Ended("stop"),
        ]
    assert seen[0].url.path == "/v1/chat/completions"
    assert json.loads(seen[0].content) == {
        "model": "tiny",
        "messages": MESSAGES,
        "temperature": 0,
        "stream": True,
    }


def test_a_string_streams_from_the_completions_route() -> None:
    body = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
    body += b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n' + DONE
    seen: list[httpx.Request] = []
    with answering(200, body, seen) as client:
        assert list(client.stream("Once", max_tokens=3)) == [Text("a"), Ended("stop")]
    assert seen[0].url.path == "/v1/completions"
    sent = json.loads(seen[0].content)
    assert (sent["prompt"], sent["max_tokens"]) == ("Once", 3)


def test_an_error_inside_a_stream_is_raised_with_its_message() -> None:
    error = {"message": "the engine died", "type": "server_error", "code": "engine_failed"}
    body = chat_chunk({"content": "Hel"})
    body += b"event: error\ndata: " + json.dumps({"error": error}).encode() + b"\n\n"
    with answering(200, body) as client:
        events = client.stream(MESSAGES)
        assert next(events) == Text("Hel")
        with pytest.raises(RequestRefused, match=r"^the engine died$") as caught:
            next(events)
    assert caught.value.code == "engine_failed"


def test_a_stream_that_just_ends_is_no_whole_reply() -> None:
    with (
        answering(200, chat_chunk({"content": "Hel"})) as client,
        pytest.raises(ServerUnreachable, match="broke off"),
    ):
        list(client.stream(MESSAGES))


def test_a_refusal_carries_message_status_and_code() -> None:
    error = {"message": "too long", "type": "invalid_request_error", "code": "context_length"}
    with (
        answering(400, {"error": error}) as client,
        pytest.raises(RequestRefused, match=r"^too long$") as caught,
    ):
        list(client.stream(MESSAGES))
    assert (caught.value.status, caught.value.code) == (400, "context_length")


def test_an_error_page_of_something_else_is_told_by_its_status() -> None:
    with (
        answering(502, b"<html>Bad gateway</html>") as client,
        pytest.raises(RequestRefused, match="answered 502 Bad Gateway"),
    ):
        list(client.stream(MESSAGES))


@pytest.mark.parametrize("data", [b"hello", b"[]", b"{}", b'{"choices": [{}]}', b'{"choices": 5}'])
def test_an_answer_of_another_shape_is_refused(data: bytes) -> None:
    with (
        answering(200, b"data: " + data + b"\n\n") as client,
        pytest.raises(ClientError, match="not the OpenAI API"),
    ):
        list(client.stream(MESSAGES))


def test_health_before_and_after_loading() -> None:
    loading = {"status": "loading", "stage": "compiling kernels", "done": 3, "total": 9}
    with answering(503, loading) as client:
        assert client.health() == Health(False, "loading", "compiling kernels", 3, 9)
    with answering(200, {"status": "ok"}) as client:
        assert client.health() == Health(True, "ok")


def test_nobody_waits_for_a_server_that_has_failed() -> None:
    with (
        answering(503, {"status": "failed", "message": "the engine stopped"}) as client,
        pytest.raises(ClientError, match="http://test cannot answer any more: the engine stopped"),
    ):
        list(client.until_ready())


def test_an_address_may_end_in_v1() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"data": [{"id": "tiny"}]})

    with Client("http://test/v1/", httpx.MockTransport(answer)) as client:
        assert client.models() == ["tiny"]
    assert seen[0].url == "http://test/v1/models"


def test_no_server_is_told_with_its_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with Client(url) as client, pytest.raises(ServerUnreachable, match=f"answers at {url};"):
            client.health()


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x", "http://[::1"])
def test_a_bad_address_is_a_client_error(url: str) -> None:
    with pytest.raises(ClientError), Client(url) as client:
        client.health()


def test_a_proxy_from_the_environment_does_not_stand_before_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:9")
    with (
        Client("http://127.0.0.1:1") as client,
        pytest.raises(ServerUnreachable, match="no server"),
    ):
        client.health()


def test_closing_a_stream_hangs_up() -> None:
    """A server that writes one piece, then reports when its client has gone."""
    gone = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
            connection.sendall(head + chat_chunk({"content": "Hel"}))
            while connection.recv(65536):
                pass
            gone.set()

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        events = client.stream(MESSAGES, model="tiny")
        assert next(events) == Text("Hel")
        assert not gone.is_set()
        events.close()
        assert gone.wait(timeout=5)
        thread.join()


def test_a_key_goes_with_every_request() -> None:
    sent: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"status": "ok", "data": [{"id": "m"}]})

    for key in ("sk-one", ""):
        with Client("http://test", httpx.MockTransport(answer), api_key=key) as client:
            client.health()
            client.models()
    assert sent == ["Bearer sk-one", "Bearer sk-one", None, None]
