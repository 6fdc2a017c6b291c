"""The report of a measured model: complete, and its ceiling is what the file's bytes say."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from engine import Engine
from engine.bench import model
from engine.bench.model import Work, WrongAnswer, run


def test_a_report_holds_all_that_was_asked_for(model_path: Path) -> None:
    work = Work(n_prompt=20, n_decode=4, reps=2, depths=(64, 0), batches=(3,))
    report = run(model_path, 2, work, answer_check=False)
    assert (report["threads"], report["prompt"], report["decode"]) == (2, 20, 4)
    for name in ("prefill_tok_per_s", "decode_tok_per_s", "decode_gb_per_s", "bandwidth_gb_per_s"):
        assert report[name] > 0
    assert [row["depth"] for row in report["depths"]] == [0, 64]
    assert report["depths"][0]["speed_of_first"] == 1
    assert report["depths"][1]["ceiling_ms"] >= report["depths"][0]["ceiling_ms"]
    assert [row["batch"] for row in report["batches"]] == [1, 3]
    three = report["batches"][1]
    assert three["tok_per_s"] == pytest.approx(3 * three["tok_per_s_of_each"], rel=0.01)
    assert three["step_ms"] == pytest.approx(1e3 / three["tok_per_s_of_each"], rel=0.01)
    assert "llama_cpp" not in report


def test_a_model_that_answers_wrong_is_not_measured(model_path: Path) -> None:
    with pytest.raises(WrongAnswer, match=r"should say Paris; it said: "):
        run(model_path, 1, Work(n_prompt=4, n_decode=1, reps=1))


def test_a_step_reads_every_matrix_and_each_chats_cache(engine: Engine, model_path: Path) -> None:
    ceiling = model._Ceiling(engine)
    tensors = gguf.GGUFReader(model_path).tensors
    # The tied embedding counts once, as the output; vectors stay in the cache.
    matrices = sum(int(t.n_bytes) for t in tensors if len(t.shape) > 1)
    assert ceiling.step_bytes(0) == matrices
    token = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, dimensions, bytes of f16
    assert ceiling.step_bytes(10) == matrices + 10 * token
    assert ceiling.step_bytes(10, n_chats=3) == matrices + 30 * token
    assert ceiling.step_ms(10) == pytest.approx(
        ceiling.step_bytes(10) / ceiling.gb_per_s / 1e6, abs=1e-3
    )
