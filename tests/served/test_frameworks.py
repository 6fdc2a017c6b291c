"""LangChain and LlamaIndex hold a conversation with a tool: a small model is forced to its calls,
a larger one, where it is there, calls by itself.

They want an older `openai` than the development packages have, and live in an environment of their
own, which `make test` sets up; what they do there is in framework_chats.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/frameworks/bin/python"
pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_a_conversation_with_a_tool(url: str, is_qwen: bool, framework: str) -> None:
    if not PYTHON.exists():
        assert not os.environ.get("CI"), f"{PYTHON} is missing: the set-up failed"
        pytest.skip("needs LangChain and LlamaIndex: `make test` installs them")
    script = Path(__file__).parent / "framework_chats.py"
    done = subprocess.run(
        [PYTHON, script, framework, f"{url}/v1", "by_itself" if is_qwen else "forced"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
