"""Client: the part of the OpenAI API that our own commands need, as a few dataclasses over httpx.

Sync only. Knows HTTP and JSON shapes; knows nothing of terminals, and keeps no conversation.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

import httpx

from clients.errors import UserError
from clients.sse import Comment, SSEDecoder

Message = Mapping[str, str]  # {"role": ..., "content": ...}

_CONNECT_S = 5.0
_SHORT_READ_S = 10.0  # answers that need no generation
_POLL_S = 0.1


class ClientError(UserError):
    """A request failed; the message is one line for the user."""


class ServerUnreachable(ClientError):
    """Nothing answered, or the connection broke."""


class RequestRefused(ClientError):
    """The server answered with an error. `status` is 200 for one that came inside a stream."""

    def __init__(self, message: str, status: int, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Health:
    """What the server says of itself. While it loads, `stage` is at `done` of `total`.

    `failure` is why it will never be ready again; '' while there is hope.
    """

    ready: bool
    status: str
    stage: str = ""
    done: int = 0
    total: int = 0
    failure: str = ""

    def __str__(self) -> str:
        """What a person waits for: the stage, and how far it is."""
        progress = f" {self.done}/{self.total}" if self.total else ""
        return f"{self.stage or self.status}{progress}"


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of a streamed reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the server is doing before the first piece, in its words."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply is complete."""

    finish_reason: str


StreamEvent = Text | Waiting | Ended


class Client:
    """Talks to one server. Close it, or use it in a `with`."""

    def __init__(
        self,
        base_url: str,
        transport: httpx.BaseTransport | None = None,
        api_key: str = "",
    ) -> None:
        """base_url: as in http://127.0.0.1:8080, a final /v1 or not; api_key: "" = none.

        Raises: ClientError.
        """
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            # A prompt may take minutes before the first byte, so a reply has no time limit.
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            # A proxy from the environment cannot reach this machine's own loopback.
            trust_env=not _is_loopback(self.base_url),
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def health(self) -> Health:
        """Whether the server is ready. Raises: ClientError."""
        with self._errors():
            response = self._http.get("/health", timeout=_SHORT_READ_S)
            if response.status_code not in (200, 503):
                raise _refusal(response)
            body = _json_object(response.text)
        return Health(
            ready=response.status_code == 200,
            status=str(body.get("status", "")),
            stage=str(body.get("stage", "")),
            done=int(body.get("done", 0)),
            total=int(body.get("total", 0)),
            failure=str(body.get("message", "")) if body.get("status") == "failed" else "",
        )

    def until_ready(self) -> Iterator[Health]:
        """What the server says while it loads, again and again; ends when it is ready.

        Raises: ClientError.
        """
        while not (health := self.health()).ready:
            if health.failure:
                raise ClientError(f"{self.base_url} cannot answer any more: {health.failure}")
            yield health
            time.sleep(_POLL_S)

    def models(self) -> list[str]:
        """Ids of the models served. Raises: ClientError."""
        with self._errors():
            response = self._http.get("/v1/models", timeout=_SHORT_READ_S)
            if response.is_error:
                raise _refusal(response)
            return [str(model["id"]) for model in _json_object(response.text)["data"]]

    def stream(
        self, prompt: str | Sequence[Message], **options: Any
    ) -> Generator[StreamEvent, None, None]:
        """A reply, piece by piece: a string is a raw prompt, messages are a conversation. `options`
        are the API's own fields.

        The last event is Ended. Closing the iterator hangs up, which stops the server's work.
        Raises: ClientError.
        """
        if isinstance(prompt, str):
            path, body = "/v1/completions", {"prompt": prompt, **options}
        else:
            path, body = "/v1/chat/completions", {"messages": list(prompt), **options}
        body["stream"] = True
        with self._errors(), self._http.stream("POST", path, json=self._named(body)) as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            yield from _read_stream(response.iter_bytes())

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body` with the model's name in it: the API asks for one, and there is one to take."""
        return body if "model" in body else {"model": self.models()[0], **body}

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Every way a request can fail, as a ClientError."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerUnreachable(
                f"no server answers at {self.base_url}; start one with `rushlight serve MODEL`"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = str(error) or type(error).__name__
            raise ServerUnreachable(f"the connection to {self.base_url} failed: {said}") from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ClientError(
                f"{self.base_url} answered with something that is not the OpenAI API"
            ) from error


def _read_stream(chunks: Iterator[bytes]) -> Iterator[StreamEvent]:
    decoder = SSEDecoder()
    finish_reason: str | None = None
    for event in (event for chunk in chunks for event in decoder.feed(chunk)):
        if isinstance(event, Comment):
            yield Waiting(event.text)
            continue
        if event.data == "[DONE]":
            break
        body = _json_object(event.data)
        if "error" in body:
            raise _error_object(body["error"], 200)
        for choice in body["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            finish_reason = choice["finish_reason"] or finish_reason
            if text:
                yield Text(text)
    if finish_reason is None:
        raise ServerUnreachable("the reply broke off before its end")
    yield Ended(finish_reason)


def _json_object(text: str) -> dict[str, Any]:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise TypeError(f"a JSON object was expected, not {type(body).__name__}")
    return body


def _refusal(response: httpx.Response) -> RequestRefused:
    try:
        return _error_object(_json_object(response.text)["error"], response.status_code)
    except (ValueError, KeyError, TypeError, AttributeError):
        return RequestRefused(
            f"{response.url} answered {response.status_code} {response.reason_phrase}",
            response.status_code,
        )


def _error_object(error: dict[str, Any], status: int) -> RequestRefused:
    return RequestRefused(str(error["message"]), status, error.get("code"))


def _is_loopback(url: str) -> bool:
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise ClientError(f"{url!r} is not an address: {error}") from error
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
