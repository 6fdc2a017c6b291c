"""Pace: on how many threads one kind of step runs, found by trying. Paces: those of a model.

Two threads of one core share what it computes with, and many cores share one memory: more threads
are not always faster. And they wait for each other some hundred times in a step: one that has lost
its core to another process holds the others for a time slice, again and again, and then one thread
alone is faster. Knows durations only, not what is computed.
"""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

log = logging.getLogger("rushlight.engine")

_SLOW = 1.5  # times the best duration from which on all other numbers are tried
_TRIAL = 5  # steps of a trial, of each number
_WARM = 8  # steps until the first trial: what they read may come from the disk
_STAY = 64  # steps until the next trial where one is urgent
_LONG = 1024  # steps until the next one where nothing is wrong
_MANY = 4  # cores from which on half of them are tried


class Pace:
    """Chooses a number of threads for the next step.

    choices: numbers, the likeliest first. refuge: one more to be tried where steps have become
    slow; 0 = none. What is chosen then is soon compared with the others again.
    """

    def __init__(self, kind: str, choices: Sequence[int], refuge: int = 0) -> None:
        self._kind, self._choices = kind, tuple(choices)
        self._refuge = 0 if refuge in choices else refuge
        self._chosen = self._choices[0]
        self._home = self._chosen  # what is best where nothing is wrong
        self._trial: deque[int] = deque()  # the next steps' numbers
        self._n_settled = _LONG - _WARM  # steps since the last trial
        self._best_s = float("inf")  # of a step on one of the choices
        self._recent_s: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_TRIAL))

    @property
    def n_threads(self) -> int:
        """For the next step."""
        return self._trial[0] if self._trial else self._chosen

    def note(self, duration_s: float) -> None:
        """Tell how long a step took on the threads asked for."""
        n = self.n_threads
        self._recent_s[n].append(duration_s)
        if n != self._refuge:
            # A best of long ago fades: steps take longer as the context grows.
            self._best_s = min(self._best_s * 1.001, duration_s)
        if self._trial:
            self._trial.popleft()
            if not self._trial:
                self._judge()
            return
        self._n_settled += 1
        self._trial.extend(self._worth_trying() * _TRIAL)

    def _worth_trying(self) -> list[int]:
        """What to compare with the number in use now, if there is reason to."""
        recent = self._recent_s[self._chosen]
        if self._n_settled < _STAY or len(recent) < _TRIAL:
            return []
        others = [n for n in self._choices if n != self._chosen]
        if self._chosen == self._home and self._is_slow() and self._refuge:
            return [*others, self._refuge]
        is_time = self._chosen != self._home or self._is_slow() or self._n_settled >= _LONG
        return others if is_time else []

    def _is_slow(self) -> bool:
        return statistics.median(self._recent_s[self._chosen]) > _SLOW * self._best_s

    def _judge(self) -> None:
        median_s = {n: statistics.median(times) for n, times in self._recent_s.items()}
        best = min(median_s, key=lambda n: median_s[n])
        if best != self._chosen:
            told = ", ".join(f"{n}: {1e3 * time:.3g} ms" for n, time in sorted(median_s.items()))
            log.info("%s: threads are %d now, were %d (%s)", self._kind, best, self._chosen, told)
        is_sure = best == self._chosen or self._n_settled >= _LONG
        if is_sure and best != self._refuge:
            self._home = best
        self._chosen = best
        self._n_settled = 0
        for other in median_s.keys() - {best}:
            del self._recent_s[other]


class Paces:
    """One for prompts, and one for all numbers of decoded rows that take about the same time.

    n_threads: at most; n_cores: cores that these share, where fewer may be tried; 0 = they may not.
    """

    def __init__(self, n_threads: int, n_cores: int = 0) -> None:
        each_core = min(n_cores, n_threads) or n_threads
        # Half the cores may be enough for all that memory gives; arithmetic wants every one.
        half = [each_core // 2] if n_cores and each_core >= _MANY else []
        self._choices = _distinct(each_core, n_threads, *half)
        self._prompts = Pace("prompts", _distinct(each_core, n_threads))
        self._decoding: dict[int, Pace] = {}

    def of_prompts(self) -> Pace:
        """A chunk of a prompt: seconds of a row."""
        return self._prompts

    def of_decoding(self, n_rows: int) -> Pace:
        """A step that reads n_rows: its seconds."""
        most = n_rows if n_rows <= 2 else (n_rows + 3) // 4 * 4  # as they are read (matmul.py)
        if most not in self._decoding:
            kind = f"decoding of {most}" if most > 1 else "decoding"
            self._decoding[most] = Pace(kind, self._choices, refuge=1)
        return self._decoding[most]


def _distinct(*numbers: int) -> list[int]:
    return list(dict.fromkeys(numbers))
