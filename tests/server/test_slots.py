"""/slots over a real engine with a tiny random model: saving is nothing that can be scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine import Engine, EngineConfig
from tests.tiny_gguf import write_tiny_gguf

PROMPT = "once upon a time there was a chat that should not be forgotten " * 4

Start = Callable[..., httpx.Client]


@pytest.fixture
def start(serve: Any, tmp_path: Path) -> Iterator[Start]:
    """Starts servers that share a model and a folder for saved chats."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", n_ctx=512)
    opened: list[Any] = []

    def start_one(saved_folder: str = str(tmp_path / "saved")) -> httpx.Client:
        config = EngineConfig(path, n_ctx=512, disk_bytes=0, saved_folder=saved_folder)
        engine = Engine(config)
        running = serve(engine, cache={"saved_folder": saved_folder})
        client = httpx.Client(base_url=running.url, timeout=20)
        opened.extend([client, engine])
        return client

    yield start_one
    for one in opened:
        one.close()


def ask(http: httpx.Client) -> tuple[str, int]:
    """(text, cached tokens)"""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    reply = http.post("/v1/completions", json=body).raise_for_status().json()
    details = reply["usage"]["prompt_tokens_details"]
    return reply["choices"][0]["text"], details["cached_tokens"]


def act(http: httpx.Client, action: str, slot: str = "0", **body: Any) -> httpx.Response:
    return http.post(f"/slots/{slot}", params={"action": action}, json=body)


def test_save_restart_restore_erase(start: Start, tmp_path: Path) -> None:
    http = start()
    assert http.get("/slots").json() == []
    text, n_cached = ask(http)
    assert n_cached == 0
    (slot,) = http.get("/slots").json()
    assert (slot["id"], slot["n_ctx"], slot["is_processing"]) == (0, 512, False)
    told = act(http, "save", filename="story.bin").json()
    assert (told["id_slot"], told["filename"]) == (0, "story.bin")
    assert told["n_saved"] == slot["n_tokens"] > 200
    assert told["n_written"] == (tmp_path / "saved" / "story.bin").stat().st_size
    assert told["timings"]["save_ms"] > 0

    http = start()  # another engine: nothing is in its memory
    (listed,) = http.get("/slots/saved").json()["data"]
    assert (listed["filename"], listed["n_tokens"]) == ("story.bin", slot["n_tokens"])
    told = act(http, "restore", filename="story.bin").json()
    assert (told["n_restored"], told["n_read"]) == (slot["n_tokens"], listed["n_bytes"])
    same_text, n_cached = ask(http)
    assert same_text == text
    assert n_cached > 200

    n_tokens = http.get("/slots").json()[0]["n_tokens"]
    assert act(http, "erase").json() == {"id_slot": 0, "n_erased": n_tokens}
    assert http.get("/slots").json() == []
    assert ask(http) == (text, 0)
    assert http.delete("/slots/saved/story.bin").json()["filename"] == "story.bin"
    assert http.get("/slots/saved").json() == {"data": []}
    assert list((tmp_path / "saved").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", 7, None])
def test_bad_names_are_refused_by_the_field(start: Start, name: Any, tmp_path: Path) -> None:
    http = start()
    ask(http)
    for action in ("save", "restore"):
        reply = act(http, action, filename=name)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "filename"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]


def test_what_is_not_there_is_told(start: Start) -> None:
    http = start()
    for reply, param in (
        (act(http, "save", filename="a"), "id_slot"),
        (act(http, "save", slot="x", filename="a"), "id_slot"),
        (act(http, "erase", slot="3"), "id_slot"),
        (act(http, "restore", filename="a"), "filename"),
        (act(http, "copy", filename="a"), "action"),
        (http.delete("/slots/saved/a"), "filename"),
    ):
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param


def test_without_a_folder_it_is_not_supported(start: Start) -> None:
    http = start(saved_folder="")
    ask(http)
    for reply in (act(http, "save", filename="a"), http.get("/slots/saved")):
        assert reply.status_code == 501
        assert "cache.saved_folder" in reply.json()["error"]["message"]
    assert len(http.get("/slots").json()) == 1
