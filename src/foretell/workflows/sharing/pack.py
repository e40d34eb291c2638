"""Workflows: pack jobs onto the GPUs of a cluster, and simulate what comes of it."""

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.readable import Readable
from foretell.registry import did_you_mean
from foretell.scheduling.cluster import Cluster
from foretell.scheduling.inputs.cluster_file import read_cluster
from foretell.scheduling.inputs.job_file import Arrivals, JobFile, JobSpec, read_jobs
from foretell.scheduling.inputs.traces import READERS, at_load, poisson, window
from foretell.scheduling.jobs import Job, Profile, Run
from foretell.scheduling.policies.choice import POLICIES, make_policy
from foretell.scheduling.simulation import simulate
from foretell.scheduling.slowdowns import Contention, MeasuredSlowdowns, Slowdowns
from foretell.scheduling.totals import Totals
from foretell.units import ms
from foretell.workflows.sharing.demands import named, read_profiles
from foretell.workflows.sharing.group_slowdowns import GroupSlowdowns

MOST_RUNS = 10_000
ORDERS = ("arrival", "longest")
SUMS = 6  # of the lines of a packing
_MAX_LINES = 8
_RULE = (
    "Slowdowns under MPS of {} follow a rule of thumb, which was 33 % off on measured pairs, mostly too low: they are "
    "predicted for models on whole GPUs whose sharing was measured; [[together]] takes your own."
)
_SUMMED = "Some groups of three and more jobs were put together from what their pairs do to each other."


@dataclass(frozen=True, repr=False)
class Packing(Readable):
    """A schedule and its simulation. ``runs`` has the first 10,000 jobs that ended, in the order of their start."""

    policy: str
    cluster: Cluster
    totals: Totals
    runs: tuple[Run, ...]
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """The policy, the jobs and the GPUs."""
        return f"Packing: {self.totals.jobs:,} jobs on {self.cluster.gpus:,} GPUs by {self.policy}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The sums, then the first jobs."""
        totals = self.totals
        yield "makespan", f"{_seconds(totals.makespan_s)} s"
        yield (
            "waiting",
            f"{_seconds(totals.mean_waiting_s)} s in the mean, 95 % at most {_seconds(totals.p95_waiting_s)} s",
        )
        yield "utilisation", f"{totals.utilisation:.1%}, {totals.sm_activity:.1%} of the SMs"
        yield "work done", f"{totals.work_rate:.3g} s a GPU and second"
        yield "slowdown", f"{totals.mean_slowdown:.3g} times in the mean"
        yield "limits broken", f"{totals.broken} of {totals.limited}"
        for run in self.runs[:_MAX_LINES]:
            yield run.job.name, f"{self.where(run)}, {_seconds(run.start_s)} to {_seconds(run.end_s)} s"
        yield from (("warning", warning) for warning in self.warnings)

    def place_name(self, number: int) -> str:
        """The name of a place, such as ``gpu 3`` or ``gpu 3 mig:3g.71gb``."""
        place = self.cluster.places[number]
        part = f" {place.kind.slice.text}" if place.kind.slice else ""
        return f"gpu {place.gpu}{part}"

    def where(self, run: Run) -> str:
        """Where a job ran: a place, or several GPUs, such as ``gpus 0, 1``."""
        if not run.others:
            return self.place_name(run.place)
        return f"gpus {', '.join(str(self.cluster.places[number].gpu) for number in run.places)}"

    def rows(self) -> list[dict[str, Any]]:
        """One row for each job."""
        rows = []
        for run in self.runs:
            place, profile = self.cluster.places[run.place], run.job.profile
            limited = profile.max_slowdown is not None or profile.limit_ms is not None
            rows.append(
                {
                    "job": run.job.name, "profile": profile.name, "gpu": place.gpu,
                    "gpus": [self.cluster.places[one].gpu for one in run.places] if run.others else None,
                    "place": place.number,
                    "device": place.kind.device.id, "slice": place.kind.slice.text if place.kind.slice else None,
                    "share": place.kind.method, "arrival_s": run.job.arrival_s, "start_s": run.start_s,
                    "end_s": run.end_s, "waiting_s": run.waiting_s, "slowdown": run.slowdown,
                    "keeps_limit": run.kept if limited else None,
                }
            )  # fmt: skip
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell pack --json`` prints."""
        totals = self.totals
        return {
            "policy": self.policy,
            "gpus": self.cluster.gpus,
            "jobs": totals.jobs,
            "makespan_s": totals.makespan_s,
            "waiting_s": {"mean": totals.mean_waiting_s, "p95": totals.p95_waiting_s},
            "turnaround_s": totals.mean_turnaround_s,
            "utilisation": totals.utilisation,
            "sm_activity": totals.sm_activity,
            "work_rate": totals.work_rate,
            "slowdown": totals.mean_slowdown,
            "limits": {"jobs": totals.limited, "broken": totals.broken, "share": totals.broken_share},
            "schedule": [{name: value for name, value in row.items() if value is not None} for row in self.rows()],
            "warnings": list(self.warnings),
        }


def pack(
    jobs: Path | str,
    *,
    cluster: Path | str,
    policy: str = "slowdown",
    order: str = "arrival",
    trust: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Packing:
    """Pack the jobs of a file onto the GPUs of another, and simulate the schedule.

    Args:
        jobs: A TOML file with tables ``[[job]]``; docs/scheduling.md describes it.
        cluster: A TOML file with tables ``[[gpu]]``.
        policy: ``slowdown`` (by predicted slowdowns and limits), ``exclusive``, ``slots``, ``utilisation``,
            ``occupancy``, or ``oracle``, which knows the measured slowdowns of the file.
        order: Which of the jobs that wait goes first: by ``arrival``, or the ``longest``, which ends the last job
            sooner and lets short ones wait.
        trust: Allow code that comes with a model to run.
        use_cache: Store converted graphs for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "jobs.toml").write_text('[[job]]\\nname = "a"\\nalone_ms = 5\\nsteps = 1000\\ncount = 4')
    >>> _ = (folder / "cluster.toml").write_text('[[gpu]]\\ndevice = "h200"\\ncount = 2')
    >>> packing = pack(folder / "jobs.toml", cluster=folder / "cluster.toml")
    >>> packing.totals.makespan_s, packing.totals.mean_waiting_s
    (10.0, 2.5)
    """
    if policy not in POLICIES:
        POLICIES.load(policy)  # raises an error that suggests the closest name
    if order not in ORDERS:
        raise InputError(f"Unknown order {order!r}.{did_you_mean(order, ORDERS)}")
    file, places = read_jobs(jobs), read_cluster(cluster)
    reading = {
        "trust": trust, "use_cache": use_cache, "memory_limit_gib": memory_limit_gib, "timeout_s": timeout_s,
    }  # fmt: skip
    read = read_profiles(file.jobs, places.kinds, reading)
    profiles, warnings = read.profiles, read.warnings
    predicted = GroupSlowdowns(read.devices, Contention())
    true: Slowdowns = MeasuredSlowdowns(file.together, predicted) if file.together else predicted
    runs: list[Run] = []
    released = _Dependents(file, profiles)

    def done(run: Run) -> Iterable[Job]:
        if len(runs) < MOST_RUNS:
            runs.append(run)
        return released.by(run)

    arriving = _from_trace(file.arrivals, profiles, places) if file.arrivals else released.free()
    deciding = make_policy(policy, predicted, true, margin=predicted.margins)
    totals = simulate(arriving, places, deciding, true, done, longest_first=order == "longest")
    if predicted.by_rule:
        warnings.append(_RULE.format(named(list(predicted.by_rule))))
    if predicted.summed:
        warnings.append(_SUMMED)
    if totals.jobs > MOST_RUNS:
        warnings.append(f"The schedule has the first {MOST_RUNS:,} of {totals.jobs:,} jobs that ended.")
    runs.sort(key=lambda run: (run.start_s, run.place))
    return Packing(policy, places, totals, tuple(runs), tuple(warnings))


def _seconds(number: float) -> str:
    """A time with four digits, or all of them where it has more.

    >>> _seconds(12.3456), _seconds(294312.5)
    ('12.35', '294,312')
    """
    return f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"


def _jobs_of(spec: JobSpec, profile: Profile) -> Iterator[Job]:
    steps = spec.steps if spec.steps is not None else ms(spec.seconds or 0.0) / profile.best_ms
    for number in range(spec.count):
        name = spec.name if spec.count == 1 else f"{spec.name}-{number + 1}"
        yield Job(name, profile, spec.arrival_s + number * spec.every_s, steps, spec.after)


class _Dependents:
    """Jobs that come after others: they arrive when all jobs of the tables that they name have ended."""

    def __init__(self, file: JobFile, profiles: Sequence[Profile]) -> None:
        self._specs = {spec.name: (spec, profile) for spec, profile in zip(file.jobs, profiles, strict=True)}
        self._left = {spec.name: spec.count for spec in file.jobs}
        self._missing = {spec.name: set(spec.after) for spec in file.jobs if spec.after}

    def free(self) -> Iterator[Job]:
        """The jobs that come after no other, by arrival; not all are in memory at a time."""
        lines = [_jobs_of(spec, profile) for spec, profile in self._specs.values() if not spec.after]
        return heapq.merge(*lines, key=lambda job: job.arrival_s)

    def by(self, run: Run) -> Iterator[Job]:
        """The jobs that arrive because this one has ended."""
        ended = run.job.profile.name
        if not self._missing:
            return
        self._left[ended] -= 1
        if self._left[ended]:
            return
        for name, missing in list(self._missing.items()):
            missing.discard(ended)
            if not missing:
                del self._missing[name]
                for job in _jobs_of(*self._specs[name]):
                    yield replace(job, arrival_s=run.end_s)


def _from_trace(arrivals: Arrivals, profiles: Sequence[Profile], cluster: Cluster) -> Iterator[Job]:
    """Jobs of a trace; what each of them is, chance decides."""
    rng = random.Random(arrivals.seed)
    if arrivals.trace == "poisson":
        entries = list(poisson(arrivals.jobs, arrivals.mean_s, rng))
    else:
        if arrivals.file is None:
            raise InputError(f"The trace {arrivals.trace} needs a file.")
        entries = window(READERS[arrivals.trace](arrivals.file), arrivals.jobs, rng)
    drawn = [rng.choice(profiles) for _ in entries]
    entries = at_load(entries, arrivals.load, cluster.gpus, arrivals.max_s, [profile.gpus for profile in drawn])
    for number, (entry, profile) in enumerate(zip(entries, drawn, strict=True), 1):
        yield Job(f"{profile.name}-{number}", profile, entry.arrival_s, ms(entry.duration_s) / profile.best_ms)
