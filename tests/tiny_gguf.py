"""Writes tiny random GGUF models, a few hundred kilobytes each, for tests.

Weights are random but sized like a trained model's, so that activations stay near 1 and logits
differ by a few units. The same TinyModel always gives the same weights, whatever the version of
NumPy: golden data (tests/golden/architectures) depend on it. Written by the `gguf` package alone:
nothing here comes from the engine, which is what these files test.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType, GGUFWriter, RopeScalingType, TokenType, quants
from gguf.constants import GGML_QUANT_SIZES

# The vocabulary: three specials, byte b as token FIRST_BYTE + b, a token per merge, then fillers.
ENDOFTEXT, IM_START, IM_END = 0, 1, 2
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE = len(SPECIALS)
MERGES = (
    "t h", "h e", "i n", "e r", "a n", "r e", "o n", "Ġ t", "Ġt he", "Ġ a",
    "an d", "Ġa nd", "in g", "Ġ w", "l l", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ",
)  # fmt: skip
INFILL_ROLES = ("fim_pre", "fim_suf", "fim_mid", "fim_rep", "fim_sep")
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
    infill: bool = False  # the last merges' tokens are those for filling in the middle
    chat_template: str | None = CHATML_TEMPLATE
    seed: int = 0
    file_type: int | None = None  # None: key absent
    split: int = 0  # tensors in each part of a split model; 0 = all in one file
    window: int | None = None  # sliding_window
    keys: Mapping[str, Any] = field(default_factory=dict)  # more metadata: {"logit_scale": 0.5}
    layer_norm: bool = False  # norms that subtract the mean have another key for their epsilon
    biases: Sequence[str] = ()  # tensors that have a bias too: "attn_q", "ffn_norm", "output"
    fused: Sequence[str] = ()  # "attn_qkv": one tensor for q, k, v; "ffn_up": gate above up
    without: Sequence[str] = ()  # tensors left out: "attn_norm", "ffn_norm", "ffn_gate"
    post_norms: bool = False  # norms of what a block adds
    head_norms: str | None = None  # of q and k: one for all "head"s, one for "each" head, the "row"
    long_rope: bool = False  # rope_factors_long and rope_factors_short
    n_expert: int = 0  # a mixture of experts, of which ...
    n_expert_used: int = 2  # ... each token takes so many ...
    n_ff_expert: int | None = None  # ... that are so wide; None: key absent, n_ff
    n_ff_shared: int = 0  # width of a shared expert, beside ffn_gate_inp_shexp; 0: none
    sinks: bool = False  # attn_sinks
    ffn_norm: str = "ffn_norm"  # another name of this tensor

    @classmethod
    def from_json(cls, options: Mapping[str, Any]) -> TinyModel:
        """A model whose types are given by name, as golden files do."""
        types = {name: T[kind] for name, kind in options.get("types", {}).items()}
        return cls(**{**options, "type": T[options.get("type", "F32")], "types": types})

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
    """Write `model`, or TinyModel(**options), to `path`; return it, or the first part."""
    model = model or TinyModel(**options)
    writer = GGUFWriter(path, model.architecture, split_max_tensors=model.split)
    _add_metadata(writer, model)
    _add_tokenizer(writer, model)
    _add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer.format_shard_names(path)[0]


class StableRandom:
    """Random numbers that no version of NumPy changes: only the raw bits are NumPy's."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def _u16(self, n: int) -> npt.NDArray[np.uint16]:
        return self._bits.random_raw((n + 3) // 4).astype("<u8").view("<u2")[:n]

    def standard_normal(self, shape: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Nearly normal: sums of four uniform numbers, with their variance made 1."""
        n = int(np.prod(shape))
        sums = self._u16(4 * n).reshape(n, 4).sum(axis=1, dtype=np.float64) - 2 * 65535
        return (sums / np.sqrt((65536.0**2 - 1) / 3)).reshape(shape)

    def uniform(
        self, low: float, high: float, shape: int | tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        n = int(np.prod(shape))
        return (low + (high - low) * (self._u16(n) / 65536.0)).reshape(shape)

    def bytes(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        n = int(np.prod(shape))
        return self._u16((n + 1) // 2).view(np.uint8)[:n].reshape(shape).copy()


def random_rows(
    rng: StableRandom, n_rows: int, n_in: int, std: float, ggml_type: T
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
    blocks = rng.bytes((n_rows * (n_in // block_size), block_bytes))
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
    if model.file_type is not None:
        writer.add_file_type(model.file_type)
    writer.add_block_count(model.n_layer)
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_feed_forward_length(model.n_ff)
    writer.add_head_count(model.n_head)
    if model.layer_norm:
        writer.add_layer_norm_eps(model.rms_eps)
    else:
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
    if model.n_expert:
        writer.add_expert_count(model.n_expert)
        writer.add_expert_used_count(model.n_expert_used)
    if model.n_ff_expert is not None:
        writer.add_expert_feed_forward_length(model.n_ff_expert)
    if model.n_ff_shared:
        writer.add_expert_shared_feed_forward_length(model.n_ff_shared)
    if model.rope_scale is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.rope_scale)
    for key, value in model.keys.items():
        kind = GGUFValueType.get_type(value)
        kind = GGUFValueType.UINT32 if kind == GGUFValueType.INT32 else kind
        writer.add_key_value(f"{model.architecture}.{key}", value, kind)


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
    for i, role in enumerate(INFILL_ROLES if model.infill else (), 1):
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", MIN_VOCAB - i)
    if model.chat_template is not None:
        writer.add_chat_template(model.chat_template)


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _add_tensors(writer: GGUFWriter, model: TinyModel) -> None:
    rng = StableRandom(model.seed)
    n_embd, n_ff, head_dim = model.n_embd, model.n_ff, model.head_size
    n_q, n_kv = model.n_head * head_dim, model.kv_heads * head_dim
    n_rows = model.n_vocab + model.n_padding

    def bias(name: str, n: int) -> None:
        if name.split(".")[-1] in model.biases:
            writer.add_tensor(f"{name}.bias", (0.3 * rng.standard_normal(n)).astype(np.float32))

    def matrix(name: str, n_rows: int, n_in: int, std: float) -> None:
        stem = name.split(".")[-1]
        if stem in model.without:
            return
        ggml_type = model.types.get(stem, model.type)
        data = random_rows(rng, n_rows, n_in, std, ggml_type)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=ggml_type)
        bias(name, n_rows)

    def experts(name: str, n_rows: int, n_in: int, std: float) -> None:
        stem, n = name.split(".")[-1], model.n_expert
        ggml_type = model.types.get(stem, model.type)
        data = random_rows(rng, n * n_rows, n_in, std, ggml_type)
        writer.add_tensor(f"{name}.weight", data.reshape(n, n_rows, -1), raw_dtype=ggml_type)
        if stem in model.biases:
            biases = (0.3 * rng.standard_normal((n, n_rows))).astype(np.float32)
            writer.add_tensor(f"{name}.bias", biases)

    def mixture(layer: str) -> None:
        n_expert_ff = model.n_ff_expert or n_ff
        matrix(layer + "ffn_gate_inp", model.n_expert, n_embd, 2 * n_embd**-0.5)
        experts(layer + "ffn_gate_exps", n_expert_ff, n_embd, n_embd**-0.5)
        experts(layer + "ffn_up_exps", n_expert_ff, n_embd, n_embd**-0.5)
        experts(layer + "ffn_down_exps", n_embd, n_expert_ff, 4 * n_expert_ff**-0.5)
        if model.n_ff_shared:
            vector(layer + "ffn_gate_inp_shexp", n_embd**-0.5 * rng.standard_normal(n_embd))
            matrix(layer + "ffn_gate_shexp", model.n_ff_shared, n_embd, n_embd**-0.5)
            matrix(layer + "ffn_up_shexp", model.n_ff_shared, n_embd, n_embd**-0.5)
            matrix(layer + "ffn_down_shexp", n_embd, model.n_ff_shared, model.n_ff_shared**-0.5)

    def feed_forward(layer: str) -> None:
        if "ffn_up" in model.fused:
            matrix(layer + "ffn_up", 2 * n_ff, n_embd, n_embd**-0.5)
        else:
            matrix(layer + "ffn_gate", n_ff, n_embd, n_embd**-0.5)
            matrix(layer + "ffn_up", n_ff, n_embd, n_embd**-0.5)
        matrix(layer + "ffn_down", n_embd, n_ff, 2 * n_ff**-0.5)

    def vector(name: str, values: npt.NDArray[np.float64]) -> None:
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    def norm(name: str, *shape: int) -> None:
        if name.split(".")[-1] in model.without:
            return
        vector(name, rng.uniform(0.5, 1.5, shape or (n_embd,)))
        bias(name, n_embd)

    def head_norm(name: str, n_head: int) -> None:
        if model.head_norms == "head":
            norm(name, head_dim)
        elif model.head_norms == "each":
            norm(name, n_head, head_dim)
        elif model.head_norms == "row":
            norm(name, n_head * head_dim)

    matrix("token_embd", n_rows, n_embd, 2 * n_embd**-0.5)
    for i in range(model.n_layer):
        layer = f"blk.{i}."
        norm(layer + "attn_norm")
        if "attn_qkv" in model.fused:
            matrix(layer + "attn_qkv", n_q + 2 * n_kv, n_embd, 1.5 * n_embd**-0.5)
        else:
            matrix(layer + "attn_q", n_q, n_embd, 1.5 * n_embd**-0.5)
            matrix(layer + "attn_k", n_kv, n_embd, 1.5 * n_embd**-0.5)
            matrix(layer + "attn_v", n_kv, n_embd, n_embd**-0.5)
        head_norm(layer + "attn_q_norm", model.n_head)
        head_norm(layer + "attn_k_norm", model.kv_heads)
        matrix(layer + "attn_output", n_embd, n_q, n_q**-0.5)
        if model.sinks:
            vector(layer + "attn_sinks", rng.uniform(-2, 4, model.n_head))
        norm(layer + model.ffn_norm)
        if model.n_expert:
            mixture(layer)
        else:
            feed_forward(layer)
        if model.post_norms:
            norm(layer + "post_attention_norm")
            norm(layer + "post_ffw_norm")
    norm("output_norm")
    if not model.tied:
        matrix("output", n_rows, n_embd, 2 * n_embd**-0.5)
    # 1 to 8, by sums and products alone: every library gives the same.
    factors = 1 + 7 * (np.arange(model.rotated // 2) / (model.rotated // 2 - 1)) ** 2
    if model.rope_freqs:
        vector("rope_freqs", factors)
    if model.long_rope:
        vector("rope_factors_long", factors)
        vector("rope_factors_short", 1 + (factors - 1) / 32)
