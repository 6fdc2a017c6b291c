"""Golden cases: tiny models as recipes, and llama.cpp's logits for them.

tests/golden/architectures/NAME.json holds, for the architecture NAME, and
tests/golden/tensor_types.json and adapters.json without facts:

    facts    what no GGUF says of it, for tests/reference.py
    cases    name -> model    options of tests/tiny_gguf.py's TinyModel
                     lora     options of tests/tiny_lora.py's TinyLora: an adapter for it
                     n_ctx    tokens of context, where that matters; 256
                     logits   written by tests/make_golden.py: f16[N_IDS, n_vocab] in base 64
                     crc32    of the weights that they belong to
                     peer     why llama.cpp's logits are not the right ones for this case
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from tests.tiny_gguf import TinyModel, write_tiny_gguf
from tests.tiny_lora import TinyLora, write_tiny_lora

GOLDEN = Path(__file__).resolve().parent / "golden"
FOLDER = GOLDEN / "architectures"
TENSOR_TYPES, ADAPTERS = GOLDEN / "tensor_types.json", GOLDEN / "adapters.json"
N_IDS = 24
IDS = [(7 * i * i + 13 * i + 5) % 270 for i in range(N_IDS)]


@dataclass(frozen=True)
class GoldenCase:
    """One tiny model, and what llama.cpp makes of IDS with it (None: nothing to compare with)."""

    architecture: str
    name: str
    model: TinyModel
    lora: TinyLora | None
    n_ctx: int
    crc32: int | None
    logits: npt.NDArray[np.float32] | None

    def write(self, path: Path) -> Path:
        """Write the model's file, and that of its adapter beside it.

        Raises ValueError when they are not those of the logits.
        """
        write_tiny_gguf(path, self.model)
        if self.lora is not None:
            write_tiny_lora(self.lora_path(path), path, self.lora)
        if self.crc32 is not None and self.weights_crc32(path) != self.crc32:
            raise ValueError(f"{self}: other weights than those of the golden logits")
        return path

    def lora_path(self, path: Path) -> Path:
        """Where the adapter of the model at `path` is."""
        return path.with_suffix(".lora.gguf")

    def weights_crc32(self, path: Path) -> int:
        """Of all tensors' bytes: metadata may be written otherwise by another version of `gguf`."""
        crc32 = 0
        for file in (path,) if self.lora is None else (path, self.lora_path(path)):
            for tensor in GGUFReader(file).tensors:
                crc32 = zlib.crc32(np.ascontiguousarray(tensor.data).tobytes(), crc32)
        return crc32

    def __str__(self) -> str:
        return f"{self.architecture}-{self.name}"


def read_cases(path: Path) -> list[GoldenCase]:
    """All cases of one file."""
    usual = {"architecture": path.stem} if path.parent == FOLDER else {}
    return [
        GoldenCase(
            architecture=path.stem,
            name=name,
            model=TinyModel.from_json({**usual, **case["model"]}),
            lora=TinyLora.from_json(case["lora"]) if "lora" in case else None,
            n_ctx=case.get("n_ctx", 256),
            crc32=case.get("crc32"),
            logits=unpack_logits(case["logits"]) if "logits" in case else None,
        )
        for name, case in json.loads(path.read_text())["cases"].items()
    ]


def facts(architecture: str) -> dict[str, Any]:
    """What no GGUF says of an architecture."""
    found: dict[str, Any] = json.loads((FOLDER / f"{architecture}.json").read_text())["facts"]
    return found


def pack_logits(logits: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(zlib.compress(logits.astype("<f2").tobytes(), 9)).decode()


def unpack_logits(text: str) -> npt.NDArray[np.float32]:
    flat = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f2")
    return flat.reshape(N_IDS, -1).astype(np.float32)
