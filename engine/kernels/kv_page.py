"""Where the keys and values of a token lie inside a KV page, and as what kind of number.

A page holds PAGE tokens of a group of layers (layer_groups.py). A layer's part, n_kv heads of
head_dim:

    K  [n_kv][head_dim][PAGE]    dimension by dimension: one vector is the same dimension of
                                 neighbouring tokens, so that scores need no sums across lanes
    V  [n_kv][PAGE][head_dim]    token by token

and for q8_0, whose numbers are i8 times a scale that a head of a token has:

    K scales, V scales  f16[n_kv][PAGE]     they cost nothing: scores and weights can be multiplied
                                            with them instead

Some dimensions of keys are many times larger than others, and one scale would leave few bits to the
rest. So keys of q8_0 are kept rotated (rope.py), which spreads each dimension over all of them, and
queries are rotated alike: scores stay the same.

Kernels are compiled for one type each: a `kv_type` argument is a constant in them.
"""

from __future__ import annotations

from engine.jit import anywhere, inline
from engine.kernels.simd import load_tile, load_tile_f16, load_tile_i8

PAGE = 64  # tokens

F16, F32, Q8_0 = 0, 1, 2
KV_TYPES = {"f16": F16, "f32": F32, "q8_0": Q8_0}
LAYOUT = 2  # to be raised when pages change: those on a disk are then another layout's


@anywhere
def number_bytes(kv_type):
    """Bytes of one number."""
    return 4 if kv_type == F32 else 1 if kv_type == Q8_0 else 2


def n_pages(n_tokens: int) -> int:
    """Pages that hold n tokens. For Python."""
    return (n_tokens + PAGE - 1) // PAGE


def layer_bytes(kv_type: int, n_kv: int, head_dim: int) -> int:
    """Bytes of one layer in a page. For Python."""
    numbers = 2 * n_kv * head_dim * PAGE * int(number_bytes(kv_type))
    return numbers + (2 * n_kv * PAGE * 2 if kv_type == Q8_0 else 0)


@inline
def k_at(kv_type, layer, head, head_dim):
    """Address of a head's keys; layer: address of the layer's part of a page."""
    return layer + head * head_dim * PAGE * number_bytes(kv_type)


@inline
def v_at(kv_type, layer, head, n_kv, head_dim):
    """Address of a head's values."""
    return layer + (n_kv + head) * head_dim * PAGE * number_bytes(kv_type)


@inline
def k_scales_at(layer, head, n_kv, head_dim):
    """Address of a head's scales of keys. q8_0 only."""
    return layer + 2 * (n_kv * head_dim + head) * PAGE


@inline
def v_scales_at(layer, head, n_kv, head_dim):
    """Address of a head's scales of values. q8_0 only."""
    return layer + 2 * (n_kv * head_dim + n_kv + head) * PAGE


@inline
def load_numbers(kv_type, kind, numbers, i):
    """A tile (one row of vectors) of the numbers from the i-th on, as f32, without their scale."""
    at = numbers + i * number_bytes(kv_type)
    if kv_type == F32:
        return load_tile(kind, at, 0)
    if kv_type == Q8_0:
        return load_tile_i8(kind, at, 0)
    return load_tile_f16(kind, at, 0)
