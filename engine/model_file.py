"""ModelFile: a model's files and adapters, open and checked. What can be wrong with them, but for
single tokens, is found here, before Numba is imported, let alone a kernel compiled.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Final, Self

from engine.config import EngineConfig
from engine.errors import GGUFError
from engine.files.ggml_types import FILE_TYPES
from engine.files.gguf_file import GGUFFile
from engine.files.split_files import model_name
from engine.info import ModelInfo
from engine.memory.memory_report import mapped_resident_bytes
from engine.memory.residency import lock, resident_bytes
from engine.model.lora import Adapters
from engine.model.model_config import ModelConfig
from engine.model.weights_reader import read_weights
from engine.text.tokenizer import check_tokenizer


class ModelFile:
    """What EngineConfig names, open. A context manager.

    gguf, config, weights: the model's file, its numbers, its tensors.
    adapters_key: tells apart models whose adapters or their scales differ.

    Raises GGUFError for a file that is missing, damaged or does not fit, UnsupportedModel for an
    architecture, option, tensor type or tokenizer that is not there, ConfigError.
    """

    def __init__(self, settings: EngineConfig) -> None:
        with contextlib.ExitStack() as undo:
            self.gguf: Final = GGUFFile(settings.model_path)
            undo.callback(self.gguf.close)
            self.config: Final = ModelConfig.from_gguf(self.gguf)
            check_tokenizer(self.gguf, settings.tokenizer_pre)
            _check_vocabulary(self.gguf)
            with Adapters(settings.lora, self.gguf) as adapters:  # what they add is copied
                self.adapters_key: Final = adapters.key
                self.weights: Final = read_weights(self.gguf, self.config, adapters)
            undo.pop_all()

    def read_ahead(self) -> None:
        """Have the weights read in the order of the file, instead of a little per page fault."""
        threading.Thread(target=self.gguf.prefetch, name="rushlight-prefetch", daemon=True).start()

    def lock(self) -> None:
        """Keep the weights in memory for good. Raises ConfigError."""
        for part in self.gguf.parts:
            lock(*part.extent)

    def resident_bytes(self) -> int:
        """How much of the files is mapped into this process's memory now."""
        return sum(mapped_resident_bytes(part.path.resolve()) for part in self.gguf.parts)

    def cached_bytes(self) -> int | None:
        """How much of them is in the page cache; None where the system does not tell."""
        cached = [resident_bytes(*part.extent) for part in self.gguf.parts]
        return None if None in cached else sum(n or 0 for n in cached)

    def info(self, n_ctx: int, n_vocab: int) -> ModelInfo:
        """What is told of the model."""
        tensors = self.gguf.tensors.values()
        return ModelInfo(
            name=model_name(self.gguf.path),
            path=self.gguf.path,
            architecture=self.config.architecture,
            n_params=sum(tensor.n_weights for tensor in tensors),
            n_bytes=self.gguf.n_bytes,
            file_type=self._file_type(),
            n_ctx=n_ctx,
            n_ctx_train=self.config.n_ctx_train,
            n_vocab=n_vocab,
            n_embd=self.config.n_embd,
            n_layer=self.config.n_layer,
        )

    def close(self) -> None:
        """Unmap the files, once nothing of them is in use. Idempotent."""
        self.gguf.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _file_type(self) -> str:
        """The file's word, or what most weights are in."""
        number = self.gguf.get_int("general.file_type", -1)
        if number in FILE_TYPES:
            return FILE_TYPES[number]
        weights: Counter[str] = Counter()
        for tensor in self.gguf.tensors.values():
            weights[tensor.type_name] += tensor.n_weights
        return weights.most_common(1)[0][0]


def _check_vocabulary(gguf: GGUFFile) -> None:
    """Every token needs its row in the embedding; rows beyond the tokens are padding."""
    n_rows = gguf.tensor("token_embd.weight").n_rows
    n_tokens = len(gguf.get_strings("tokenizer.ggml.tokens"))
    if n_rows < n_tokens:
        raise GGUFError(gguf.path, f"tensor token_embd.weight: {n_rows} rows for {n_tokens} tokens")
