"""Numbers of threads: simulated steps on several machines, with a core that comes and goes."""

from __future__ import annotations

import random

import pytest

from engine.model.pace import _LONG, _STAY, _TRIAL, _WARM, Pace, Paces


def steps(pace: Pace, n: int, seconds: dict[int, float]) -> list[int]:
    """Thread counts of n steps that take seconds[threads] each."""
    used = []
    for _ in range(n):
        used.append(pace.n_threads)
        pace.note(seconds[pace.n_threads])
    return used


def of(n_threads: int, n_cores: int = 0) -> Pace:
    """That of decoding."""
    return Paces(n_threads, n_cores).of_decoding(1)


def test_an_undisturbed_machine_uses_all_threads_always() -> None:
    assert set(steps(of(2), 1000, {2: 1.0, 1: 1.7})) == {2}


def test_a_growing_context_is_no_disturbance() -> None:
    pace = of(2)
    for i in range(3000):
        pace.note(1.0 + i / 1000)
        assert pace.n_threads == 2


def test_one_thread_while_a_core_is_taken_and_all_again_afterwards() -> None:
    pace = of(2)
    steps(pace, 100, {2: 1.0, 1: 1.7})
    disturbed = steps(pace, 300, {2: 3.0, 1: 1.8})
    assert disturbed[2 * _TRIAL + 1 : _STAY] == [1] * (_STAY - 2 * _TRIAL - 1)
    assert disturbed.count(2) < 40
    after = steps(pace, 2 * _STAY, {2: 1.0, 1: 1.7})
    assert after[-10:] == [2] * 10


def test_all_threads_stay_where_one_would_be_slower_still() -> None:
    pace = of(4)
    steps(pace, 10, {4: 1.0, 1: 3.5})
    used = steps(pace, 500, {4: 2.0, 1: 3.5})
    assert used.count(1) < 500 * 2 * _TRIAL / _STAY


def test_a_single_thread_has_no_choice() -> None:
    assert set(steps(of(1), 200, {1: 1.0})) == {1}


@pytest.mark.parametrize("seconds", [{1: 3.0, 2: 1.0, 4: 1.3}, {1: 3.0, 2: 1.3, 4: 1.0}])
def test_two_threads_of_each_core_are_used_where_that_is_faster(seconds: dict[int, float]) -> None:
    pace = of(4, n_cores=2)
    first = steps(pace, _WARM, seconds)
    assert set(first) == {2}  # as long as nothing is known
    fastest = min(seconds, key=lambda n: seconds[n])
    later = steps(pace, 4000, seconds)
    assert later.count(fastest) > 3980 - 3 * _TRIAL
    assert 1 not in later


def test_half_of_many_cores_may_be_enough() -> None:
    seconds = {1: 8.0, 4: 1.0, 8: 1.1, 16: 1.5}
    used = steps(of(16, n_cores=8), 500, seconds)
    assert used[:_WARM] == [8] * _WARM
    assert used[-400:] == [4] * 400
    assert set(used) == {4, 8, 16}


def test_odd_steps_hardly_matter() -> None:
    dice = random.Random(1)
    pace = of(4, n_cores=2)
    used = []
    for _ in range(2000):
        used.append(pace.n_threads)
        odd = 10.0 if dice.random() < 0.05 else 1.0
        pace.note({2: 1.0, 4: 1.4}.get(pace.n_threads, 2.0) * odd)
    assert used.count(2) > 1800


def test_a_choice_made_while_a_core_was_taken_is_made_again() -> None:
    pace = of(4, n_cores=2)
    steps(pace, _WARM + 2 * _TRIAL, {1: 3.0, 2: 5.0, 4: 2.0})
    assert pace.n_threads == 4
    steps(pace, _LONG + 2 * _TRIAL, {1: 3.0, 2: 1.0, 4: 1.2})
    assert pace.n_threads == 2


def test_what_stays_best_after_a_slow_spell_is_settled_for() -> None:
    pace = of(4, n_cores=2)
    steps(pace, 200, {1: 3.0, 2: 1.0, 4: 1.2})
    steps(pace, 40, {1: 9.0, 2: 9.0, 4: 5.0})
    used = steps(pace, 3000, {1: 3.0, 2: 1.3, 4: 1.2})
    assert used.count(2) < 5 * _TRIAL
    assert 1 not in used[2 * _STAY :]


def test_prompts_choose_for_themselves_and_never_shrink_to_one_thread() -> None:
    paces = Paces(4, n_cores=2)
    assert set(steps(paces.of_decoding(1), 100, {2: 1.0, 4: 1.3})[-50:]) == {2}
    assert set(steps(paces.of_prompts(), 100, {2: 1.3, 4: 1.0})[-50:]) == {4}
    assert 1 not in steps(paces.of_prompts(), 200, {1: 1.0, 2: 9.0, 4: 9.0})


def test_numbers_of_rows_are_measured_apart_as_far_as_they_differ() -> None:
    paces = Paces(2)
    steps(paces.of_decoding(1), 20, {2: 1.0})
    steps(paces.of_decoding(4), 20, {2: 1.6})
    assert set(steps(paces.of_decoding(1), 100, {2: 1.0, 1: 0.1})) == {2}
    assert paces.of_decoding(3) is paces.of_decoding(4)
    assert len({paces.of_decoding(n) for n in (1, 2, 4, 5, 9)}) == 5


def test_a_number_that_is_set_is_kept() -> None:
    assert set(steps(of(3), 3000, {3: 1.0, 2: 0.5})) == {3}
