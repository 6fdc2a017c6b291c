"""Real models behind a real server, asked by the libraries that people use.

Tests run on SmolLM2, and on Qwen too, which is slow, where it is there; a file that wants one of
them only has a `model` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from engine import Engine, EngineConfig
from tests.model_files import QWEN, SMOLLM2, needs
from tests.server.conftest import Running, start


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SMOLLM2, marks=needs(SMOLLM2)),
        pytest.param(QWEN, marks=[needs(QWEN), pytest.mark.slow]),
    ],
    ids=["SmolLM2", "Qwen"],
)
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Running]:
    """A server over the model, which answers as it thinks best: temperature 0."""
    config = EngineConfig(model, n_ctx=1024, disk_bytes=0)
    running, stop = start(lambda on_load: Engine(config, on_load), sampling={"temperature": 0})
    try:
        assert running.loaded.wait(120), "the engine does not load"
        yield running
    finally:
        stop()


@pytest.fixture(scope="module")
def url(running: Running) -> str:
    return running.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's library; files about others have a `client` of their own."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def is_qwen(model: Path) -> bool:
    """Whether it calls tools by itself."""
    return model == QWEN
