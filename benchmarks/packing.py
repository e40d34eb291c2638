"""Remake table VI of DNN-occu (Mei et al.): makespan, utilisation and waiting by policy, on traces of real clusters.

python benchmarks/packing.py --philly philly_jobs.parquet --alibaba openb_pod_list.parquet --gavel pairs.parquet \
    --report reports/packing.md

Every seed is a window of the trace and a draw of jobs; all policies run the same jobs, so differences are paired.
`benchmarks/packing_worlds.py` says what the jobs are, and what is measured, predicted and made.
"""

import argparse
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretell.devices import find_device
from foretell.scheduling import (
    Contention,
    Demand,
    Job,
    PlaceKind,
    Policy,
    Profile,
    Run,
    Totals,
    build_cluster,
    make_policy,
    simulate,
)
from foretell.scheduling.inputs.traces import Arrival, at_load, poisson, read_alibaba, read_philly, window
from foretell.scheduling.policies.slowdown_packing import SlowdownPacking
from foretell.units import ms
from packing_worlds import World, gavel, h200

GPUS, JOBS, LOAD, LIMIT, LONGEST_S = 16, 1600, 3.0, 2.0, 4 * 3600.0
T_95 = {9: 2.262, 4: 2.776, 1: 12.706}  # Student's t, two-sided
NAMES = {
    "exclusive": "slot packing of the paper: one job a GPU",
    "slots": "two slots a GPU",
    "utilisation": "NVML utilisation ≤ 100 %",
    "occupancy": "occu-packing: occupancy ≤ 100 %",
    "slowdown": "**ours**: predicted slowdowns and limits",
    "blind": "ours, without learning from what ran",
    "oracle": "oracle: true slowdowns",
}


def draw(world: World, trace: Sequence[Arrival] | None, seed: int, load: float = LOAD) -> list[Job]:
    """The jobs of a seed."""
    rng = random.Random(seed)
    entries = list(poisson(JOBS, 600.0, rng)) if trace is None else window(trace, JOBS, rng)
    jobs = []
    for number, entry in enumerate(at_load(entries, load, GPUS, LONGEST_S)):
        profile = rng.choice(world.profiles)
        jobs.append(Job(f"j{number}", profile, entry.arrival_s, ms(entry.duration_s) / profile.best_ms))
    return jobs


def policy_of(world: World, name: str) -> Policy:
    """A policy by its name."""
    if name == "blind":
        return SlowdownPacking(world.predicted, world.apart, learns=False)
    return make_policy(name, world.predicted, world.true, world.apart)


def run_seeds(
    world: World, trace: Sequence[Arrival] | None, seeds: int, policies: Sequence[str], load: float = LOAD
) -> dict[str, list[Totals]]:
    """The sums of every policy and seed."""
    cluster = build_cluster([(world.kind,)] * GPUS)
    found: dict[str, list[Totals]] = {name: [] for name in policies}
    for seed in range(seeds):
        jobs = draw(world, trace, seed, load)
        for name in policies:
            found[name].append(simulate(jobs, cluster, policy_of(world, name), world.true))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of the 95 % interval."""
    half = T_95.get(len(values) - 1, 2.0) * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0
    return statistics.mean(values), half


def table(found: dict[str, list[Totals]]) -> list[str]:
    """Rows of a table; differences are against one job a GPU, seed by seed."""
    lines = [
        "| policy | makespan, h | against slot packing | work a GPU second | against slot packing | "
        "mean wait, h | p95 wait, h | mean slowdown | limits broken |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    base = found["exclusive"]
    for name, runs in found.items():
        makespan = statistics.mean(run.makespan_s for run in runs) / 3600
        less, less_half = interval([run.makespan_s / one.makespan_s - 1 for run, one in zip(runs, base)])
        more, more_half = interval([run.work_rate / one.work_rate - 1 for run, one in zip(runs, base)])
        broken, broken_half = interval([run.broken_share for run in runs])
        waits = [statistics.mean(values) / 3600 for values in zip(*((r.mean_waiting_s, r.p95_waiting_s) for r in runs))]
        slow, rate = (statistics.mean(values) for values in zip(*((r.mean_slowdown, r.work_rate) for r in runs)))
        against = ["–", "–"] if name == "exclusive" else [
            f"{less:+.1%} ± {less_half:.1%}", f"{more:+.1%} ± {more_half:.1%}"
        ]  # fmt: skip
        lines.append(
            f"| {NAMES[name]} | {makespan:.1f} | {against[0]} | {rate:.2f} | {against[1]} | {waits[0]:.1f} | "
            f"{waits[1]:.1f} | {slow:.2f} | {broken:.1%} ± {broken_half:.1%} |"
        )
    return lines


def large(gpus: int, jobs: int, load: float, policy: str) -> str:
    """A large cluster with made-up jobs: seconds of the processor, and the memory of a fresh process."""
    kind = PlaceKind("h200, mps", find_device("h200"), None, "mps", 3)
    rng = random.Random(0)
    profiles = [
        Profile(
            number, f"p{number}",
            {kind.name: Demand(10.0, rng.uniform(1e3, 6e4), rng.uniform(0.1, 0.9), rng.uniform(0.3, 1),
                               rng.uniform(0.1, 1), rng.uniform(0, 0.8))}, LIMIT,
        )
        for number in range(40)
    ]  # fmt: skip

    def arriving() -> Iterator[Job]:
        now_s = 0.0
        for number in range(jobs):
            yield Job(f"j{number}", rng.choice(profiles), now_s, rng.expovariate(1 / 1e5) + 1)
            now_s += rng.expovariate(load * gpus / 1000)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.process_time()
    totals = simulate(
        arriving(), build_cluster([(kind,)] * gpus), make_policy(policy, Contention(), Contention()), Contention()
    )
    seconds = time.process_time() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells = (policy, f"{load:g}", f"{jobs:,}", f"{gpus:,}", f"{seconds / 60:.1f}", f"{seconds / jobs * 1e6:.0f}")
    return f"| {' | '.join(cells)} | {after:.0f} | {after - before:.0f} | {totals.work_rate:.2f} |"


def against_simpy(jobs: int = 20_000, gpus: int = 64) -> str:
    """The same schedule by our loop, and by SimPy with a process a job; SimPy decides nothing, so it has less to do."""
    import simpy

    kind = PlaceKind("h200, mps", find_device("h200"), None, "mps", 2, slots=2)
    rng = random.Random(1)
    profiles = [Profile(n, f"p{n}", {kind.name: Demand(10.0, sm_share=rng.uniform(0.3, 1))}) for n in range(20)]
    work, now_s = [], 0.0
    for number in range(jobs):
        work.append(Job(f"j{number}", rng.choice(profiles), now_s, rng.expovariate(1 / 1e5) + 1))
        now_s += rng.expovariate(1.2 * gpus / 1000)
    rule, runs = Contention(), []
    began = time.process_time()
    simulate(
        work, build_cluster([(kind,)] * gpus), make_policy("slots", rule, rule), rule, lambda r: runs.append(r) or ()
    )
    ours_s = time.process_time() - began

    env, present = simpy.Environment(), [[] for _ in range(gpus)]
    ends: dict[str, float] = {}

    def change(place: int, but: dict) -> None:
        members = present[place]
        for entry, slowdown in zip(members, rule(kind, [entry["profile"] for entry in members])):
            entry["rate"] = 1 / slowdown
            if entry is not but:
                entry["process"].interrupt()

    def life(run: Run, entry: dict) -> Iterator[simpy.Event]:
        present[run.place].append(entry)
        change(run.place, entry)
        left_s = run.job.steps / 100
        while left_s > 1e-9:
            begun, rate = env.now, entry["rate"]
            try:
                yield env.timeout(left_s / rate)
                left_s = 0.0
            except simpy.Interrupt:
                left_s -= (env.now - begun) * rate
        present[run.place].remove(entry)
        change(run.place, entry)
        ends[run.job.name] = env.now

    def arrivals() -> Iterator[simpy.Event]:
        for run in sorted(runs, key=lambda run: run.start_s):
            yield env.timeout(max(0.0, run.start_s - env.now))
            entry: dict = {"profile": run.job.profile}
            entry["process"] = env.process(life(run, entry))

    began = time.process_time()
    env.process(arrivals())
    env.run()
    simpy_s = time.process_time() - began
    worst = max(abs(ends[run.job.name] - run.end_s) / run.end_s for run in runs)
    return (
        f"{jobs:,} jobs on {gpus} GPUs, pairs: our loop {ours_s / jobs * 1e6:.0f} µs a job with its decisions, SimPy "
        f"{simpy_s / jobs * 1e6:.0f} µs without any, {simpy_s / ours_s:.1f} times as long; "
        f"ends differ by at most {worst:.0e}."
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("philly", "alibaba", "gavel", "report"):
        arguments.add_argument(f"--{name}", type=Path)
    arguments.add_argument("--store", type=Path, default=Path("data/h200"))
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--large", nargs=2, metavar=("LOAD", "POLICY"), help="one large run, in this process")
    given = arguments.parse_args()
    if given.large:
        print(large(4096, 1_000_000, float(given.large[0]), given.large[1]))
        return
    lines: list[str] = []

    def say(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)

    traces: dict[str, list[Arrival] | None] = {"Poisson": None}
    if given.philly:
        traces["Philly"] = read_philly(given.philly)
    if given.alibaba:
        traces["Alibaba"] = read_alibaba(given.alibaba)
    worlds = [h200(given.store), *([gavel(given.gavel)] if given.gavel else [])]
    for world in worlds:
        limited = world.with_limit(LIMIT)
        say(f"\n## {world.name}\n", *(f"- {fact}" for fact in world.facts))
        for name, trace in traces.items():
            policies = [*world.policies[:-1], "blind", world.policies[-1]]
            say(f"\n### {world.name}, {name}\n", *table(run_seeds(limited, trace, given.seeds, policies)))
    say(
        "\n## By load and by limit\n",
        "Poisson arrivals, three seeds; makespan against slot packing, and limits broken.\n",
    )
    say("| world | load | limit | ours | | oracle | |", "|---|--:|--:|--:|--:|--:|--:|")
    for world in worlds:
        for load, limit in ((0.8, 2.0), (1.2, 2.0), (3.0, 1.5), (3.0, 3.0)):
            found = run_seeds(world.with_limit(limit), None, 3, ("exclusive", "slowdown", "oracle"), load)
            cells = []
            for name in ("slowdown", "oracle"):
                pairs = zip(found[name], found["exclusive"])
                less = statistics.mean(run.makespan_s / one.makespan_s - 1 for run, one in pairs)
                cells.append(f"{less:+.1%} | {statistics.mean(run.broken_share for run in found[name]):.1%}")
            say(f"| {world.name} | {load:g} | {limit:g} | {' | '.join(cells)} |")
    say("\n## A million jobs on 4,096 GPUs\n", "Made-up jobs of 40 kinds, up to three on a GPU, one process.\n")
    say("| policy | load | jobs | GPUs | processor, min | µs a job | peak MiB | of it by the run | work a GPU second |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for load, policy in ((0.9, "slowdown"), (1.2, "slowdown"), (1.2, "occupancy"), (0.9, "exclusive")):
        command = [sys.executable, __file__, "--large", str(load), policy]
        say(subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout.strip())
    say("\n" + against_simpy())
    if given.report:
        head = [
            "# Packing\n",
            "`python benchmarks/packing.py --philly … --alibaba … --gavel … --report reports/packing.md`\n",
            f"{GPUS} GPUs, {JOBS:,} jobs of one GPU, {given.seeds} seeds, paired; load {LOAD:g} (a backlog, as in the "
            f"paper), every job may be slowed down {LIMIT:g} times in the mean, durations cut at {LONGEST_S / 3600:g} "
            "h. ± is half of a 95 % interval. Work is conserved: work a GPU second rises as the makespan falls. "
            "The margin of our policy was chosen on other seeds.",
        ]
        given.report.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
