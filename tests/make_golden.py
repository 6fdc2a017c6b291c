"""Writes llama.cpp's logits into golden files of tiny models, whose recipes are written by hand.

    pip install llama-cpp-python
    python -m tests.make_golden [NAME ...]     # of architectures, tensor_types, adapters; all

llama.cpp is asked for all it can: weights as they are in the file, keys and values in f32, one
thread, so that what differs from it is ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from tests.golden_cases import (
    ADAPTERS,
    FOLDER,
    IDS,
    N_IDS,
    TENSOR_TYPES,
    GoldenCase,
    pack_logits,
    read_cases,
)

F32 = 0  # GGML_TYPE_F32


def logits_of(case: GoldenCase, path: Path) -> npt.NDArray[np.float32]:
    """f32[N_IDS, n_vocab] after each of IDS, of the case's model at `path`."""
    model = llama_cpp.Llama(
        str(path),
        n_ctx=case.n_ctx,
        lora_path=None if case.lora is None else str(case.lora_path(path)),
        lora_scale=1.0 if case.lora is None else case.lora.scale,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        type_k=F32,
        type_v=F32,
        flash_attn=False,
        yarn_attn_factor=-1.0,  # as the file says
        yarn_beta_fast=-1.0,
        yarn_beta_slow=-1.0,
        verbose=False,
    )
    model.eval(IDS)
    logits = np.array(model.scores[:N_IDS], np.float32)
    model.close()
    return logits


def main(names: list[str]) -> None:
    for path in (*sorted(FOLDER.glob("*.json")), TENSOR_TYPES, ADAPTERS):
        if names and path.stem not in names:
            continue
        golden = json.loads(path.read_text())
        for case in read_cases(path):
            record = golden["cases"][case.name]
            if "peer" in record:
                continue
            for old in ("crc32", "logits"):
                record.pop(old, None)
            with tempfile.TemporaryDirectory() as folder:
                file = case.write(Path(folder) / "tiny.gguf")
                logits = logits_of(case, file)
                record["crc32"] = case.weights_crc32(file)
            record["logits"] = pack_logits(logits)
            print(f"{case}: spread {logits.std():.2f}")
        path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
