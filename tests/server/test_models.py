"""/health and /v1/models, before and after the model is there; /openapi.json."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from engine import LoadProgress
from tests.fake_engine import FakeEngine
from tests.server.conftest import Running, wait_until_ready

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def test_loading_then_ready(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "rushlight")
    go = threading.Event()
    half = threading.Event()

    def make_engine(on_load: Any) -> Any:
        on_load(LoadProgress("compiling kernels", 3, 40))
        half.set()
        go.wait()
        return FakeEngine()

    running: Running = serve(make_engine)
    assert half.wait(20)
    with httpx.Client(base_url=running.url) as client:
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json() == {
            "status": "loading",
            "stage": "compiling kernels",
            "done": 3,
            "total": 40,
        }
        logged = [record.getMessage() for record in caplog.records]
        assert not any("/health" in line for line in logged), "who waits asks often"
        for reply in (
            client.post(CHAT, json=HELLO),
            client.post(CHAT, json={**HELLO, "stream": True}),
            client.post("/v1/completions", json={"prompt": "x"}),
            client.get("/v1/models"),
            client.get("/v1/models/fake-1b"),
        ):
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "model_loading"
            assert "compiling kernels" in reply.json()["error"]["message"]
            assert reply.headers["retry-after"] == "1"
        go.set()
        wait_until_ready(running)
        health = client.get("/health")
        assert health.status_code == 200
        assert health.json() == {
            "status": "ok",
            "running": 0,
            "waiting": 0,
            "weights_resident": 0.75,
        }
        assert client.post(CHAT, json=HELLO).status_code == 200


def test_models(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("fake-1b", "model", "rushlight")
    assert abs(model["created"] - time.time()) < 3600
    assert model["meta"] == {
        "architecture": "llama",
        "n_vocab": 258,
        "n_ctx": 512,
        "n_ctx_train": 2048,
        "n_embd": 64,
        "n_layer": 2,
        "n_params": 1_000_000,
        "size": 600_000,
        "ftype": "Q4_1",
    }
    assert http.get("/v1/models/fake-1b").json() == model


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/fake-1b"])
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    head, get = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert http.head("/v1/models/other").status_code == 404


@pytest.mark.parametrize("name", ["gpt-4o", "org/name", "fake-1b/x"])
def test_other_models_are_not_found(http: httpx.Client, name: str) -> None:
    reply = http.get(f"/v1/models/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == (
        f"the model '{name}' is not served here; 'fake-1b' is"
    )


def test_openapi_tells_the_truth(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/completions",
        CHAT,
        f"{CHAT}/input_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{id}",
        "/v1/responses/{id}/input_items",
        "/v1/embeddings",
        "/v1/estimate",
        "/v1/memory",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/props",
        "/api/embed",
        "/api/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/api/chat",
        "/api/generate",
        "/api/ps",
        "/api/pull",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/completion",
        "/completions",
        "/infill",
        "/slots",
        "/slots/{slot}",
        "/slots/saved",
        "/slots/saved/{filename}",
    }
    schemas = document["components"]["schemas"]
    for path in (CHAT, "/v1/completions"):
        body = document["paths"][path]["post"]["requestBody"]
        reference = body["content"]["application/json"]["schema"]["$ref"]
        properties = schemas[reference.removeprefix("#/components/schemas/")]["properties"]
        assert {"max_tokens", "temperature", "stop", "stream"} <= set(properties)
    assert schemas["ChatCompletionRequest"]["required"] == ["messages"]
    replies = document["paths"][CHAT]["post"]["responses"]
    statuses = {"200", "400", "401", "409", "413", "415", "429", "500", "503", "504"}
    assert set(replies) == statuses
    assert set(replies["200"]["content"]) == {"application/json", "text/event-stream"}
    _assert_references_exist(document, document)


def test_docs_load_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("<!doctype html>", "")
    assert "openapi.json" in page.text


def _assert_references_exist(node: Any, document: Any) -> None:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            target = document
            for step in reference.removeprefix("#/").split("/"):
                target = target[step]
        for child in node.values():
            _assert_references_exist(child, document)
    elif isinstance(node, list):
        for child in node:
            _assert_references_exist(child, document)
