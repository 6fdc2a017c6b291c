"""The two loops of the sampler that NumPy has no single pass for: top-p selection and the draw."""

from __future__ import annotations

import numpy as np

from engine.jit import entry


@entry("Tuple((int32, float64))(float32[::1], float64)")
def nucleus(probs, wanted):
    """Find the smallest probability that the most likely tokens need to have `wanted` between them.

    probs:  f32[n], each in [0, 2); need not sum to 1, nor be sorted.
    Returns the bits of that probability, and how much of `wanted` the tokens that have exactly
    this one must bring; all above it are in, all below it out.
    """
    # The bits of floats that are not negative are in the order of the floats. So this is a radix
    # select: three passes, each finds ten more bits, adding up probability instead of counting.
    bits = probs.view(np.int32)
    mass = np.empty((1024, 4), np.float64)  # four sums each: equal ones need not wait in line
    found = 0
    for shift in (20, 10, 0):
        mass[:] = 0.0
        for i in range(len(bits)):
            if bits[i] >> (shift + 10) == found:
                mass[(bits[i] >> shift) & 1023, i & 3] += probs[i]
        digit = 1023
        while digit > 0:
            here = mass[digit].sum()
            if here >= wanted:
                break
            wanted -= here
            digit -= 1
        found = found << 10 | digit
    return np.int32(found), wanted


@entry("int64(float32[::1], float64)")
def draw(weights, point):
    """Index of the weight in whose stretch `point` lies, when all are laid end to end.

    weights: f32[n], none negative, not all 0.  point: in [0, sum of the weights).
    """
    last = 0
    for i in range(len(weights)):
        if weights[i] > 0.0:
            last = i
            point -= weights[i]
            if point < 0.0:
                return i
    return last  # rounding: the point lay at the very end
