"""Jobs of several GPUs: all at once, on whole GPUs of one kind, and nobody else meanwhile."""

import random
from itertools import pairwise

import pytest

from foretell.devices import parse_slice
from foretell.errors import InputError
from foretell.scheduling import (
    POLICIES,
    Cluster,
    Contention,
    Demand,
    Job,
    PlaceKind,
    Profile,
    Run,
    Totals,
    build_cluster,
    make_policy,
    simulate,
)
from scheduling.worlds import ALONE, H200, KIND, cluster, profile

every_policy = pytest.mark.parametrize("name", list(POLICIES))


def gang(number: int, gpus: int, *kinds: PlaceKind, **numbers: float) -> Profile:
    demand = Demand(**({"alone_ms": 1000.0} | numbers))
    return Profile(number, f"g{number}", {kind.name: demand for kind in kinds or (KIND,)}, gpus=gpus)


def run(work: list[Job], places: Cluster, name: str = "slowdown") -> tuple[Totals, dict[str, Run]]:
    rule, runs = Contention(), {}
    totals = simulate(work, places, make_policy(name, rule, rule), rule, lambda r: runs.update({r.job.name: r}) or ())
    return totals, runs


def test_a_gang_waits_until_enough_gpus_are_idle_and_takes_all_of_them() -> None:
    single, pair = profile(0, sm_share=0.1), gang(1, 2)
    work = [Job("a", single, 0.0, 5.0), Job("both", pair, 1.0, 10.0), Job("b", single, 2.0, 3.0)]
    totals, runs = run(work, cluster(2))
    assert runs["b"].end_s == pytest.approx(5.0)  # overtakes: a GPU is idle
    assert (runs["both"].start_s, runs["both"].end_s) == pytest.approx((5.0, 15.0))
    assert runs["both"].places == (0, 1)
    assert runs["both"].slowdown == 1
    assert totals.jobs == 3
    assert totals.work_s == pytest.approx(5 + 3 + 2 * 10)  # it works on both GPUs
    assert totals.utilisation == pytest.approx(28 / 30)


def test_jobs_start_on_all_gpus_of_a_gang_when_it_ends() -> None:
    work = [Job("both", gang(1, 2), 0.0, 10.0), *(Job(f"j{n}", profile(0), 1.0, 4.0) for n in range(2))]
    _, runs = run(work, cluster(2), "exclusive")
    assert {runs[name].start_s for name in ("j0", "j1")} == {10.0}
    assert {runs[name].place for name in ("j0", "j1")} == {0, 1}


def test_a_stream_of_small_jobs_does_not_keep_a_gang_waiting_for_ever() -> None:
    small = profile(0)
    stream = [Job(f"j{n}", small, 0.7 * n, 1.4) for n in range(400)]
    work = sorted([*stream, Job("all", gang(1, 2), 3.0, 5.0)], key=lambda job: job.arrival_s)
    _, runs = run(work, cluster(2), "exclusive")
    overtook = [r for r in runs.values() if r.job.arrival_s > 3.0 and r.start_s < runs["all"].start_s]
    assert 0 < len(overtook) <= 8 * 2


def test_places_that_were_left_empty_for_the_oldest_job_are_filled_again() -> None:
    """Only the first kind can run the oldest job; meanwhile the second kind is left empty."""
    other = PlaceKind("h200, mps 2", H200, None, "mps", 1)
    anywhere = Profile(0, "p0", {kind.name: Demand(1000.0) for kind in (ALONE, other)})
    only_first, only_second = profile(1, ALONE), profile(2, other)
    places = build_cluster([(ALONE,), (other,)])
    work = [Job("long", only_first, 0.0, 100.0), Job("oldest", only_first, 0.0, 100.0)]
    work += [Job(f"j{n}", (only_second, anywhere)[n % 2], 0.1, 1.0) for n in range(60)]
    totals, runs = run(work, places, "exclusive")
    assert totals.jobs == 62
    begun = sorted(r.start_s for r in runs.values() if r.place == 1)
    assert begun[0] < 1
    assert any(later - earlier > 50 for earlier, later in pairwise(begun))  # left empty until the oldest has started
    assert begun[-1] < 150


@every_policy
def test_nobody_else_runs_on_the_gpus_of_a_gang(name: str) -> None:
    rng = random.Random(7)
    slices = tuple(
        PlaceKind(f"h200 {part}", H200, parse_slice(part, H200), "exclusive", 1) for part in ("mig:3g.71gb",) * 2
    )
    places = build_cluster([*[(KIND,)] * 4, *[(ALONE,)] * 3, slices])
    everywhere = {kind.name for kind in (KIND, ALONE, *slices)}
    singles = [
        Profile(n, f"p{n}", dict.fromkeys(everywhere, Demand(1000.0, sm_share=share, occupancy=share)), 2.0)
        for n, share in enumerate((0.2, 0.5, 0.9))
    ]
    kinds = [*singles, gang(3, 2, KIND, ALONE), gang(4, 4, KIND, ALONE), gang(5, 3, ALONE)]
    work, now_s = [], 0.0
    for number in range(400):
        work.append(Job(f"j{number}", rng.choice(kinds), now_s, rng.expovariate(0.1) + 0.1))
        now_s += rng.expovariate(0.5)
    totals, runs = run(work, places, name)
    assert totals.jobs == 400
    by_place: dict[int, list[Run]] = {}
    for one in runs.values():
        assert len(set(one.places)) == one.job.profile.gpus
        assert len({places.places[place].kind.name for place in one.places}) == 1
        if one.job.profile.gpus > 1:
            assert places.places[one.place].kind.slice is None
            assert one.end_s - one.start_s == pytest.approx(one.job.steps)
        for place in one.places:
            by_place.setdefault(place, []).append(one)
    for there in by_place.values():
        for one in there:
            if one.job.profile.gpus > 1:
                assert not [
                    r for r in there if r is not one and r.start_s < one.end_s - 1e-6 and r.end_s > one.start_s + 1e-6
                ]


def test_a_gang_takes_the_fastest_kind_that_keeps_its_limit() -> None:
    demands = {KIND.name: Demand(1000.0), ALONE.name: Demand(2000.0)}
    places = build_cluster([(KIND,), (KIND,), (ALONE,), (ALONE,)])
    free, limited = Profile(0, "free", demands, gpus=2), Profile(1, "limited", demands, limit_ms=1500.0, gpus=2)
    work = [Job("a", free, 0.0, 10.0), Job("b", free, 0.0, 10.0), Job("c", limited, 1.0, 1.0)]
    _, runs = run(work, places)
    assert (runs["a"].places, runs["b"].places) == ((0, 1), (2, 3))
    assert runs["c"].places == (0, 1)
    assert runs["c"].kept


def test_more_gpus_than_there_are_of_any_kind_are_refused() -> None:
    places = build_cluster([(KIND,), (KIND,), (ALONE,)])
    with pytest.raises(InputError, match="'g1' needs 3 whole GPUs of one kind, and the cluster has 2 for it"):
        run([Job("a", gang(1, 3, KIND, ALONE), 0.0, 1.0)], places)
