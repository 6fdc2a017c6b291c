"""Steps so small that tests see what happens between them."""

from __future__ import annotations

import pytest

from engine.cache import chat_loader
from tests.paper_model import PAGE_BYTES


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded comes two pages at a time."""
    monkeypatch.setattr(chat_loader, "_STEP_BYTES", 2 * PAGE_BYTES)
