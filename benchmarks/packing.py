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
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from foretell.devices import find_device
from foretell.scheduling import (
    Contention,
    Demand,
    Job,
    PlaceKind,
    Policy,
    Profile,
    Totals,
    build_cluster,
    make_policy,
    simulate,
)
from foretell.scheduling.inputs.traces import Arrival, at_load, poisson, read_alibaba, read_philly, window
from foretell.scheduling.policies.slowdown_packing import SlowdownPacking
from foretell.scheduling.simulation import Simulation
from foretell.scheduling.state import PlaceState
from foretell.units import ms
from packing_worlds import World, gavel, h200

GPUS, JOBS, LOAD, LIMIT, LONGEST_S = 16, 1600, 3.0, 2.0, 4 * 3600.0
T_95 = {9: 2.262, 4: 2.776, 1: 12.706}  # Student's t, two-sided
LONGEST = ", longest first"
NAMES = {
    "exclusive": "slot packing of the paper: one job a GPU",
    "slots": "two slots a GPU",
    "utilisation": "NVML utilisation ≤ 100 %",
    "occupancy": "occu-packing: occupancy ≤ 100 %",
    "slowdown": "**ours**: predicted slowdowns and limits",
    "blind": "ours, as a plan: with a margin, without learning from what ran",
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
        return SlowdownPacking(world.predicted, world.apart, margin=world.margins, learns=False)
    # who sees what ran together errs once a group: no margin
    return make_policy(name, world.predicted, world.true, world.apart, margin=0.0)


def run_seeds(
    world: World, trace: Sequence[Arrival] | None, seeds: int, policies: Sequence[str], load: float = LOAD
) -> dict[str, list[Totals]]:
    """The sums of every policy and seed."""
    cluster = build_cluster([(world.kind,)] * GPUS)
    found: dict[str, list[Totals]] = {name: [] for name in policies}
    for seed in range(seeds):
        jobs = draw(world, trace, seed, load)
        for name in policies:
            policy = policy_of(world, name.removesuffix(LONGEST))
            found[name].append(simulate(jobs, cluster, policy, world.true, longest_first=name.endswith(LONGEST)))
    return found


def title(name: str) -> str:
    """What the table calls a policy."""
    return NAMES[name] if name in NAMES else f"{NAMES[name.removesuffix(LONGEST)]}; the longest job first"


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
            f"| {title(name)} | {makespan:.1f} | {against[0]} | {rate:.2f} | {against[1]} | {waits[0]:.1f} | "
            f"{waits[1]:.1f} | {slow:.2f} | {broken:.1%} ± {broken_half:.1%} |"
        )
    return lines


def peak_mib() -> float:
    """The most memory that this process had; getrusage would count the parent's, too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def made_up() -> tuple[PlaceKind, list[Profile]]:
    """Forty kinds of jobs on an H200, up to three together."""
    kind, rng = PlaceKind("h200, mps", find_device("h200"), None, "mps", 3), random.Random(0)
    ends = ((1e3, 6e4), (0.1, 0.9), (0.3, 1), (0.1, 1), (0, 0.8))
    demands = [Demand(10.0, *(rng.uniform(*pair) for pair in ends)) for _ in range(40)]
    return kind, [Profile(number, f"p{number}", {kind.name: one}, LIMIT) for number, one in enumerate(demands)]


def arriving(profiles: Sequence[Profile], jobs: int, gpus: int, load: float) -> Iterator[Job]:
    """Poisson arrivals of jobs of 1,000 s, made one by one."""
    rng, now_s = random.Random(1), 0.0
    for number in range(jobs):
        yield Job(f"j{number}", rng.choice(profiles), now_s, rng.expovariate(1 / 1e5) + 1)
        now_s += rng.expovariate(load * gpus / 1000)


def large(gpus: int, jobs: int, load: float, policy: str) -> str:
    """A large cluster with made-up jobs: minutes of the processor, and the memory of a fresh process."""
    kind, profiles = made_up()
    before = peak_mib()
    began = time.process_time()
    rule = Contention()
    work = arriving(profiles, jobs, gpus, load)
    totals = simulate(work, build_cluster([(kind,)] * gpus), make_policy(policy, rule, rule), rule)
    seconds = time.process_time() - began
    after = peak_mib()
    cells = (policy, f"{load:g}", f"{jobs:,}", f"{gpus:,}", f"{seconds / 60:.1f}", f"{seconds / jobs * 1e6:.0f}")
    return f"| {' | '.join(cells)} | {after:.0f} | {after - before:.0f} | {totals.work_rate:.2f} |"


def against_simpy(jobs: int = 20_000, gpus: int = 64) -> list[str]:
    """The same jobs, policy and sums: with the heap of our loop, and with SimPy as the clock."""
    import simpy

    class OnSimpy(Simulation):
        """Every expected end is a timeout of SimPy; a void one is known by its version, as in the heap."""

        def run(self, jobs: Iterable[Job]) -> Totals:
            self.env = simpy.Environment()
            self._policy.watch(self.states)
            self.env.process(self.arrivals(jobs))
            self.env.run()
            return self.totals

        def arrivals(self, jobs: Iterable[Job]) -> Iterator[simpy.Event]:
            for job in jobs:
                if job.arrival_s > self.env.now:
                    yield self.env.timeout(job.arrival_s - self.env.now)
                self._now = job.arrival_s
                self._arrive(job)

        def _expect(self, state: PlaceState, end_s: float) -> None:
            self.env.process(self.end(state, state.version, end_s))

        def end(self, state: PlaceState, version: int, end_s: float) -> Iterator[simpy.Event]:
            yield self.env.timeout(max(0.0, end_s - self.env.now))
            if version == state.version:
                self._now = end_s
                self._end_at(state)

    kind, profiles = made_up()
    lines = [f"{jobs:,} jobs on {gpus} GPUs, load 1.2, same policy (`slowdown`) and sums, best of three:\n"]
    lines += ["| clock | µs a job, processor | makespan, s |", "|---|--:|--:|"]
    for name, engine in (("our heap", Simulation), ("SimPy", OnSimpy)):
        times = []
        for _ in range(3):
            rule = Contention()
            simulation = engine(build_cluster([(kind,)] * gpus), make_policy("slowdown", rule, rule), rule)
            began = time.process_time()
            totals = simulation.run(arriving(profiles, jobs, gpus, 1.2))
            times.append(time.process_time() - began)
        lines.append(f"| {name} | {min(times) / jobs * 1e6:.0f} | {totals.makespan_s:.6f} |")
    return lines


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("philly", "alibaba", "gavel", "report"):
        arguments.add_argument(f"--{name}", type=Path)
    arguments.add_argument("--store", type=Path, default=Path("data"))
    arguments.add_argument("--cache", type=Path, default=Path("out/training"))
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
    worlds = [h200(given.store, given.cache), *([gavel(given.gavel)] if given.gavel else [])]
    for world in worlds:
        limited = world.with_limit(LIMIT)
        say(f"\n## {world.name}\n", *(f"- {fact}" for fact in world.facts))
        for name, trace in traces.items():
            ordered = [f"{name}{LONGEST}" for name in ("exclusive", "slowdown", "oracle")]
            policies = [*world.policies[:-1], "blind", world.policies[-1], *ordered]
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
    say("\n## The clock\n", *against_simpy())
    if given.report:
        head = [
            "# Packing\n",
            "`python benchmarks/packing.py --philly … --alibaba … --gavel … --report reports/packing.md`\n",
            f"{GPUS} GPUs, {JOBS:,} jobs of one GPU, {given.seeds} seeds, paired; load {LOAD:g} (a backlog, as in the "
            f"paper), every job may be slowed down {LIMIT:g} times in the mean, durations cut at {LONGEST_S / 3600:g} "
            "h. ± is half of a 95 % interval. Work is conserved: work a GPU second rises as the makespan falls. "
            "Margins were chosen on other seeds. Jobs that wait go by arrival, but in the rows that say otherwise. "
            "Slot packing is what the paper calls so: co-location disabled, "
            "one job a GPU.",
        ]
        given.report.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
