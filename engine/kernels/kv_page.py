"""Where the keys and values of a token lie inside a KV page.

A page holds PAGE tokens of all layers. A layer's part, n_kv heads of head_dim (f16):

    K  [n_kv][head_dim][PAGE]    dimension by dimension: one vector is the same dimension of
                                 neighbouring tokens, so that scores need no sums across lanes
    V  [n_kv][PAGE][head_dim]    token by token
"""

from __future__ import annotations

from engine.jit import inline

PAGE = 64  # tokens


@inline
def layer_bytes(n_kv, head_dim):
    """Bytes of one layer in a page."""
    return 2 * n_kv * head_dim * PAGE * 2


@inline
def k_at(layer, head, head_dim):
    """Address of a head's keys; layer: address of the layer's part of a page."""
    return layer + head * head_dim * PAGE * 2


@inline
def v_at(layer, head, n_kv, head_dim):
    """Address of a head's values."""
    return layer + (n_kv + head) * head_dim * PAGE * 2
