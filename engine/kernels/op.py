"""The op and batch records, which are all that a kernel is given; decorators that make kernels.

A kernel is kernel(op, batch, thread, n_threads), called by every thread of the team for the same
op. Threads divide the work by taking items from the op's own counter (`take`), or from shares, each
of which one thread reads in order (`take_from_shares`), so that a slow thread holds nobody up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.jit import Native, inline, native
from engine.kernels.atomics import address_of, fetch_add, read_shared
from engine.kernels.simd import read_i32, read_i64

import numba  # isort: skip  # after engine.jit
from numba import types  # isort: skip

# Rows up to which matrix products can read weights as decoding does; more go through tiles.
FEW = 32

# Kernels may touch rows up to the next multiple of this, where there are many.
ROW_GROUP = 8

# Bytes ahead of the weights being multiplied at which they are prefetched, and before that into the
# L2 cache.
AHEAD, FAR_AHEAD = 2048, 8192

# Bytes from one KV head's count of finished parts to the next: a cache line each.
ARRIVED_BYTES = 64

# One step of the plan. Addresses are int64; 0 = none. A kernel's docstring says which it reads.
OP = np.dtype(
    [
        ("kernel", np.int64),  # address of the kernel
        ("next", np.int64),  # first item that no thread has taken yet; zeroed before each run
        ("taken", np.int64),  # i64[threads]: how many items of each one's share are; zeroed too
        ("meet", np.int32),  # 1 = the team meets after this op: a later op reads what it writes
        ("rows_out", np.int32),  # 1 = runs over the batch's output rows instead of all its rows
        ("n_in", np.int32),  # row length of the input
        ("n_out", np.int32),  # row length of the output
        ("x", np.int64),  # input rows: f32, or q8 for a product of quantised weights
        ("x_few", np.int64),  # input rows of a product when there are few of them
        ("x_few_bytes", np.int64),  # bytes from one of those to the next
        ("y", np.int64),  # second input
        ("z", np.int64),  # third input
        ("out", np.int64),  # output rows, f32
        ("q8", np.int64),  # output rows as integers, in the forms of activation.py
        ("fine8", np.int64),
        ("fine16", np.int64),
        ("weight", np.int64),  # mapped weights, or f32 vector
        ("row_bytes", np.int64),  # bytes from one weight row to the next
        ("bias", np.int64),  # f32[n_out], read up to the next multiple of 16
        ("planes", np.int32),  # q8 rows for one row, at least (activation.py)
        ("accumulate", np.int32),  # 1 = add to `out` instead of overwriting
        ("float_x", np.int32),  # 1 = the weight type wants f32 rows, and unpacks to a float tile
        ("group", np.int32),  # weights that share a scale in a tile
        ("dot", np.int64),  # quants: rows of weights times one input row
        ("dot4", np.int64),  # the same for two to four input rows at once
        ("unpack", np.int64),  # quants: rows of weights to a tile
        ("tile_dot", np.int64),  # tile times many input rows
        ("scratch", np.int64),  # this op's scratch memory, thread by thread
        ("scratch_bytes", np.int64),  # of one thread
        ("results", np.int64),  # attention: its results for parts of the positions
        ("arrived", np.int64),  # attention: parts that are finished, i64 every ARRIVED_BYTES
        # A mixture of experts (routing.py, experts.py).
        ("n_expert", np.int32),
        ("n_used", np.int32),  # experts that a row takes
        ("expert_bytes", np.int64),  # bytes from one expert's weights to the next one's
        ("gating", np.int32),  # how a router's logits become probabilities
        ("normalise", np.int32),  # 1 = the factors of a row sum up to `scale`
        ("by_place", np.int32),  # 1 = input rows lie by place instead of by row
        ("chosen", np.int64),  # i32[rows, n_used]: experts
        ("factor", np.int64),  # f32[rows, n_used]
        ("place", np.int64),  # i32[rows, n_used]
        ("source", np.int64),  # i32[places]: row
        ("first", np.int64),  # i32[n_expert + 1]: each expert's first place, and their number
        ("present", np.int64),  # i32[1 + n_expert]: how many experts are taken, and which
        ("n_head", np.int32),
        ("n_head_kv", np.int32),
        ("head_dim", np.int32),
        ("n_rot", np.int32),  # dimensions of a head that RoPE turns
        ("rope_halves", np.int32),  # RoPE turns i with i + n_rot / 2 (1) or 2 i with 2 i + 1 (0)
        ("layer_offset", np.int64),  # bytes from a page's start to this layer's K
        (
            "table_offset",
            np.int64,
        ),  # bytes from a page table's start to this layer's first page
        ("table_step", np.int64),  # bytes from there to its next one
        ("table", np.int64),  # RoPE: f32[rows, n_rot], cosine and sine of each angle
        ("window", np.int64),  # tokens that attention looks back on, the row's own included
        ("q_norm", np.int64),  # f32[n_head, head_dim]: norm of each query head before RoPE
        ("k_norm", np.int64),  # the same for keys
        ("sinks", np.int64),  # f32[n_head]: a score that takes weight and has no value; 0 = none
        ("centred", np.int32),  # 1 = norms subtract the mean
        ("eps", np.float32),
        ("scale", np.float32),
        ("soft_cap", np.float32),  # what is kept between -this and this by tanh; 0 = nothing
    ],
    align=True,
)

# What changes from one run of the plan to the next.
BATCH = np.dtype(
    [
        ("cancel", np.int64),  # not 0 = stop at the next op or tile
        ("op_done", np.int64),  # ops finished in this run
        ("n_rows", np.int32),
        ("n_rows_out", np.int32),
        ("planes", np.int32),  # q8 rows for one row, at least; 0 = few rows, read as in decoding
        ("token", np.int64),  # i32[n_rows]
        ("pos", np.int64),  # i32[n_rows]: place in its chat
        ("pages", np.int64),  # i64[n_rows]: address of the row's page table, i64[page][group]
        ("row_out", np.int64),  # i32[n_rows_out]: rows whose logits are wanted
    ],
    align=True,
)

_SIGNATURE = types.void(
    types.CPointer(numba.from_dtype(OP)),
    types.CPointer(numba.from_dtype(BATCH)),
    types.int64,
    types.int64,
)
_NEXT = OP.fields["next"][1]
_CANCEL = BATCH.fields["cancel"][1]


def kernel(function: Callable[..., None]) -> Native:
    """Decorator: a kernel, compiled when a plan first uses it."""
    return Native(function, _SIGNATURE)


def part(n_args: int) -> Callable[[Callable[..., None]], Native]:
    """Decorator: a C function of n int64 arguments that kernels call through an op's address."""
    return native(types.void(*[types.int64] * n_args))


@inline
def fields(pointer):
    """The record behind a kernel's op or batch argument."""
    return numba.carray(pointer, 1)[0]


@inline
def take(op, n):
    """Take the op's next n items: the first one's number, which may be past the last item."""
    return fetch_add(address_of(op) + _NEXT, n)


@inline
def take_from_shares(op, n, n_items, thread, n_threads):
    """Take n of n_items items: those that follow what the thread took last, and once its share is
    taken, what others have left of theirs. n: the same for all threads.

    Returns the first one's number, or n_items where nothing is left.
    """
    share = ((n_items + n_threads - 1) // n_threads + n - 1) // n * n
    for i in range(thread, thread + n_threads):
        owner = i if i < n_threads else i - n_threads
        taken, end = fields(op).taken + 8 * owner, min((owner + 1) * share, n_items)
        if owner * share + read_shared(taken) < end:  # a look disturbs nobody
            first = owner * share + fetch_add(taken, n)
            if first < end:
                return first
    return n_items


@inline
def cancelled(batch):
    """Whether this run is to stop. Looked at where an op may take long."""
    return read_shared(address_of(batch) + _CANCEL) != 0


@inline
def n_rows(op, batch):
    """How many rows the op runs over."""
    b = fields(batch)
    return b.n_rows_out if fields(op).rows_out != 0 else b.n_rows


@inline
def are_few(op, batch):
    """Whether the rows are so few that weights are read as in decoding.

    A prompt's rows are many, but those that want logits are few.
    """
    b = fields(batch)
    return b.planes == 0 or (fields(op).rows_out != 0 and b.n_rows_out <= FEW)


@inline
def page_at(op, table, i):
    """Address of the i-th page, with this op's layer, that a chat's page table names."""
    o = fields(op)
    return read_i64(table + o.table_offset + o.table_step * i)


@inline
def n_places(op, batch):
    """How many rows by place the op runs over (routing.py), or simply rows where there are none."""
    o = fields(op)
    return n_rows(op, batch) if o.first == 0 else read_i32(o.first + 4 * o.n_expert)
