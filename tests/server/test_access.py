"""API keys, and browser pages of other origins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx
import openai
import pytest

from server.access import PUBLIC
from server.app import create_app
from server.config import AppConfig
from server.loader import EngineLoader
from tests.fake_engine import FakeEngine
from tests.server.conftest import Running
from tests.server.wire import RawConnection

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
PAGE = "http://localhost:3000"
README = Path(__file__).resolve().parents[2] / "README.md"
OURS = set(re.findall(r"X-Rushlight-\w+", README.read_text("utf-8")))  # headers that replies have
KEYS = {"api_keys": ["sk-one", "sk-two"]}

Serve = Callable[..., Running]


def preflight(http: httpx.Client, origin: str, path: str = CHAT) -> httpx.Response:
    return http.options(
        path,
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        },
    )


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer sk-one"}, 200),
        ({"Authorization": "bearer  sk-two"}, 200),
        ({"X-Api-Key": "sk-two"}, 200),
        ({"Authorization": "Bearer sk-three"}, 401),
        ({"Authorization": "Bearer sk-on"}, 401),
        ({"Authorization": "Bearer sk-one, sk-two"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic sk-one"}, 401),
        ({"Authorization": "sk-one"}, 401),
        ({"Authorization": b"Bearer sk-\xff"}, 401),
    ],
)
def test_keys(serve: Serve, headers: Any, status: int) -> None:
    server = serve(FakeEngine(), server=KEYS)
    with httpx.Client(base_url=server.url, headers=headers) as http:
        for body in (HELLO, {**HELLO, "stream": True}):
            reply = http.post(CHAT, json=body)
            assert reply.status_code == status
            if status == 401:
                assert reply.headers["content-type"] == "application/json"
                assert reply.headers["www-authenticate"] == "Bearer"
                error = reply.json()["error"]
                assert (error["type"], error["code"]) == (
                    "invalid_request_error",
                    "invalid_api_key",
                )
                assert "sk-" not in error["message"]
        assert http.get("/v1/models").status_code == status
        assert http.get("/health").status_code == http.get("/v1/health").status_code == 200


def test_without_keys_any_key_will_do(http: httpx.Client) -> None:
    for value in (b"Bearer x", b"Basic eDp5", b"Bearer", b"\xff"):
        assert http.post(CHAT, json=HELLO, headers={"Authorization": value}).status_code == 200


def test_every_route_but_a_few_wants_a_key() -> None:
    """Also those that are yet to be written."""
    engine = FakeEngine()
    config = AppConfig.model_validate({"server": KEYS})
    app = create_app(config, EngineLoader(lambda on_load: engine, on_done=lambda _: None))  # type: ignore[arg-type,return-value]
    paths = app.openapi()["paths"]
    assert len(paths) > 10

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            for path, methods in paths.items():
                for method in methods:
                    reply = await http.request(method, path.replace("{", "").replace("}", ""))
                    wanted = path not in PUBLIC
                    assert (reply.status_code == 401) == wanted, f"{method} {path}"

    anyio.run(ask)


def test_each_family_tells_it_its_own_way(serve: Serve) -> None:
    server = serve(FakeEngine(), server=KEYS)
    with httpx.Client(base_url=server.url) as http:
        told = http.post("/v1/messages", json={}).json()
        assert told["type"] == "error" and told["error"]["type"] == "authentication_error"
        assert isinstance(http.post("/api/chat", json={}).json()["error"], str)
        assert isinstance(http.get("/api/tags").json()["error"], str)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0) as other:
        asked: Any = {"model": "m", "max_tokens": 3, "messages": HELLO["messages"]}
        with pytest.raises(anthropic.AuthenticationError):
            other.messages.create(**asked)
        assert other.with_options(api_key="sk-one").messages.create(**asked).content


def test_a_body_that_nobody_read_is_no_request(serve: Serve) -> None:
    server = serve(FakeEngine(), server=KEYS)
    with RawConnection(server.port) as raw:
        raw.post(CHAT, json.dumps(HELLO).encode() * 1000)
        assert raw.reply().status == 401
        raw.post(CHAT, HELLO, "Authorization: Bearer sk-one")
        assert raw.reply().status == 200


@pytest.mark.parametrize("origins", [[PAGE], ["*"], ["http://other", PAGE]])
def test_preflight_needs_no_key(serve: Serve, origins: list[str]) -> None:
    server = serve(FakeEngine(), server={**KEYS, "cors_origins": origins})
    with httpx.Client(base_url=server.url) as http:
        for path in (CHAT, "/v1/models", "/v1/messages"):
            reply = preflight(http, PAGE, path)
            assert reply.status_code in (200, 204)
            assert reply.headers["access-control-allow-origin"] in (PAGE, "*")
            assert "POST" in reply.headers["access-control-allow-methods"].split(", ")
            named = reply.headers["access-control-allow-headers"].lower().split(",")
            assert {"authorization", "content-type"} <= {name.strip() for name in named}
        # The page may read replies and refusals alike, and streams.
        origin = {"Origin": PAGE}
        key = {"Authorization": "Bearer sk-one"}
        for reply, status in (
            (http.post(CHAT, json=HELLO, headers=origin), 401),
            (http.post(CHAT, content=b"{", headers=origin | key), 400),
            (http.get("/nothing", headers=origin | key), 404),
            (http.post(CHAT, json={**HELLO, "stream": True}, headers=origin | key), 200),
        ):
            assert reply.status_code == status
            assert reply.headers["access-control-allow-origin"] in (PAGE, "*")
            exposed = reply.headers["access-control-expose-headers"].split(", ")
            assert {"X-Request-Id", "Retry-After", *OURS} <= set(exposed)


@pytest.mark.parametrize(
    ("settings", "origin"),
    [
        ({}, PAGE),
        ({"cors_origins": [PAGE]}, "http://localhost:3001"),
        ({"cors_origins": [PAGE]}, "http://localhost:3000.evil.example"),
        ({"cors_origins": [PAGE]}, "null"),
    ],
)
def test_other_pages_get_no_allow_origin(
    serve: Serve, settings: dict[str, Any], origin: str
) -> None:
    server = serve(FakeEngine(), server=settings)
    with httpx.Client(base_url=server.url) as http:
        refused = preflight(http, origin)
        assert refused.status_code in (400, 405)
        assert "access-control-allow-origin" not in refused.headers
        reply = http.post(CHAT, json=HELLO, headers={"Origin": origin})
        assert "access-control-allow-origin" not in reply.headers
