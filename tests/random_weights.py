"""Random weights of every tensor type, and what the gguf package says that they stand for."""

from __future__ import annotations

import gguf
import numpy as np

from engine.quants.base import QuantType


def random_weights(quant: QuantType, rows: int, n_in: int, seed: int = 0) -> np.ndarray:
    """u8[rows, row_bytes]: all bit patterns, but scales that are sound numbers."""
    rng = np.random.default_rng(seed)
    if quant.block.names is None:
        floats = rng.standard_normal((rows, n_in)).astype(np.float32)
        if quant.name == "BF16":
            return (floats.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return floats.astype(quant.block).view(np.uint8)
    blocks = rng.integers(0, 256, (rows, quant.row_bytes(n_in)), dtype=np.uint8).view(quant.block)
    for field in quant.block.names:
        if quant.block[field] == np.dtype("<f2"):
            blocks[field] = rng.uniform(-0.01, 0.01, blocks.shape).astype(np.float16)
    if quant.name == "IQ1_M":  # a nibble of the scale in each word
        d = rng.uniform(-0.01, 0.01, blocks.shape).astype(np.float16).view(np.uint16)
        high = d[..., None] >> np.array([0, 4, 8, 12], np.uint16) << 12
        blocks["scales"] = blocks["scales"] & 0xFFF | high
    if quant.name == "MXFP4":  # powers of two
        blocks["e"] = rng.integers(118, 124, blocks.shape)
    return blocks.view(np.uint8)


def reference(quant: QuantType, weights: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(weights, gguf.GGMLQuantizationType(quant.ggml_type)).astype(
        np.float64
    )
