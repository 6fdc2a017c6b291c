"""Models with adapters against llama.cpp (tests/golden/adapters.json) and the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from engine.config import LoraFile
from engine.files.gguf_file import GGUFFile
from engine.model.lora import Adapters
from engine.model.low_rank import low_rank
from tests.golden_cases import ADAPTERS, IDS, GoldenCase, read_cases
from tests.reference import ReferenceModel
from tests.tiny_chat import chat_of, relative_rms, score
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_lora import MATRICES, write_tiny_lora

# As tests/engine/model/test_architectures.py has them, and why.
FROM_REFERENCE = {T.F32: 2e-3, T.Q4_0: 3e-3, T.Q4_K: 2.5e-2}
FROM_LLAMA_CPP = {T.F32: 2e-3}
MUCH = 0.2  # what an adapter changes, at least


@pytest.mark.parametrize("case", read_cases(ADAPTERS), ids=str)
def test_logits_agree_with_llama_cpp_and_the_reference(case: GoldenCase, tmp_path: Path) -> None:
    assert case.lora is not None and case.logits is not None
    path = case.write(tmp_path / "tiny.gguf")
    lora = LoraFile(case.lora_path(path), case.lora.scale)
    reference = ReferenceModel.from_gguf(path)
    bare = reference.logits(IDS)
    reference.add_lora(lora.path, lora.scale)
    expected = reference.logits(IDS)
    assert relative_rms(bare, expected) > MUCH
    with chat_of(path, lora=[lora]) as chat:
        for chunk in (len(IDS), 9, 1):  # many rows, more than a few, one
            found = score(chat, IDS, chunk)
            assert relative_rms(found, expected) < FROM_REFERENCE[case.model.type], chunk
            theirs = FROM_LLAMA_CPP.get(case.model.type, 5e-2)
            assert relative_rms(found, case.logits) < theirs, chunk


@pytest.mark.parametrize("kind", [T.F32, T.Q8_0], ids=lambda kind: kind.name)
def test_several_adapters_add_up(kind: T, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=kind)
    every = (*MATRICES, "token_embd")
    loras = [
        LoraFile(write_tiny_lora(tmp_path / "a.gguf", path, rank=3, tensors=every), 0.5),
        LoraFile(write_tiny_lora(tmp_path / "b.gguf", path, rank=20, alpha=10.0, seed=2), 1.5),
        LoraFile(write_tiny_lora(tmp_path / "c.gguf", path, tensors=("attn_v",), seed=3), -1.0),
    ]
    reference = ReferenceModel.from_gguf(path)
    for lora in loras:
        before = reference.logits(IDS)
        reference.add_lora(lora.path, lora.scale)
        assert relative_rms(before, reference.logits(IDS)) > MUCH / 2
    with chat_of(path, lora=loras, n_threads=3) as chat:
        for chunk in (len(IDS), 1):
            assert relative_rms(score(chat, IDS, chunk), reference.logits(IDS)) < 3e-3


def test_a_scale_of_0_changes_nothing(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    lora = write_tiny_lora(tmp_path / "lora.gguf", path)
    with chat_of(path) as chat:
        expected = score(chat, IDS, 8)
    with chat_of(path, lora=[LoraFile(lora, 0.0)]) as chat:
        np.testing.assert_array_equal(score(chat, IDS, 8), expected)


def test_a_row_is_the_same_beside_others(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=T.Q4_0)
    lora = LoraFile(write_tiny_lora(tmp_path / "lora.gguf", path, rank=7))
    with chat_of(path, lora=[lora]) as chat:
        alone = score(chat, IDS, 1)
        for chunk in (2, 5, 8):  # the ways of a few rows
            np.testing.assert_array_equal(score(chat, IDS, chunk), alone)
    with chat_of(path, lora=[lora], n_threads=3) as chat:
        np.testing.assert_array_equal(score(chat, IDS, 4), alone)


def test_ranks_are_side_by_side_scaled_and_filled_up(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    name = "blk.0.attn_k.weight"
    files = [
        LoraFile(write_tiny_lora(tmp_path / "a.gguf", path, rank=3, alpha=6.0), 0.5),
        LoraFile(write_tiny_lora(tmp_path / "b.gguf", path, rank=2, alpha=None, seed=2), 3.0),
    ]
    with GGUFFile(path) as model, Adapters(files, model) as adapters:
        found = low_rank(adapters.take(name))
        assert found is not None
        assert (found.a.shape, found.b.shape, found.rank) == ((16, 64), (32, 16), 16)
        first = 0
        for file, rank, scale in zip(files, (3, 2), (1.0, 3.0), strict=True):
            with GGUFFile(file.path) as gguf:
                a = gguf.bytes_of(f"{name}.lora_a").view(np.float32).reshape(rank, 64)
                b = gguf.bytes_of(f"{name}.lora_b").view(np.float32).reshape(32, rank)
                np.testing.assert_array_equal(found.a[first : first + rank], a)
                np.testing.assert_array_equal(found.b[:, first : first + rank], scale * b)
                del a, b
            first += rank
        assert not found.a[5:].any() and not found.b[:, 5:].any()
        assert low_rank(adapters.take("output_norm.weight")) is None
        part = found.rows(16, 16)
        assert part.a is found.a
        np.testing.assert_array_equal(part.b, found.b[16:32])
