"""Writes tiny random LoRA adapters for the models of tiny_gguf.py, by the `gguf` package alone.

What an adapter adds is about half as large as what it is added to: logits change by more than any
rounding, and stay as large as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFType, GGUFWriter

from tests.tiny_gguf import StableRandom, random_rows

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class TinyLora:
    """One adapter. alpha: None = the key is absent; scale: as a user gives it."""

    rank: int = 4
    alpha: float | None = 4.0
    scale: float = 1.0
    tensors: Sequence[str] = MATRICES  # those that the model has are adapted
    type: T = T.F32
    seed: int = 1

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> TinyLora:
        """An adapter whose type is given by name, as golden files do."""
        return cls(**{**options, "type": T[options.get("type", "F32")]})


def write_tiny_lora(path: Path, base: Path, lora: TinyLora | None = None, **options: Any) -> Path:
    """Write `lora`, or TinyLora(**options), for the model `base` to `path`; return `path`."""
    lora = lora or TinyLora(**options)
    reader = GGUFReader(base)
    rng = StableRandom(lora.seed)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    writer.add_type(GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    if lora.alpha is not None:
        writer.add_float32("adapter.lora.alpha", lora.alpha)

    def matrix(name: str, n_rows: int, n_in: int, std: float) -> None:
        data = random_rows(rng, n_rows, n_in, std, lora.type)
        writer.add_tensor(name, data, raw_dtype=lora.type)

    for tensor in reader.tensors:
        if tensor.name.split(".")[-2] not in lora.tensors or not tensor.name.endswith(".weight"):
            continue
        n_in, n_out = (int(n) for n in tensor.shape)
        if tensor.name == "token_embd.weight":
            matrix(f"{tensor.name}.lora_a", n_out, lora.rank, 1.0)
            matrix(f"{tensor.name}.lora_b", n_in, lora.rank, (n_in * lora.rank) ** -0.5)
        else:
            matrix(f"{tensor.name}.lora_a", lora.rank, n_in, n_in**-0.5)
            matrix(f"{tensor.name}.lora_b", n_out, lora.rank, 0.5 * lora.rank**-0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
