"""One thread or all: simulated steps with a core that comes and goes."""

from __future__ import annotations

from engine.model.pace import _STAY, _TRIAL, Pace


def steps(pace: Pace, n: int, seconds: dict[int, float]) -> list[int]:
    """Thread counts of n steps that take seconds[threads] each."""
    used = []
    for _ in range(n):
        used.append(pace.n_threads)
        pace.note(seconds[pace.n_threads])
    return used


def test_an_undisturbed_machine_uses_all_threads_always() -> None:
    assert set(steps(Pace(2), 1000, {2: 1.0, 1: 1.7})) == {2}


def test_a_growing_context_is_no_disturbance() -> None:
    pace = Pace(2)
    for i in range(3000):
        pace.note(1.0 + i / 1000)
        assert pace.n_threads == 2


def test_one_thread_while_a_core_is_taken_and_all_again_afterwards() -> None:
    pace = Pace(2)
    steps(pace, 100, {2: 1.0, 1: 1.7})
    disturbed = steps(pace, 300, {2: 3.0, 1: 1.8})
    assert disturbed[2 * _TRIAL + 1 : _STAY] == [1] * (_STAY - 2 * _TRIAL - 1)
    assert disturbed.count(2) < 40
    after = steps(pace, 2 * _STAY, {2: 1.0, 1: 1.7})
    assert after[-10:] == [2] * 10


def test_all_threads_stay_where_one_would_be_slower_still() -> None:
    pace = Pace(4)
    steps(pace, 10, {4: 1.0, 1: 3.5})
    used = steps(pace, 500, {4: 2.0, 1: 3.5})
    assert used.count(1) < 500 * 2 * _TRIAL / _STAY


def test_a_single_thread_has_no_choice() -> None:
    assert set(steps(Pace(1), 200, {1: 1.0})) == {1}
