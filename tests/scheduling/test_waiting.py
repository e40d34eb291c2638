"""Jobs wait by arrival or by length; the oldest one is overtaken only so often, and nothing piles up."""

import random

import pytest

from foretell.scheduling import Contention, Job, make_policy, simulate
from foretell.scheduling.waiting import Waiting
from scheduling.worlds import ALONE, cluster, jobs, profile, profiles

KINDS = [profile(0), profile(1)]


def filled(waiting: Waiting, *lengths: float) -> Waiting:
    for number, steps in enumerate(lengths):
        waiting.add(Job(f"j{number}", KINDS[number % 2], 0.0, steps))
    return waiting


def taken(waiting: Waiting) -> list[str]:
    """All jobs, in the order in which a place that takes the first head would start them."""
    names = []
    while waiting.jobs:
        names.append(waiting.take(min(waiting.heads(), key=lambda head: head[0])[1]).name)
    return names


def test_the_oldest_or_the_longest_goes_first() -> None:
    lengths = (3.0, 9.0, 5.0, 1.0, 7.0)
    assert taken(filled(Waiting(100), *lengths)) == ["j0", "j1", "j2", "j3", "j4"]
    assert taken(filled(Waiting(100, longest_first=True), *lengths)) == ["j1", "j4", "j2", "j0", "j3"]


def test_a_short_job_is_overtaken_only_so_often() -> None:
    waiting = filled(Waiting(2, longest_first=True), 1.0, 9.0, 8.0, 7.0, 6.0)
    assert taken(waiting) == ["j1", "j2", "j0", "j3", "j4"]


def test_what_has_started_is_forgotten() -> None:
    waiting, rng = Waiting(5, longest_first=True), random.Random(0)
    for number in range(500):
        waiting.add(Job(f"j{number}", KINDS[number % 2], 0.0, rng.uniform(1, 100)))
        if waiting.jobs > 20:
            waiting.take(waiting.heads()[0][1])
        # every job that waits is overtaken five times at most while it is the oldest
        assert len(waiting._arrivals) <= waiting.jobs * (5 + 1)
    taken(waiting)
    assert not waiting._arrivals
    assert not waiting._started


@pytest.mark.parametrize("name", ["exclusive", "slowdown"])
def test_the_longest_first_does_the_same_work(name: str) -> None:
    rule = Contention()
    work = [Job(job.name, job.profile, 0.0, job.steps) for job in jobs(profiles(6), 300, 1.0)]
    by_arrival, by_length = (
        simulate(work, cluster(8), make_policy(name, rule, rule), rule, longest_first=longest)
        for longest in (False, True)
    )
    assert by_length.mean_waiting_s > by_arrival.mean_waiting_s
    assert by_length.work_s == pytest.approx(by_arrival.work_s)
    assert by_length.jobs == by_arrival.jobs == 300


def test_one_job_a_gpu_has_the_longest_first_on_two_gpus() -> None:
    kind = profile(0, ALONE)
    work = [Job(f"j{number}", kind, 0.0, steps) for number, steps in enumerate((1, 1, 1, 1, 4))]
    rule = Contention()
    ends = {
        longest: simulate(
            work, cluster(2, ALONE), make_policy("exclusive", rule, rule), rule, longest_first=longest
        ).makespan_s
        for longest in (False, True)
    }
    # the first two start as they come; then the long one waits for two others, or goes before them
    assert ends == {False: 6.0, True: 5.0}
