"""The loops of the sampler that NumPy has no single pass for."""

from __future__ import annotations

import numpy as np

from engine.jit import entry

N_BUCKETS = 1024


_DIVIDED = "Tuple((boolean[::1], int64[::1], float64))"


@entry(f"{_DIVIDED}(float32[::1], float32[::1], float32, float32, float64)")
def divide(keys, weights, high, low, wanted):
    """Find about where to cut, so that the largest keys have `wanted` of the weights between them.

    keys:    f32[n], at most `high`, which is more than `low`; those below `low` may share a bucket.
    weights: f32[n], none negative.
    Returns bool[n] the keys that are certainly in; i64[m] indices of those at the rim, of which the
    largest are in: as many as bring the third result, what is missing of `wanted`. Others are out.
    """
    n = len(keys)
    last = np.float32(N_BUCKETS - 1)
    scale = last / (high - low)
    bucket = np.empty(n, np.uint16)
    for i in range(n):
        place = (high - keys[i]) * scale
        bucket[i] = np.uint16(np.int32(place if place < last else last))
    # Four sums for each bucket, side by side: equal keys need not wait for each other.
    mass = np.zeros(4 * N_BUCKETS, np.float64)
    for i in range(n):
        mass[np.uint64(bucket[i]) * np.uint64(4) + np.uint64(i & 3)] += weights[i]
    rim = np.uint16(0)
    while rim < N_BUCKETS - 1:
        here = mass[4 * rim : 4 * rim + 4].sum()
        if here >= wanted:
            break
        wanted -= here
        rim += np.uint16(1)
    keep = np.empty(n, np.bool_)
    n_rim = 0
    for i in range(n):
        keep[i] = bucket[i] < rim
        n_rim += bucket[i] == rim
    places = np.empty(n_rim, np.int64)
    n_rim = 0
    for i in range(n):
        if bucket[i] == rim:
            places[n_rim] = i
            n_rim += 1
    return keep, places, wanted


@entry("void(float32[::1], boolean[::1], float32)")
def put_outside(values, mask, value):
    """Put `value` where the mask is false, in place. values: f32[n]; mask: bool[n]."""
    for i in range(len(values)):
        values[i] = values[i] if mask[i] else value


@entry("float64(float32[::1])")
def total(weights):
    """The sum of f32[n] in 64 bits."""
    result = 0.0
    for i in range(len(weights)):
        result += np.float64(weights[i])
    return result


@entry("float64(float32[::1], float32)")
def deviation(values, base):
    """The standard deviation of those above -inf among f32[n], which are not none.

    base: a value somewhere among them.
    """
    n = 0
    sum_ = squares = 0.0
    for i in range(len(values)):
        above = np.float64(values[i] - base if values[i] > -np.inf else np.float32(0))
        n += values[i] > -np.inf
        sum_ += above
        squares += above * above
    return np.sqrt(max(squares / n - (sum_ / n) ** 2, 0.0))


@entry("float64(float32[::1], float32[::1], float32)")
def dot_below(weights, logits, best):
    """The sum of weights times (logits - best), f32[n] both; a weight of 0 counts nothing, though
    its logit be -inf.
    """
    result = 0.0
    for i in range(len(weights)):
        below = logits[i] - best
        result += np.float64(weights[i] * (below if weights[i] > 0 else np.float32(0)))
    return result


@entry("int64(float32[::1], float64)")
def find(weights, point):
    """Index of the weight in whose stretch `point` lies, when all are laid end to end.

    weights: f32[n], none negative, not all 0.  point: in [0, sum of the weights).
    """
    n = len(weights)
    start = 0
    while start + 256 < n:  # skip blocks by their sums
        block = 0.0
        for i in range(start, start + 256):
            block += np.float64(weights[i])
        if block > point:
            break
        point -= block
        start += 256
    last = -1
    for i in range(start, n):
        if weights[i] > 0.0:
            last = i
            point -= weights[i]
            if point < 0.0:
                return i
    while last < 0:  # rounding: the point lay at the very end
        start -= 1
        if weights[start] > 0.0:
            last = start
    return last


@entry("int64[::1](int64[::1])")
def repetitions(ids):
    """i64[n - 1]: how many tokens that end with this one equal as many at the end of all.

    The Z algorithm, on the sequence read backwards.
    """
    n = len(ids)
    lengths = np.zeros(n, np.int64)  # of the sequence that ends `i` tokens before the end
    left = right = 0  # the match found so far that reaches back farthest
    for i in range(1, n):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < n and ids[n - 1 - length] == ids[n - 1 - i - length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths[:0:-1].copy()


@entry("void(float32[::1], uint32[::1])")
def apply_bitmask(logits, mask):
    """-inf for each of f32[n] whose bit is 0 in u32[ceil(n / 32)], lowest bits first."""
    for word in range(len(mask)):
        bits = mask[word]
        if bits == np.uint32(0xFFFFFFFF):
            continue
        first = 32 * word
        for i in range(min(32, len(logits) - first)):  # without a branch: many at once
            is_allowed = (bits >> np.uint32(i)) & np.uint32(1) != 0
            logits[first + i] = logits[first + i] if is_allowed else np.float32(-np.inf)
