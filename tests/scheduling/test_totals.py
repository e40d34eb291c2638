"""The sums of a simulation."""

import random

import pytest

from foretell.scheduling import Job, Run, Totals
from scheduling.worlds import profile


def totals_of(waits: list[float]) -> Totals:
    totals = Totals(1)
    for number, wait_s in enumerate(waits):
        totals.add(Run(Job(f"j{number}", profile(0), 0.0, 1.0), 0, wait_s, wait_s + 1, 1.0, True))
    return totals


def test_the_percentile_is_right_to_a_percent() -> None:
    rng = random.Random(0)
    waits = [rng.lognormvariate(3, 2) for _ in range(2000)]
    assert totals_of(waits).p95_waiting_s == pytest.approx(sorted(waits)[1899], rel=0.01)
    assert totals_of([0.0] * 99 + [100.0]).p95_waiting_s == 0
    assert totals_of([]).p95_waiting_s == 0


def test_nothing_is_divided_by_nothing() -> None:
    empty = Totals(4)
    values = (empty.makespan_s, empty.mean_waiting_s, empty.mean_turnaround_s, empty.utilisation, empty.broken_share)
    assert values == (0, 0, 0, 0, 0)
    assert empty.mean_slowdown == 1
