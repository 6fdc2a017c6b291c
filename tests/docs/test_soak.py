"""A short soak of a tiny model, and how replies are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soak

from tests.tiny_gguf import write_tiny_gguf


def _reply(*tokens: str, **second: float) -> soak.Reply:
    """Each token had logprob -0.5; second: what came next to it, at the first place."""
    tops = [{token: -0.5} for token in tokens]
    tops[0] |= second
    return soak.Reply(list(tokens), tops, 0)


def test_only_equal_and_equally_likely_words_are_right() -> None:
    assert soak.compare(_reply("a", "b"), _reply("a", "b")) == "same"
    assert soak.compare(_reply("a", "b"), _reply("c", "d", a=-0.55)) == "tied"
    assert soak.compare(_reply("a", "b"), _reply("c", "d", a=-0.9)) == "wrong"
    assert soak.compare(_reply("a", "b"), _reply("c", "d")) == "wrong"
    assert soak.compare(_reply("a"), _reply("a", "b")) == "wrong"


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", n_ctx=2048)
    arguments = ["--minutes", "0.08", "--words", "150", "--n-ctx", "2048", "--max-memory", "400MiB"]
    sizes = ["--cache", "2MiB", "--disk", "3MiB", "--n-threads", "1"]
    status = soak.main([str(model), *arguments, *sizes])
    record = json.loads(capsys.readouterr().out)
    assert (status, record["failures"]) == (0, [])
    assert record["checked"] == 6
    assert record["replies"] > 10
    assert 0 < record["most_anonymous"] < 400
    assert 0 < record["cached_share"] < 1
