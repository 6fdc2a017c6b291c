"""Every limit of SamplingParams."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.sampling.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf),
        ("top_p", 1.1), ("top_p", -0.1), ("min_p", 1.01), ("repeat_penalty", 0),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("max_tokens", -1),
        ("repeat_last_n", -2), ("logit_bias", {-1: 1.0}), ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}), ("n_probs", -1), ("n_probs", 1001), ("typical_p", 1.1),
        ("top_n_sigma", math.nan), ("xtc_probability", 2), ("xtc_threshold", -1), ("mirostat", 3),
        ("mirostat_tau", -1), ("mirostat_eta", math.inf), ("dry_multiplier", -1), ("dry_base", -1),
        ("dry_allowed_length", -1), ("dry_penalty_last_n", -2), ("dry_sequence_breakers", ("",)),
        ("dynatemp_range", -1), ("dynatemp_exponent", math.nan), ("min_keep", -1),
        ("min_tokens", -1), ("stop_token_ids", frozenset({-1})), ("samplers", ("top_x",)),
        ("samplers", ("top_k", "top_k")), ("samplers", ("top_k", "dry")),
        ("samplers", ("dry", "penalties")),
    ],
)  # fmt: skip
def test_values_outside_their_range_are_refused_by_name(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=param) as caught:
        SamplingParams(**{param: value})
    assert caught.value.param == param
