"""The loops over rows of weights, with one to four input rows: for k_blocks.py, eight_blocks.py.

Weights are taken 256 at a time, a run. A form tells what is done with them, a tuple of

    blocks, input_bytes                  the file's blocks in a run: 1 or 8; bytes of its input
    unpack(scales, weights, run)         makes a run's numbers ready (`parts`)
    add(sums, rows, parts, x, x_bytes)   adds their product with a run of input values
    end(out, out_bytes, sums)            writes a weight row's results

and a block, (run_bytes, scales, weights), what lies in a run of one type. Sums are two tiles for
`add` to use, f32x16 and f32x8. (A tuple that began with a function, Numba would take for a choice.)
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
    u8x64,
    write_sums,
    zero_sums,
    zeros,
)

# Whether a run is unpacked beside the products of the one before, as a CPU that waits for it does
# not find enough else to do. With 16 registers there is no room for it.
_EARLY = L == 16
# Several input rows of more than so many runs are read in chunks of them, which stay in the L1
# cache while weight rows pass by: 16 kB of fine8 for four rows, 20 kB of fine16. One row is read
# through: memory is faster in order.
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
def dot_rows(form, block, at, to):
    """QuantType.dot. at: (w, row_bytes, n_rows, n_in); to: (x, 0, out, 0)."""
    _in_order(ONE, form, block, at, to)


@inline
def dot4_rows(form, block, at, n_x, to):
    """QuantType.dot4. at: (w, row_bytes, n_rows, n_in); to: (x, x_bytes, out, out_bytes)."""
    if n_x <= 2:
        _few_rows(TWO, 2 * _CHUNK, form, block, at, to)
    else:
        _few_rows(FOUR, _CHUNK, form, block, at, to)


@inline
def _few_rows(rows, chunk, form, block, at, to):
    n_in = at[3]
    if n_in > 256 * chunk and n_in % 256 == 0:
        _by_chunks(rows, chunk, form, block, at, to)
    else:
        _in_order(rows, form, block, at, to)


@inline
def _in_order(rows, form, block, at, to):
    """Weight rows one after the other.

    Where rows are not whole runs, a run may end one and begin the next (rows_in_line), or hold the
    end of a row and something that is left out.

        in_line = 2    |-------|-------|---+---|-------|-------|
                        row 0               row 1
    """
    w, row_bytes, n_rows, n_in = at
    x, x_bytes, out, out_bytes = to
    blocks, input_bytes, unpack, _, end = form
    run_bytes, scales, weights = block
    in_line = rows_in_line(n_in)
    memory = _end_of(at, run_bytes)
    parts = unpack(scales, weights, _readable(w, memory))
    for first in range(0, n_rows, in_line):
        run, inputs, next_line = w + first * row_bytes, x, w + (first + in_line) * row_bytes
        begun = 0
        sums = _no_sums(rows)
        for r in range(first, min(first + in_line, n_rows)):
            ends = (r - first + 1) * n_in
            whole, shared = (ends >> 8) - begun, (ends & 255) * blocks >> 8
            row_end = run + whole * run_bytes
            following = _readable(row_end if shared > 0 else next_line, memory)
            sums, parts = _add_runs(
                sums, parts, rows, form, block, whole, (run, following, 0), inputs, x_bytes
            )
            run, inputs, begun = row_end, inputs + whole * input_bytes, begun + whole
            if shared == 0:
                end(out + 4 * r, out_bytes, sums)
                continue
            last = _readable(run, memory)
            run += run_bytes
            following = _readable(next_line if r - first == in_line - 1 else run, memory)
            both, parts = _add_runs(
                _no_sums(rows), parts, rows, form, block, 1, (last, following, 0), inputs, x_bytes
            )
            inputs, begun = inputs + input_bytes, begun + 1
            own, next_own = split_lanes(both[0], BLOCK_OF_COLUMN, shared)
            end(out + 4 * r, out_bytes, (add(sums[0], own), sums[1]))
            sums = next_own, both[1]


@inline
def _by_chunks(rows, chunk, form, block, at, to):
    """Weight rows of whole runs, L at a time, chunk by chunk. Their sums wait in memory."""
    w, row_bytes, n_rows, n_in = at
    x, x_bytes, out, out_bytes = to
    _, input_bytes, unpack, _, end = form
    run_bytes, scales, weights = block
    n, memory = n_in // 256, _end_of(at, run_bytes)
    waiting = stack(_WAITING)
    parts = unpack(scales, weights, w)
    for first_row in range(0, n_rows, L):
        rows_at, m = w + first_row * row_bytes, min(L, n_rows - first_row)
        for first in range(0, n, chunk):
            k = min(chunk, n - first)
            is_end = first + k == n
            here = rows_at + first * run_bytes
            then = rows_at + m * row_bytes if is_end else here + k * run_bytes
            for r in range(m):
                run, place = here + r * row_bytes, waiting + r * _SUMS_BYTES
                following = _readable(_nth(here, then, row_bytes, m, r + 1), memory)
                ahead = _nth(here, then, row_bytes, m, r + _LATER) - run
                sums = _no_sums(rows)
                if first > 0:
                    sums = load_sums(sums[0], place), load_sums(sums[1], place + _LOWER)
                inputs = x + first * input_bytes
                sums, parts = _add_runs(
                    sums, parts, rows, form, block, k, (run, following, ahead), inputs, x_bytes
                )
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
def _add_runs(sums, parts, rows, form, block, n, where, inputs, x_bytes):
    """(sums, parts) after the products of n runs, the first of which parts are unpacked.

    where: (first run, the one behind the last, bytes ahead to prefetch, 0 = in order).
    """
    _, input_bytes, unpack, add, _ = form
    run_bytes, scales, weights = block
    run, following, ahead = where
    for i in range(n):
        _ask_for(run, run_bytes, ahead)
        if not _EARLY:
            parts = unpack(scales, weights, run)
        run += run_bytes
        next_parts = parts
        if _EARLY:
            next_parts = unpack(scales, weights, run if i + 1 < n else following)
        sums = add(sums, rows, parts, inputs, x_bytes)
        inputs += input_bytes
        parts = next_parts
    return sums, parts


@inline
def _no_sums(rows):
    return zero_sums(rows, f32x16), zero_sums(rows, f32x8)


@inline
def _end_of(at, run_bytes):
    """(where the rows end, bytes of a run, room for a copy of one): see _readable."""
    w, row_bytes, n_rows, _ = at
    copy = stack(_ROOM)
    for i in range(0, _ROOM, 64):
        store(copy + i, zeros(u8x64))
    return w + n_rows * row_bytes, run_bytes, copy


@inline
def _readable(run, memory):
    """Address of a run's bytes: of a copy, where rows end before it does, as nothing behind them
    may be read. What then follows in the copy is left out by who reads it.
    """
    stop, run_bytes, copy = memory
    n = stop - run
    if n >= run_bytes:
        return run
    for i in range(0, n - 16, 16):
        store(copy + i, load(u8x16, run + i))
    if n > 0:  # one of the file's blocks at least: 17 bytes
        store(copy + n - 16, load(u8x16, stop - 16))
    return copy


@inline
def _ask_for(run, run_bytes, ahead):
    """Prefetch what lies `ahead` bytes behind a run; ahead: see _add_runs."""
    _ask_for_line(run, ahead)
    if run_bytes > 64:  # known to the compiler, which would not unroll a loop
        _ask_for_line(run + 64, ahead)
    if run_bytes > 128:
        _ask_for_line(run + 128, ahead)
    if run_bytes > 192:
        _ask_for_line(run + 192, ahead)
    if run_bytes > 256:
        _ask_for_line(run + 256, ahead)


@inline
def _ask_for_line(line, ahead):
    if ahead == 0:
        prefetch_l2(line + FAR_AHEAD)
        prefetch(line + AHEAD)
    else:
        prefetch_l2(line + ahead)
