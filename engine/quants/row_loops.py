"""The loops over rows of weights, with one to four input rows: for k_blocks.py, eight_blocks.py.

Weights are taken 256 at a time, a run. A product tells what is done with them, a tuple of

    blocks, input_bytes                  the file's blocks in a run: 1 or 8; bytes of its input
    unpack(scales, weights, run)         makes a run's numbers ready (`parts`)
    add(sums, rows, parts, x, x_bytes)   adds their product with a run of input values
    end(out, out_bytes, sums)            writes a weight row's results
    add_shared                           adds a run that two rows share: add_shared below, or
                                         none_shared where a run is one block, which costs nothing

and a layout, (run_bytes, scales, weights), how a type's runs are read. Sums are two tiles for `add`
to use, f32x16 and f32x8. (No function stands first in the tuples: Numba takes a tuple that begins
with one for several of one kind.)
"""

from __future__ import annotations

from engine.jit import inline
from engine.kernels.activation import BLOCK_OF_COLUMN, rows_in_line
from engine.kernels.op import AHEAD, FAR_AHEAD
from engine.kernels.simd import (
    FOUR,
    ONE,
    TWO,
    L,
    add,
    add_lower,
    f32x8,
    f32x16,
    load,
    load_sums,
    prefetch,
    prefetch_l2,
    split_lanes,
    stack,
    store,
    store_sums,
    u8x16,
    write_sums,
    zero_sums,
)

# Whether a run is unpacked beside the products of the one before, as a CPU that waits for it does
# not find enough else to do. With 16 registers, or short ones, there is no room for it.
_EARLY = L == 16
# Four input rows of more than so many whole runs are read in chunks of them, which stay in the L1
# cache while weight rows pass by: 16 kB of fine8, 20 kB of fine16. Fewer rows are read through:
# memory is faster in order.
_CHUNK = 8
_LATER = 4  # rows of weights ahead at which chunks are prefetched
_ROOM = 320  # bytes: eight blocks of 34, and a whole number of vectors
_LOWER = FOUR.n * 64  # where the second tile of sums waits
_SUMS_BYTES = _LOWER + FOUR.n * 32  # of one weight row
_WAITING = L * _SUMS_BYTES


@inline
def end_one(out, out_bytes, sums):
    """Write the sum of the first tile's lanes for each input row."""
    write_sums(out, out_bytes, sums[0])


@inline
def end_both(out, out_bytes, sums):
    """The same with the second tile added to the first."""
    write_sums(out, out_bytes, add_lower(sums[0], sums[1]))


@inline
def dot_rows(product, layout, at, to):
    """QuantType.dot. at: (w, row_bytes, n_rows, n_in); to: (x, 0, out, 0)."""
    _in_order(ONE, product, layout, at, to)


@inline
def dot4_rows(product, layout, at, n_x, to):
    """QuantType.dot4. at: (w, row_bytes, n_rows, n_in); to: (x, x_bytes, out, out_bytes)."""
    n_in = at[3]
    if n_x <= 2:
        _in_order(TWO, product, layout, at, to)
    elif n_in > 256 * _CHUNK and n_in % 256 == 0:
        _by_chunks(FOUR, product, layout, at, to)
    else:
        _in_order(FOUR, product, layout, at, to)


@inline
def _in_order(rows, product, layout, at, to):
    """Weight rows one after the other.

    Where they are not whole runs, a run may end one row and begin the next (rows_in_line), or hold
    the end of a row and something that is left out: in both cases `shared` of its blocks are the
    row's.

        in_line = 2    |-------|-------|---+---|-------|-------|
                        row 0               row 1
    """
    w, row_bytes, n_rows, n_in = at
    x, x_bytes, out, out_bytes = to
    blocks, input_bytes, unpack, _, end, share = product
    run_bytes, scales, weights = layout
    in_line, limit = rows_in_line(n_in), (w + n_rows * row_bytes, stack(_ROOM))
    parts = unpack(scales, weights, _readable(w, run_bytes, limit))
    for first in range(0, n_rows, in_line):
        run, inputs, n_read = w + first * row_bytes, x, 0  # n_read: runs of this line
        sums = _no_sums(rows)
        for r in range(first, min(first + in_line, n_rows)):
            n_values = (r - first + 1) * n_in  # of this line, up to the row's end
            n, shared = (n_values >> 8) - n_read, (n_values & 255) * blocks >> 8
            row_end = run + n * run_bytes
            sums, parts = _add_runs(
                sums, parts, rows, product, layout, n,
                (run, row_end, limit), (0, _ask_in_order), (inputs, x_bytes),
            )  # fmt: skip
            run, inputs, n_read = row_end, inputs + n * input_bytes, n_read + n
            next_sums = _no_sums(rows)
            if shared > 0:
                following = run + run_bytes if in_line > 1 else w + (r + 1) * row_bytes
                sums, next_sums, parts = share(
                    sums, parts, rows, product, layout, shared,
                    (run, following, limit), (0, _ask_in_order), (inputs, x_bytes),
                )  # fmt: skip
                run, inputs, n_read = run + run_bytes, inputs + input_bytes, n_read + 1
            end(out + 4 * r, out_bytes, sums)
            sums = next_sums


@inline
def _by_chunks(rows, product, layout, at, to):
    """Weight rows of whole runs, L at a time, chunk by chunk. Their sums wait in memory."""
    w, row_bytes, n_rows, n_in = at
    x, x_bytes, out, out_bytes = to
    _, input_bytes, unpack, _, end, _ = product
    run_bytes, scales, weights = layout
    n, limit, waiting = n_in // 256, (w + n_rows * row_bytes, stack(_ROOM)), stack(_WAITING)
    parts = unpack(scales, weights, w)
    for first_row in range(0, n_rows, L):
        rows_at, m = w + first_row * row_bytes, min(L, n_rows - first_row)
        for first in range(0, n, _CHUNK):
            k = min(_CHUNK, n - first)
            is_end = first + k == n
            here = rows_at + first * run_bytes
            then = rows_at + m * row_bytes if is_end else here + k * run_bytes
            for r in range(m):
                run, place = here + r * row_bytes, waiting + r * _SUMS_BYTES
                following = _nth(here, then, row_bytes, m, r + 1)
                ahead = _nth(here, then, row_bytes, m, r + _LATER) - run
                sums = _no_sums(rows)
                if first > 0:
                    sums = load_sums(sums[0], place), load_sums(sums[1], place + _LOWER)
                sums, parts = _add_runs(
                    sums, parts, rows, product, layout, k,
                    (run, following, limit), (ahead, _ask_for_chunk),
                    (x + first * input_bytes, x_bytes),
                )  # fmt: skip
                if is_end:
                    end(out + 4 * (first_row + r), out_bytes, sums)
                else:
                    store_sums(place, sums[0])
                    store_sums(place + _LOWER, sums[1])


@inline
def _nth(here, then, row_bytes, m, r):
    """Address of row r's chunk: `here` on for the first m rows, `then` on for those that follow."""
    return here + r * row_bytes if r < m else then + (r - m) * row_bytes


@inline
def _add_runs(sums, parts, rows, product, layout, n, where, ask, x):
    """(sums, parts) after the products of n runs, of which the first one's parts are there.

    where: (first run, the one to follow the last, the rows' limit); ask: see _ask_for; x: (first
    run of inputs, bytes from one input row to the next).
    """
    _, input_bytes, unpack, add_product, _, _ = product
    run_bytes, scales, weights = layout
    run, following, limit = where
    inputs, x_bytes = x
    if _EARLY:
        following = _readable(following, run_bytes, limit)
    else:
        run = _readable(run, run_bytes, limit)
    for i in range(n):
        _ask_for(run, run_bytes, ask)
        if not _EARLY:
            parts = unpack(scales, weights, run)
        run += run_bytes
        next_parts = parts
        if _EARLY:
            next_parts = unpack(scales, weights, run if i + 1 < n else following)
        sums = add_product(sums, rows, parts, inputs, x_bytes)
        inputs += input_bytes
        parts = next_parts
    return sums, parts


@inline
def add_shared(sums, parts, rows, product, layout, shared, where, ask, x):
    """(sums, the next row's, parts) after a run whose first `shared` blocks are the row's."""
    both, parts = _add_runs(_no_sums(rows), parts, rows, product, layout, 1, where, ask, x)
    own, others = split_lanes(both[0], BLOCK_OF_COLUMN, shared)
    return (add(sums[0], own), sums[1]), (others, both[1]), parts


@inline
def none_shared(sums, parts, rows, product, layout, shared, where, ask, x):
    """In place of it where rows are whole runs: never called, but Numba compiles what might be."""
    return sums, sums, parts


@inline
def _no_sums(rows):
    return zero_sums(rows, f32x16), zero_sums(rows, f32x8)


@inline
def _readable(run, run_bytes, limit):
    """Address of a run's bytes: of a copy, where the rows end before it does, as nothing behind
    them may be read. What follows in the copy is anything.

    limit: (the rows' end, room for the copy, which the next call may write anew).
    """
    stop, copy = limit
    n = stop - run
    if n >= run_bytes:
        return run
    for i in range(0, n - 16, 16):
        store(copy + i, load(u8x16, run + i))
    if n > 0:  # one of the file's blocks at least: 17 bytes
        store(copy + n - 16, load(u8x16, stop - 16))
    return copy


@inline
def _ask_for(run, run_bytes, ask):
    """Prefetch for a run. ask: (bytes ahead, what to do for each of its cache lines)."""
    ahead, ask_for_line = ask
    ask_for_line(run, ahead)
    if run_bytes > 64:  # known to the compiler, which would not unroll a loop
        ask_for_line(run + 64, ahead)
    if run_bytes > 128:
        ask_for_line(run + 128, ahead)
    if run_bytes > 192:
        ask_for_line(run + 192, ahead)
    if run_bytes > 256:
        ask_for_line(run + 256, ahead)


@inline
def _ask_in_order(line, _):
    prefetch_l2(line + FAR_AHEAD)
    prefetch(line + AHEAD)


@inline
def _ask_for_chunk(line, ahead):
    prefetch_l2(line + ahead)
