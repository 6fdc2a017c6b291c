"""The kernels as a lesser CPU runs them: their tests again, for the best profile below this CPU's
that sums products in another way. A few kernels and tensor types stand for all, which take minutes
to compile; RUSHLIGHT_CPU_PROFILE before `pytest tests/engine` runs all of them, for any profile.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from engine.jit import PROFILE, host_cpu_flags, profiles_of

ROOT = Path(__file__).resolve().parents[2]
PROFILES, FLAGS = profiles_of(platform.machine()), host_cpu_flags()
BELOW = [p for p in PROFILES[PROFILES.index(PROFILE) :] if p.needs <= FLAGS]
LESSER = [p.name for p in BELOW if p.dot != PROFILE.dot][:1]

VERBS = [f"tests/engine/kernels/test_{name}.py" for name in ("simd", "eights", "tile")]
PRODUCTS = ["tests/engine/test_dots.py", "tests/engine/test_quants.py"]
# Four bits, a fifth one, signed bytes, sums of products of 5 and of 6 bits.
TYPES = "Q4_0 or Q5_1 or Q8_0 or Q4_K or Q6_K"

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("profile", LESSER)]


def passes(profile: str, *arguments: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=os.environ | {"RUSHLIGHT_CPU_PROFILE": profile},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout


def test_verbs(profile: str) -> None:
    passes(profile, *VERBS)


def test_tensor_types(profile: str) -> None:
    passes(profile, *PRODUCTS, "-k", TYPES)
