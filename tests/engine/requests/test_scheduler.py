"""Who waits, who runs, what the next step is: the scheduler and its policies, with requests that
nobody answers.
"""

from __future__ import annotations

import pytest

from engine import Generation, QueueFull, RequestOptions, SamplingParams
from engine.requests.policy import POLICIES
from engine.requests.scheduler import Scheduler
from engine.requests.sequence import Interruption, Sequence


class Request(Sequence):
    """n_to_prefill: tokens that it says are not read."""

    n_to_prefill = 100  # type: ignore[assignment]

    def __init__(self, priority: int = 0, came_s: float = 0.0, work_s: float = 0.0) -> None:
        self.options = RequestOptions(priority=priority)
        self.generation = Generation([1], SamplingParams(), print, self.options)
        self.submitted_s, self.work_s = came_s, work_s
        self.interruption = None


def scheduler(policy: str = "fcfs", max_running: int = 1, max_waiting: int = 9) -> Scheduler:
    return Scheduler(POLICIES[policy], max_running, max_waiting)


def started(of: Scheduler, *requests: Request) -> list[int]:
    """Indices of requests in the order in which they run, one after the other."""
    for request in requests:
        of.add(request, lambda: 1.0)
    order = []
    while first := of.first_waiting():
        of.start(first)
        of.end(first)
        order.append(requests.index(first))  # type: ignore[arg-type]
    return order


def test_first_come_first_served() -> None:
    assert started(scheduler(), Request(priority=1), Request(priority=5), Request()) == [0, 1, 2]


def test_the_shortest_prompt_first_but_none_waits_for_ever() -> None:
    long = Request(came_s=0, work_s=60)
    soon, late = Request(came_s=10, work_s=1), Request(came_s=61, work_s=1)
    assert started(scheduler("sjf"), long, late, soon) == [2, 0, 1]


def test_the_highest_priority_first_and_equals_as_they_came() -> None:
    requests = [Request(0), Request(2), Request(-1), Request(2)]
    assert started(scheduler("priority"), *requests) == [1, 3, 0, 2]


def test_a_higher_priority_takes_a_place() -> None:
    s = scheduler("priority", max_running=2)
    low, lower, equal, high = Request(1), Request(0), Request(0), Request(5)
    for request in (low, lower):
        s.add(request, lambda: 1.0)
        s.start(request)
    s.add(equal, lambda: 1.0)
    assert s.to_preempt() is None
    s.add(high, lambda: 1.0)
    lower.interruption = Interruption.CANCELLED  # leaves anyway; in the queue nobody would end it
    assert s.to_preempt() is None
    lower.interruption = None
    assert s.to_preempt() is lower
    s.pause(lower)
    assert s.first_waiting() is high
    s.start(high)
    assert s.to_preempt() is None
    assert s.first_waiting() is lower  # it came before its equal


def test_only_that_policy_preempts() -> None:
    s = scheduler("fcfs")
    s.add(Request(0), lambda: 1.0)
    s.start(s.waiting[0])
    s.add(Request(9), lambda: 1.0)
    assert s.to_preempt() is None


def test_a_full_queue_says_when_to_come_again() -> None:
    s = scheduler(max_running=2, max_waiting=1)
    for _ in range(3):
        s.add(Request(), lambda: 1.0)
    with pytest.raises(QueueFull, match="3 requests are waiting already; try again in 7 s") as full:
        s.add(Request(), lambda: 7.2)
    assert full.value.retry_after_s == 7.2


def test_chunks_and_tokens_take_turns() -> None:
    s = scheduler(max_running=3)
    reader, writer, other = Request(), Request(), Request()
    for request in (reader, writer, other):
        s.add(request, lambda: 1.0)
        s.start(request)
    writer.n_to_prefill = other.n_to_prefill = 0
    steps = [s.next_step() for _ in range(4)]
    assert [step and step.is_prefill for step in steps] == [True, False, True, False]
    assert steps[0] is not None and steps[0].sequences == (reader,) and steps[0].others_wait
    assert steps[1] is not None and steps[1].sequences == (writer, other)
    reader.n_to_prefill = 0
    step = s.next_step()
    assert step is not None and step.sequences == (reader, writer, other)
    for request in (reader, writer, other):
        s.end(request)
    assert s.next_step() is None
