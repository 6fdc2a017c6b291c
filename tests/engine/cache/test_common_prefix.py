"""How far two token sequences agree, on short ones and long ones."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cache.common_prefix import count_common, count_common_of_arrays


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        ([], [1], 0),
        ([1], [2], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 9, 4], [1, 2, 3, 4], 2),
    ],
)
def test_common_beginnings(a: list[int], b: list[int], n: int) -> None:
    assert count_common(a, b) == count_common(b, a) == n
    assert count_common_of_arrays(np.array(a, np.int32), np.array(b, np.int32)) == n


def test_common_beginnings_of_long_chats() -> None:
    long = [i * 7919 % 5003 for i in range(5000)]
    for n in (0, 1, 2, 2499, 2500, 4998, 4999):
        other = [*long[:n], -1, *long[n + 1 :]]
        assert count_common(long, other) == n
