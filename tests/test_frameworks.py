"""LangChain and LlamaIndex hold a conversation with a tool: a small model is forced to its calls,
a larger one, where it is there, calls by itself.

They want an older `openai` than the development packages have, and live in an environment of their
own, which `make test` sets up; what they do there is in framework_chats.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig
from tests.server.conftest import start

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv/frameworks/bin/python"
MODELS = {
    "forced": ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf",
    "by_itself": ROOT / "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Where a model is served, and how it comes to call a tool."""
    path = MODELS[request.param]
    if not path.exists():
        pytest.skip(f"needs {path.name}")
    config = EngineConfig(str(path), n_ctx=1024, disk_bytes=0)
    running, stop = start(lambda on_load: Engine(config, on_load))
    try:
        assert running.loaded.wait(120), "the engine does not load"
        yield f"{running.url}/v1", request.param
    finally:
        stop()


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_conversation_with_a_tool(served: tuple[str, str], framework: str) -> None:
    if not PYTHON.exists():
        assert not os.environ.get("CI"), f"{PYTHON} is missing: the set-up failed"
        pytest.skip("needs the frameworks of tests/frameworks.txt: `make test` installs them")
    script = Path(__file__).parent / "framework_chats.py"
    done = subprocess.run(
        [PYTHON, script, framework, *served], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
