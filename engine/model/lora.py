"""LoRA adapters: files that say what is added to a model's matrices, W + scale B A.

    general.type "adapter", adapter.type "lora", adapter.lora.alpha, the model's architecture
    NAME.lora_a [rank, n_in] and NAME.lora_b [n_out, rank] for each adapted tensor NAME

Opens the files and checks that they fit the model. Does not read a weight: that is low_rank.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from engine.config import LoraFile
from engine.errors import GGUFError, UnsupportedModel
from engine.files.fingerprint import fingerprint
from engine.files.gguf_file import GGUFFile
from engine.files.gguf_header import TensorInfo
from engine.quants import check_type

log = logging.getLogger("rushlight.engine")

A, B = ".lora_a", ".lora_b"
EMBEDDING: Final = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Pair:
    """What one adapter adds to one tensor: scale * B A.

    a: [rank, n_in]; of the embedding [n_vocab, rank]: its rows are looked up, as the tensor's are;
    b: [n_out, rank]; of the embedding [n_embd, rank].
    """

    gguf: GGUFFile
    a: TensorInfo
    b: TensorInfo
    rank: int
    scale: float


class Adapters:
    """All adapters of a model, open. A context manager.

    key: tells apart models whose adapters or scales differ; () without adapters.

    Raises GGUFError for a damaged file, or one that does not fit the model; UnsupportedModel for
    what is no LoRA adapter, and for tensors that cannot be adapted.
    """

    def __init__(self, files: Sequence[LoraFile], model: GGUFFile) -> None:
        self._open: list[GGUFFile] = []
        self._pairs: dict[str, list[Pair]] = {}
        self._untaken: set[str] = set()
        self.key: tuple[object, ...] = ()
        try:
            for file in files:
                self._add(file, model)
        except BaseException:
            self.close()
            raise

    def take(self, name: str) -> Sequence[Pair]:
        """What is added to a tensor, adapter by adapter; marks it as applied."""
        self._untaken.discard(name)
        return self._pairs.get(name, ())

    def check_all_taken(self) -> None:
        """Raises UnsupportedModel when some tensor that is to be adapted was not asked for."""
        for name in sorted(self._untaken):
            path = self._pairs[name][0].gguf.path
            raise UnsupportedModel(f"adapter tensor in {path}", name + A, hint=_WHAT_CAN_BE)

    def close(self) -> None:
        """Unmap the files. Idempotent."""
        for gguf in self._open:
            gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, file: LoraFile, model: GGUFFile) -> None:
        gguf = GGUFFile(file.path)
        self._open.append(gguf)
        _check_kind(gguf, model)
        for tensor in gguf.tensors.values():
            check_type(tensor.ggml_type, tensor.name)
        alpha = gguf.get_float("adapter.lora.alpha", 0.0)
        names = _adapted(gguf)
        for name in names:
            a, b = gguf.tensor(name + A), gguf.tensor(name + B)
            rank = _checked_rank(gguf.path, name, a, b, model)
            # Without an alpha B is scaled already.
            scale = file.scale * alpha / rank if alpha else file.scale
            self._pairs.setdefault(name, []).append(Pair(gguf, a, b, rank, scale))
            self._untaken.add(name)
        self.key += ((fingerprint(gguf), file.scale),)
        log.info("lora %s: added to %d tensors, scale %g", file.path, len(names), file.scale)


_WHAT_CAN_BE: Final = "adapters can be added to matrices and the embedding, not to experts or norms"


def _check_kind(gguf: GGUFFile, model: GGUFFile) -> None:
    if (found := gguf.get_str("general.type", "model")) != "adapter":
        raise UnsupportedModel("adapter", f"{gguf.path}: its general.type is {found!r}")
    if (found := gguf.get_str("adapter.type")) != "lora":
        raise UnsupportedModel("adapter type", found, ("lora",))
    if "adapter.alora.invocation_tokens" in gguf.metadata:
        raise UnsupportedModel("adapter option", f"adapter.alora.invocation_tokens in {gguf.path}")
    ours, theirs = gguf.get_str("general.architecture"), model.get_str("general.architecture")
    if ours != theirs:
        raise GGUFError(gguf.path, f"an adapter for {ours!r}; {model.path} is {theirs!r}")


def _adapted(gguf: GGUFFile) -> list[str]:
    """The tensors that an adapter has pairs for."""
    for name in gguf.tensors:
        if not name.endswith((A, B)):
            raise UnsupportedModel(f"adapter tensor in {gguf.path}", name, hint=_WHAT_CAN_BE)
    names = list(dict.fromkeys(name[: -len(A)] for name in gguf.tensors))
    if not names:
        raise GGUFError(gguf.path, "an adapter without tensors")
    return names


def _checked_rank(path: Path, name: str, a: TensorInfo, b: TensorInfo, model: GGUFFile) -> int:
    """The rank of a pair that fits the model's tensor."""
    if name not in model.tensors:
        raise GGUFError(path, f"the model has no tensor {name!r}; the adapter is for another one")
    shape = model.tensor(name).shape
    if len(shape) != 2:
        raise UnsupportedModel(f"adapter tensor in {path}", name + A, hint=_WHAT_CAN_BE)
    n_in, n_out = shape
    rank = b.n_in
    is_embedding = name == EMBEDDING
    expected = ((rank, n_out), (rank, n_in)) if is_embedding else ((n_in, rank), (rank, n_out))
    if ((a.n_in, a.n_rows), (b.n_in, b.n_rows)) != expected:
        raise GGUFError(
            path,
            f"tensors {name}{A} and {B}: shapes {a.shape} and {b.shape}, where {expected[0]} and "
            f"{expected[1]} fit the model's {shape}; the adapter is for another one",
        )
    return rank
