"""What each policy counts, on a GPU or two; every entry of the registry keeps the contract."""

import math
from collections.abc import Sequence

import pytest

from foretell.devices import parse_slice
from foretell.errors import UnknownNameError
from foretell.scheduling import (
    POLICIES,
    Contention,
    Demand,
    Job,
    MeasuredSlowdowns,
    PlaceKind,
    Profile,
    Slowdowns,
    build_cluster,
    make_policy,
    simulate,
)
from foretell.scheduling.jobs import Run
from foretell.scheduling.policies.slowdown_packing import SlowdownPacking
from scheduling.worlds import H200, KIND, cluster, profile


def nothing(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
    return [1.0] * len(members)


def starts(
    name: str, members: Sequence[Profile], gpus: int = 1, rule: Slowdowns = nothing, kind=KIND, apart=()
) -> list[float]:
    runs = {}
    work = [Job(f"j{number}", member, 0.0, 10.0) for number, member in enumerate(members)]
    policy = make_policy(name, rule, rule, apart)
    simulate(work, cluster(gpus, kind), policy, rule, lambda run: runs.update({run.job.name: run.start_s}) or ())
    return [runs[job.name] for job in work]


@pytest.mark.parametrize("name", list(POLICIES))
def test_idle_gpus_are_used_first(name: str) -> None:
    assert starts(name, [profile(0, occupancy=0.1, utilisation=0.1, sm_share=0.1)] * 3, gpus=3) == [0, 0, 0]


def test_exclusive_runs_one_after_the_other() -> None:
    assert starts("exclusive", [profile(0, occupancy=0.1)] * 3) == [0, 10, 20]


def test_slots_count_jobs_and_nothing_else() -> None:
    full = profile(0, occupancy=1.0, utilisation=1.0)
    assert starts("slots", [full] * 3) == [0, 10, 20]  # one slot: the paper's slot packing
    assert starts("slots", [full] * 3, kind=PlaceKind(KIND.name, H200, None, "mps", 3, slots=2)) == [0, 0, 10]


@pytest.mark.parametrize(("name", "field"), [("occupancy", "occupancy"), ("utilisation", "utilisation")])
def test_packing_by_load_adds_up_to_one(name: str, field: str) -> None:
    members = [profile(0, **{field: 0.6}), profile(1, **{field: 0.4}), profile(2, **{field: 0.1})]
    assert starts(name, members) == [0, 0, 10]  # 0.6 + 0.4, and no room for another tenth


def test_slowdown_packing_keeps_the_limits_of_all_with_a_margin() -> None:
    def rule(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
        return [1.4 if len(members) > 1 else 1.0] * len(members)

    loose, strict, close = profile(0, limit=2.0), profile(1, limit=1.3), profile(2, limit=1.45)
    assert starts("slowdown", [loose, loose], rule=rule) == [0, 0]
    assert starts("slowdown", [loose, strict], rule=rule) == [0, 10]
    assert starts("slowdown", [strict, loose], rule=rule) == [0, 10]
    assert starts("slowdown", [loose, close], rule=rule) == [0, 10]  # 1.4 may be 1.54
    assert starts("oracle", [loose, close], rule=rule) == [0, 0]


def test_slowdown_packing_refuses_what_gains_nothing() -> None:
    def rule(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
        return [float(len(members))] * len(members)

    assert starts("slowdown", [profile(0)] * 2, rule=rule) == [0, 10]


def test_slowdown_packing_takes_the_partner_that_gains_most() -> None:
    names = {("p0", "p1"): 1.9, ("p0", "p2"): 1.1, ("p1", "p2"): 1.9}
    rule = MeasuredSlowdowns({("mps", pair): (s, s) for pair, s in names.items()}, lambda kind, m: [9.0] * len(m))
    # one job runs; when it ends, the place takes the oldest, and the one that fits best to it
    first, second, third = profile(0), profile(1), profile(2)
    blocker = profile(3, memory_mib=KIND.memory_mib)
    assert starts("slowdown", [blocker, first, second, third], rule=rule) == [0, 10, 21, 10]


def test_a_slice_that_breaks_the_limit_is_left_to_others() -> None:
    slice_kind = PlaceKind("h200 mig:1g.18gb", H200, parse_slice("mig:1g.18gb", H200), "exclusive", 1)
    demands = {KIND.name: Demand(1000.0), slice_kind.name: Demand(5000.0, slice_slowdown=5.0)}
    places = build_cluster([(slice_kind,), (KIND,)])
    for limit, used in ((2.0, {1}), (None, {0, 1})):
        runs = []
        work = [Job(f"j{number}", Profile(0, "p", demands, limit), 0.0, 10.0) for number in range(2)]
        simulate(
            work,
            places,
            make_policy("slowdown", Contention(), Contention()),
            Contention(),
            lambda run, runs=runs: runs.append(run) or (),
        )
        assert {run.place for run in runs} == used
        assert all(run.kept for run in runs)


def test_profiles_that_cannot_share_are_kept_apart_by_all() -> None:
    members = [profile(0, occupancy=0.1, utilisation=0.1), profile(1, occupancy=0.1, utilisation=0.1)]
    for name in ("occupancy", "utilisation", "slowdown"):
        assert starts(name, members) == [0, 0]
        assert starts(name, members, apart={(0, 1), (1, 0)}) == [0, 10]


def test_forgotten_groups_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduling.worlds import jobs, profiles

    def makespan() -> float:
        rule = Contention()
        return simulate(jobs(profiles(9), 300, 8), cluster(4), SlowdownPacking(rule), rule).makespan_s

    before = makespan()
    monkeypatch.setattr("foretell.scheduling.slowdowns._MOST_REMEMBERED", 3)
    monkeypatch.setattr("foretell.scheduling.simulation._VOID_PER_PLACE", 1)
    assert makespan() == before
    monkeypatch.setattr("foretell.scheduling.policies.slowdown_packing._MOST_GROUPS", 3)
    assert makespan() == pytest.approx(before, rel=0.2)  # pairs that are judged twice count twice for what is usual


def test_what_ran_together_is_known_the_next_time() -> None:
    true = MeasuredSlowdowns({("mps", ("p0", "p1")): (1.0, 3.0)}, nothing)
    strict, loose = profile(1, limit=1.5), profile(0)
    work = [Job(f"{number}{one.name}", one, 100.0 * number, 10.0) for number in range(3) for one in (loose, strict)]
    for learns, broken in ((True, 1), (False, 3)):
        totals = simulate(work, cluster(1), SlowdownPacking(nothing, learns=learns), true)
        assert (totals.limited, totals.broken) == (3, broken)


@pytest.mark.parametrize(
    ("first_s", "slowdown", "shares"), [(0.001, 2.1, False), (100.0, 2.9, True), (100.0, 3.1, False)]
)
def test_a_job_that_was_fast_may_be_slowed_down_more_later(first_s: float, slowdown: float, shares: bool) -> None:
    # alone it takes 200 s, and may take 400: after 100 s at full speed there are 300 s left for the second half
    rule = MeasuredSlowdowns({("mps", ("p0", "p1")): (slowdown, 1.0)}, nothing)
    limited, beside, waits = profile(0, limit=2.0), profile(2), profile(1)
    work = [Job("a", limited, 0.0, 200.0), Job("c", beside, 0.0, first_s), Job("b", waits, 0.0, 1000.0)]
    runs: dict[str, Run] = {}

    def done(run: Run) -> tuple[Job, ...]:
        runs[run.job.name] = run
        return ()

    simulate(
        work, cluster(1, PlaceKind(KIND.name, H200, None, "mps", 2)), SlowdownPacking(rule, margin=0.0), rule, done
    )
    assert runs["a"].kept
    assert (runs["b"].start_s < runs["a"].end_s) == shares
    assert runs["a"].slowdown == pytest.approx((100 + 100 * slowdown) / 200 if shares else 1.0)


def test_a_job_that_goes_with_everybody_is_not_wasted_on_its_like(monkeypatch: pytest.MonkeyPatch) -> None:
    # two light jobs gain most, but then the heavy ones, which halve each other, have no partner
    def rule(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
        heavy = sum(member.number < 3 for member in members)
        return [(1.25 if heavy < 2 else 2.0) if member.number < 3 and len(members) > 1 else 1.0 for member in members]

    pair = PlaceKind(KIND.name, H200, None, "mps", 2)
    heavy, light = [profile(number) for number in range(3)], [profile(number) for number in range(3, 6)]
    work = [Job(f"j{number}", one, 0.0, 10.0) for number, one in enumerate([*light, *heavy] * 4)]
    thrifty = simulate(work, cluster(2, pair), SlowdownPacking(rule), rule)
    monkeypatch.setattr("foretell.scheduling.policies.slowdown_packing._FEWEST_PAIRS", math.inf)
    greedy = simulate(work, cluster(2, pair), SlowdownPacking(rule), rule)
    assert thrifty.makespan_s < greedy.makespan_s


def test_an_unknown_policy_names_the_closest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'occupancy'"):
        make_policy("occupancies", nothing, nothing)
