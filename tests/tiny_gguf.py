"""Writes tiny random GGUF models, a few hundred kilobytes each, for tests.

Weights are random but sized like a trained model's, so that activations stay near 1 and logits
differ by a few units. The same TinyModel always gives the same bytes. Written by the `gguf` package
alone: nothing here comes from the engine, which is what these files test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, RopeScalingType, TokenType, quants
from gguf.constants import GGML_QUANT_SIZES

# The vocabulary: three specials, byte b as token FIRST_BYTE + b, a token per merge, then fillers.
ENDOFTEXT, IM_START, IM_END = 0, 1, 2
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE = len(SPECIALS)
MERGES = (
    "t h", "h e", "i n", "e r", "a n", "r e", "o n", "Ġ t", "Ġt he", "Ġ a",
    "an d", "Ġa nd", "in g", "Ġ w", "l l", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ",
)  # fmt: skip
MIN_VOCAB = FIRST_BYTE + 256 + len(MERGES)

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Types that gguf.quants cannot quantise to get random blocks instead: byte offset of each f16
# field, and how large it is beside the first, chosen to give weights a mean near 0.
RANDOM_BLOCKS: Mapping[T, tuple[tuple[int, float], ...]] = {
    T.Q2_K: ((80, 1.0), (82, 1.5)),
    T.Q3_K: ((108, 1.0),),
    T.Q4_K: ((0, 1.0), (2, 7.5)),
    T.Q5_K: ((0, 1.0), (2, 15.5)),
    T.Q6_K: ((208, 1.0),),
    T.IQ4_NL: ((0, 1.0),),
    T.IQ4_XS: ((0, 1.0),),
    T.IQ3_S: ((0, 1.0),),
    T.IQ3_XXS: ((0, 1.0),),
    T.IQ2_S: ((0, 1.0),),
    T.IQ2_XS: ((0, 1.0),),
    T.IQ2_XXS: ((0, 1.0),),
    T.IQ1_S: ((0, 1.0),),
    T.IQ1_M: (),  # its scale lies in four nibbles
}


@dataclass(frozen=True)
class TinyModel:
    """Shape and contents of one model. Rows must divide into the blocks of their tensor's type."""

    architecture: str = "llama"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int | None = 2  # None: the key is absent, which means n_head
    head_dim: int | None = None  # None: keys absent, n_embd / n_head
    n_rot: int | None = None  # None: key absent, head_dim
    n_ff: int = 96
    n_vocab: int = MIN_VOCAB
    n_padding: int = 0  # rows of the embedding beyond the vocabulary; negative: rows that it lacks
    n_ctx: int = 256
    type: T = T.F32  # of every matrix ...
    types: Mapping[str, T] = field(default_factory=dict)  # ... except these: {"attn_q": T.Q4_K}
    tied: bool = True  # no output.weight: the embedding serves
    rope_freq_base: float | None = 10000.0
    rope_freqs: bool = False  # Llama 3.1's rope_freqs.weight
    rope_scale: float | None = None  # linear scaling: positions are divided by this
    rms_eps: float = 1e-5
    alignment: int | None = None  # None: key absent, 32
    tokenizer_pre: str = "default"
    add_bos: bool = False
    chat_template: str | None = CHATML_TEMPLATE
    seed: int = 0
    qkv_bias: bool = False  # Qwen2's
    gemma: bool = False  # norms of q and k heads and of what a block adds
    window: int | None = None  # sliding_window

    @property
    def kv_heads(self) -> int:
        return self.n_head if self.n_head_kv is None else self.n_head_kv

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def rotated(self) -> int:
        return self.head_size if self.n_rot is None else self.n_rot


def write_tiny_gguf(path: Path, model: TinyModel | None = None, **options: Any) -> Path:
    """Write `model`, or TinyModel(**options), to `path`; return `path`."""
    model = model or TinyModel(**options)
    writer = GGUFWriter(path, model.architecture)
    _add_metadata(writer, model)
    _add_tokenizer(writer, model)
    _add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_rows(
    rng: np.random.Generator, n_rows: int, n_in: int, std: float, ggml_type: T
) -> npt.NDArray[Any]:
    """A random matrix as stored: f32[n_rows, n_in], f16[n_rows, n_in] or u8[n_rows, n_bytes]."""
    if ggml_type not in RANDOM_BLOCKS:
        weights = (std * rng.standard_normal((n_rows, n_in))).astype(np.float32)
        stored: npt.NDArray[Any] = quants.quantize(weights, ggml_type)
        return stored
    block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    if n_in % block_size:
        raise ValueError(
            f"rows of {n_in} do not divide into {ggml_type.name} blocks of {block_size}"
        )
    blocks = rng.integers(0, 256, (n_rows * (n_in // block_size), block_bytes), dtype=np.uint8)
    spread = rng.uniform(0.5, 1.5, (len(blocks), 1))

    def set_scales(scale: float) -> None:
        for offset, ratio in RANDOM_BLOCKS[ggml_type]:
            f16 = (scale * ratio * spread).astype(np.float16)
            blocks[:, offset : offset + 2] = f16.view(np.uint8)
        if ggml_type == T.IQ1_M:
            bits = (scale * spread).astype(np.float16).view(np.uint16)
            words = blocks[:, 48:].view(np.uint16)
            words[:] = words & 0xFFF | bits >> np.array([0, 4, 8, 12], np.uint16) << 12

    set_scales(0.01)
    set_scales(0.01 * std / float(quants.dequantize(blocks, ggml_type).std()))
    return blocks.reshape(n_rows, -1)


def _add_metadata(writer: GGUFWriter, model: TinyModel) -> None:
    if model.alignment is not None:
        writer.add_custom_alignment(model.alignment)
    writer.add_name("tiny")
    writer.add_block_count(model.n_layer)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_feed_forward_length(model.n_ff)
    writer.add_head_count(model.n_head)
    writer.add_layer_norm_rms_eps(model.rms_eps)
    writer.add_vocab_size(model.n_vocab)
    if model.n_head_kv is not None:
        writer.add_head_count_kv(model.n_head_kv)
    if model.head_dim is not None:
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
    if model.n_rot is not None:
        writer.add_rope_dimension_count(model.n_rot)
    if model.rope_freq_base is not None:
        writer.add_rope_freq_base(model.rope_freq_base)
    if model.window is not None:
        writer.add_sliding_window(model.window)
    if model.rope_scale is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.rope_scale)


def _add_tokenizer(writer: GGUFWriter, model: TinyModel) -> None:
    if model.n_vocab < MIN_VOCAB:
        raise ValueError(f"n_vocab must be at least {MIN_VOCAB}")
    n_filler = model.n_vocab - MIN_VOCAB
    merged = [merge.replace(" ", "") for merge in MERGES]
    normal = [*_byte_alphabet(), *merged, *(f"filler{i}" for i in range(n_filler))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(model.tokenizer_pre)
    writer.add_token_list([*SPECIALS, *normal])
    writer.add_token_types([TokenType.CONTROL] * len(SPECIALS) + [TokenType.NORMAL] * len(normal))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(ENDOFTEXT)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(model.add_bos)
    if model.chat_template is not None:
        writer.add_chat_template(model.chat_template)


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _add_tensors(writer: GGUFWriter, model: TinyModel) -> None:
    rng = np.random.default_rng(model.seed)

    def matrix(name: str, n_rows: int, n_in: int, std: float) -> None:
        ggml_type = model.types.get(name.split(".")[-1], model.type)
        data = random_rows(rng, n_rows, n_in, std, ggml_type)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=ggml_type)

    def vector(name: str, values: npt.NDArray[np.float64]) -> None:
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(name: str, n: int = model.n_embd) -> None:
        vector(name, rng.uniform(0.5, 1.5, n))

    def bias(name: str, n: int) -> None:
        writer.add_tensor(f"{name}.bias", (0.3 * rng.standard_normal(n)).astype(np.float32))

    n_embd, n_ff = model.n_embd, model.n_ff
    n_q, n_kv = model.n_head * model.head_size, model.kv_heads * model.head_size
    n_rows = model.n_vocab + model.n_padding
    matrix("token_embd", n_rows, n_embd, 2 * n_embd**-0.5)
    for i in range(model.n_layer):
        layer = f"blk.{i}."
        norm(layer + "attn_norm")
        matrix(layer + "attn_q", n_q, n_embd, 1.5 * n_embd**-0.5)
        matrix(layer + "attn_k", n_kv, n_embd, 1.5 * n_embd**-0.5)
        matrix(layer + "attn_v", n_kv, n_embd, n_embd**-0.5)
        matrix(layer + "attn_output", n_embd, n_q, n_q**-0.5)
        norm(layer + "ffn_norm")
        matrix(layer + "ffn_gate", n_ff, n_embd, n_embd**-0.5)
        matrix(layer + "ffn_up", n_ff, n_embd, n_embd**-0.5)
        matrix(layer + "ffn_down", n_embd, n_ff, 2 * n_ff**-0.5)
        if model.qkv_bias:
            for name, n in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
                bias(layer + name, n)
        if model.gemma:
            norm(layer + "attn_q_norm", model.head_size)
            norm(layer + "attn_k_norm", model.head_size)
            norm(layer + "post_attention_norm")
            norm(layer + "post_ffw_norm")
    norm("output_norm")
    if not model.tied:
        matrix("output", n_rows, n_embd, 2 * n_embd**-0.5)
    if model.rope_freqs:
        vector("rope_freqs", np.geomspace(1.0, 8.0, model.rotated // 2))
