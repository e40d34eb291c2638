"""Work is conserved, memory is never exceeded, and the clock agrees with arithmetic, with SimPy and with tiny steps."""

import tracemalloc
from collections.abc import Sequence

import pytest

from foretell.errors import InputError
from foretell.scheduling import (
    POLICIES,
    Contention,
    Demand,
    Job,
    MeasuredSlowdowns,
    PlaceKind,
    Profile,
    Run,
    Totals,
    make_policy,
    simulate,
)
from foretell.scheduling.simulation import Simulation
from scheduling.worlds import KIND, cluster, jobs, profile, profiles

every_policy = pytest.mark.parametrize("name", list(POLICIES))


def run_all(work: Sequence[Job], gpus: int, name: str = "slowdown", slowdowns=None) -> tuple[Totals, dict[str, Run]]:
    rule = slowdowns or Contention()
    runs: dict[str, Run] = {}

    def done(run: Run) -> tuple[()]:
        runs[run.job.name] = run
        return ()

    return simulate(work, cluster(gpus), make_policy(name, rule, rule), rule, done), runs


def halves(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
    """Whoever is not alone takes as many times as long as there are members."""
    return [float(len(members))] * len(members)


def test_two_jobs_that_halve_each_other_end_as_arithmetic_says() -> None:
    one = profile(0)
    # b comes when a has done 2 of 10 s; together both run at half speed
    work = [Job("a", one, 0.0, 10.0), Job("b", one, 2.0, 3.0)]
    policy = make_policy("slots", halves, halves)
    shared = PlaceKind("h200, mps", KIND.device, None, "mps", 2, slots=2)
    runs: dict[str, Run] = {}
    totals = simulate(work, cluster(1, shared), policy, halves, lambda run: runs.update({run.job.name: run}) or ())
    assert runs["b"].end_s == pytest.approx(8.0)  # 3 s of work at half speed
    assert runs["a"].end_s == pytest.approx(13.0)  # 2 + 3 of its work by then, 5 more alone
    assert runs["a"].slowdown == pytest.approx(1.3)
    assert totals.makespan_s == pytest.approx(13.0)
    assert totals.work_rate == pytest.approx(1.0)
    assert totals.utilisation == pytest.approx(1.0)


@every_policy
def test_work_is_conserved(name: str) -> None:
    work = list(jobs(profiles(6), 400, every_s=9))
    totals, runs = run_all(work, 4, name)
    assert len(runs) == totals.jobs == len(work)
    asked = sum(job.alone_s(job.profile.demands[KIND.name]) for job in work)
    assert totals.work_s == pytest.approx(asked)
    assert totals.work_rate * totals.makespan_s * 4 == pytest.approx(asked)
    for job in work:
        run = runs[job.name]
        assert run.start_s >= job.arrival_s
        assert run.end_s - run.start_s >= job.alone_s(job.profile.demands[KIND.name]) * (1 - 1e-9)


@every_policy
def test_no_place_is_ever_above_its_memory_or_its_number_of_jobs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [0]

    def watched(self: Simulation, state) -> None:
        assert sum(member.demand.memory_mib for member in state.members) <= KIND.memory_mib
        assert len(state.members) <= KIND.max_jobs
        seen[0] = max(seen[0], len(state.members))
        plan(self, state)

    plan = Simulation._plan
    monkeypatch.setattr(Simulation, "_plan", watched)
    run_all(list(jobs(profiles(6), 300, every_s=5)), 3, name)
    assert (seen[0] == 1) == (name in ("exclusive", "slots"))


@pytest.mark.parametrize("name", ["slowdown", "occupancy", "exclusive"])
def test_the_loop_agrees_with_simpy(name: str) -> None:
    simpy = pytest.importorskip("simpy")
    work = list(jobs(profiles(5), 120, every_s=12))
    totals, runs = run_all(work, 3, name)
    ends = ends_by_simpy(simpy, work, runs)
    for job in work:
        assert ends[job.name] == pytest.approx(runs[job.name].end_s, rel=1e-9)
    assert totals.last_s == pytest.approx(max(ends.values()))


def ends_by_simpy(simpy, work: Sequence[Job], runs: dict[str, Run]) -> dict[str, float]:
    """When jobs end that start where and when the schedule says: a process for each, interrupted at every change."""
    env = simpy.Environment()
    present: dict[int, list] = {}
    ends: dict[str, float] = {}
    rule = Contention()

    def rates(place: int) -> None:
        members = present[place]
        for entry, slowdown in zip(members, rule(KIND, [entry["job"].profile for entry in members])):
            entry["rate"] = 1 / slowdown

    def change(place: int, but: dict) -> None:
        rates(place)
        for entry in present[place]:
            if entry is not but:
                entry["process"].interrupt()

    def life(job: Job, entry: dict):
        run = runs[job.name]
        yield env.timeout(run.start_s)
        present.setdefault(run.place, []).append(entry)
        change(run.place, entry)
        left_s = job.alone_s(job.profile.demands[KIND.name])
        while left_s > 1e-9:
            began, rate = env.now, entry["rate"]
            try:
                yield env.timeout(left_s / rate)
                left_s = 0.0
            except simpy.Interrupt:
                left_s -= (env.now - began) * rate
        present[run.place].remove(entry)
        ends[job.name] = env.now
        change(run.place, entry)

    for job in work:
        entry: dict = {"job": job}
        entry["process"] = env.process(life(job, entry))
    env.run()
    return ends


def test_the_loop_agrees_with_tiny_steps_of_time() -> None:
    work = list(jobs(profiles(4), 12, every_s=30))
    _, runs = run_all(work, 2, "occupancy")
    step_s, now_s = 0.02, 0.0
    left = {job.name: job.alone_s(job.profile.demands[KIND.name]) for job in work}
    ends: dict[str, float] = {}
    while len(ends) < len(work):
        now_s += step_s
        for place in (0, 1):
            here = [
                job for job in work if runs[job.name].place == place and runs[job.name].start_s < now_s
                and job.name not in ends
            ]  # fmt: skip
            for job, slowdown in zip(here, Contention()(KIND, [job.profile for job in here])):
                left[job.name] -= step_s / slowdown
                if left[job.name] <= 0:
                    ends[job.name] = now_s
    for name, end_s in ends.items():
        assert end_s == pytest.approx(runs[name].end_s, abs=1.0)


def test_memory_does_not_grow_with_the_number_of_jobs() -> None:
    def peak(count: int) -> int:
        rule, kinds = Contention(), profiles(6)
        policy = make_policy("slowdown", rule, rule)
        tracemalloc.start()
        simulate(jobs(kinds, count, every_s=30), cluster(8), policy, rule)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    assert peak(8000) < 2 * peak(1000)


def test_the_policy_decides_with_what_is_predicted_and_time_advances_with_what_is_true() -> None:
    def lies(kind: PlaceKind, members: Sequence[Profile]) -> list[float]:
        return [1.0] * len(members)

    limited = [profile(0, limit=1.5), profile(1, limit=1.5)]
    work = [Job(f"j{number}", limited[number], 0.0, 10.0) for number in (0, 1)]
    true = MeasuredSlowdowns({("mps", ("p0", "p1")): (3.0, 1.2)}, Contention())
    deceived = simulate(work, cluster(1), make_policy("slowdown", lies, true), true)
    assert (deceived.limited, deceived.broken) == (2, 1)  # together until p1 ends, then p0 alone: 2.2 in the mean
    knowing = simulate(work, cluster(1), make_policy("oracle", lies, true), true)
    assert (knowing.broken, knowing.makespan_s) == (0, pytest.approx(20.0))


def test_the_oldest_job_is_overtaken_only_so_often() -> None:
    large, small = profile(0, memory_mib=120_000), profile(1, memory_mib=40_000, sm_share=0.3)
    # small jobs come so fast that the GPU is never idle; the large one needs all of it
    work = [Job("s0", small, 0.0, 10.0), Job("large", large, 1.0, 1.0)]
    work += [Job(f"s{number}", small, 1.0 + number, 10.0) for number in range(1, 200)]
    _, runs = run_all(work, 1)
    before = sum(run.start_s < runs["large"].start_s for run in runs.values())
    assert before <= 12


@pytest.mark.parametrize(
    ("arrivals", "steps", "expected"),
    [
        ([-1.0], 1.0, "at least 0"),
        ([float("nan")], 1.0, "at least 0"),
        ([5.0, 4.0], 1.0, "sort them"),
        ([0.0], 0.0, "above 0"),
        ([0.0], float("inf"), "above 0"),
        ([0.0], float("nan"), "above 0"),
    ],
)
def test_impossible_times_are_refused(arrivals: list[float], steps: float, expected: str) -> None:
    one = profile(0)
    with pytest.raises(InputError, match=expected):
        run_all([Job("a", one, arrival_s, steps) for arrival_s in arrivals], 1)


def test_a_job_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(InputError, match="fits no place"):
        run_all([Job("a", Profile(0, "a", {"other": Demand(1.0)}), 0.0, 1.0)], 1)


def test_slowdowns_that_never_end_are_refused() -> None:
    endless = lambda kind, members: [float("inf")] * len(members)  # noqa: E731
    two = [Job("a", profile(0), 0.0, 1.0), Job("b", profile(1), 0.0, 1.0)]
    with pytest.raises(InputError, match="not finite"):
        run_all(two, 1, "slots", endless)
