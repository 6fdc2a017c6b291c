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
    scale = np.float32(N_BUCKETS - 1) / (high - low)
    last = np.float32(N_BUCKETS - 1)
    bucket = np.empty(n, np.int16)
    for i in range(n):
        place = (high - keys[i]) * scale
        bucket[i] = np.int16(place if place < last else last)
    mass = np.zeros((N_BUCKETS, 4), np.float64)  # four sums each: equal keys need not wait in line
    for i in range(n):
        mass[bucket[i], i & 3] += weights[i]
    rim = 0
    while rim < N_BUCKETS - 1:
        here = mass[rim].sum()
        if here >= wanted:
            break
        wanted -= here
        rim += 1
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


@entry("float64(float32[::1])")
def total(weights):
    """The sum of f32[n] in 64 bits."""
    n = len(weights)
    sums = np.zeros(16, np.float64)
    for i in range(0, n // 16 * 16, 16):
        for lane in range(16):
            sums[lane] += weights[i + lane]
    rest = 0.0
    for i in range(n // 16 * 16, n):
        rest += weights[i]
    return sums.sum() + rest


@entry("int64(float32[::1], float64)")
def find(weights, point):
    """Index of the weight in whose stretch `point` lies, when all are laid end to end.

    weights: f32[n], none negative, not all 0.  point: in [0, sum of the weights).
    """
    # Skip blocks by their sums: four sums at a time, so that they need not wait for each other.
    n = len(weights)
    start = 0
    while start + 256 < n:
        a = b = c = d = 0.0
        for i in range(start, start + 256, 4):
            a += weights[i]
            b += weights[i + 1]
            c += weights[i + 2]
            d += weights[i + 3]
        block = (a + b) + (c + d)
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
        for i in range(32 * word, min(32 * word + 32, len(logits))):
            if not (bits >> np.uint32(i & 31)) & np.uint32(1):
                logits[i] = -np.inf
