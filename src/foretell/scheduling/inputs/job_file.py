"""Scheduling: read jobs from a TOML file of the user. Models are not read here, only what the file says.

[[job]]
name = "resnet"
model = "timm:resnet50"      # as for foretell predict, with batch_size, dtype, mode, optimizer, input …
batch_size = 32
steps = 20000                # or seconds = 3600: how long it takes alone on the fastest place
arrival_s = 0                # 0 by default
count = 10                   # that many equal jobs, every_s seconds apart
every_s = 60
max_slowdown = 1.5           # or limit_ms = 12: of a step
gpus = 4                     # whole GPUs of one kind, all at once, shared with nobody; 1 by default
percentage = 50              # CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, where GPUs are shared by MPS
after = ["prepare"]          # starts when these have ended

[[job]]
name = "mine"
alone_ms = 5.5               # numbers instead of a model, for every kind of GPU; optional: memory_mib,
memory_mib = 9000            # occupancy, utilisation, sm_share, bandwidth_share (0 to 1)

[[together]]                 # slowdowns that were measured
jobs = ["resnet", "mine"]
slowdowns = [1.3, 1.7]
share = "mps"

[arrivals]                   # jobs of a trace; each [[job]] is then a kind of job, drawn by chance
trace = "philly"             # philly, alibaba or poisson
file = "philly_jobs.parquet"
jobs = 1000
load = 1.5                   # offered work over what the GPUs can do alone
"""

import graphlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DataError
from foretell.registry import did_you_mean
from foretell.scheduling.cluster import METHODS, MPS
from foretell.scheduling.inputs.traces import TRACES
from foretell.toml_rows import Row, read_own

_SHARES = ("occupancy", "utilisation", "sm_share", "bandwidth_share")
_NUMBERS = ("alone_ms", "memory_mib", *_SHARES)
_MODEL = ("model", "batch_size", "dtype", "mode", "optimizer", "input", "context")
_WORK = ("steps", "seconds", "arrival_s", "count", "every_s", "after")
_MOST_JOBS = 10_000_000


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One table of the file: a model with the arguments of `foretell.predict`, or numbers."""

    name: str
    model: str | None
    options: Mapping[str, object]
    numbers: Mapping[str, float]
    steps: float | None
    seconds: float | None
    arrival_s: float
    count: int
    every_s: float
    max_slowdown: float | None
    limit_ms: float | None
    after: tuple[str, ...]
    percentage: float | None = None
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Jobs that come from a trace."""

    trace: str
    file: str | None
    jobs: int
    seed: int
    load: float
    mean_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a file of jobs says. ``together`` maps a method and sorted names to measured slowdowns."""

    jobs: tuple[JobSpec, ...]
    together: Mapping[tuple[str, tuple[str, ...]], tuple[float, ...]]
    arrivals: Arrivals | None


def read_jobs(path: Path | str) -> JobFile:
    """Read and check a file of jobs."""
    file = read_own(path, "docs/scheduling.md").allow("job", "together", "arrivals")
    arrivals = _arrivals(file)
    jobs = tuple(_job(row, drawn=arrivals is not None) for row in file.list_of_rows("job"))
    if not jobs:
        raise DataError(f"{file.where}: there is no job. Add a table [[job]]; docs/scheduling.md shows one")
    names = [job.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{file.where}: two jobs are called {name!r}; give each its own name")
    if sum(job.count for job in jobs) > _MOST_JOBS:
        raise DataError(f"{file.where}: more than {_MOST_JOBS:,} jobs")
    _check_order(file.where, jobs)
    together = dict(_together(row, names) for row in file.list_of_rows("together"))
    return JobFile(jobs, together, arrivals)


def _job(row: Row, *, drawn: bool) -> JobSpec:
    limits = ("max_slowdown", "limit_ms")
    row.allow("name", *_MODEL, *_NUMBERS, *limits, "percentage", "gpus", *(() if drawn else _WORK))
    name, model = row.text("name"), row.maybe_text("model")
    given = {key: row.maybe_number(key, least=0, open_end=key == "alone_ms") for key in _NUMBERS}
    numbers = {key: value for key, value in given.items() if value is not None}
    for key in _SHARES:
        if numbers.get(key, 0.0) > 1:
            raise DataError(f"{row.where}: {key} is {numbers[key]:g}; it is a share between 0 and 1")
    options = {key: row.fields[key] for key in _MODEL[1:] if key in row.fields}
    if model is None and "alone_ms" not in numbers:
        raise DataError(f"{row.where}: job {name!r} has neither a model nor alone_ms; give one of them")
    if model is None and options:
        raise DataError(f"{row.where}: {next(iter(options))} belongs to a model, and job {name!r} has none")
    if model is not None and "alone_ms" in numbers:
        raise DataError(f"{row.where}: job {name!r} has a model and alone_ms; give one of them")
    steps = row.maybe_number("steps", least=0, open_end=True)
    seconds = row.maybe_number("seconds", least=0, open_end=True)
    if not drawn and (steps is None) == (seconds is None):
        raise DataError(f"{row.where}: job {name!r} needs steps or seconds, one of them")
    max_slowdown, after = row.maybe_number("max_slowdown", least=1), tuple(row.texts("after"))
    if after and ("arrival_s" in row.fields or "every_s" in row.fields):
        raise DataError(f"{row.where}: job {name!r} arrives when others have ended; leave out arrival_s and every_s")
    percentage = row.maybe_number("percentage", least=0, open_end=True)
    if percentage is not None and percentage > 100:
        raise DataError(f"{row.where}: percentage is {percentage:g}; it must be above 0 and at most 100")
    gpus = row.count("gpus", default=1)
    if gpus > 1 and percentage is not None:
        raise DataError(f"{row.where}: job {name!r} has {gpus} GPUs for itself; leave out percentage")
    return JobSpec(
        name, model, options, numbers, steps, seconds, row.maybe_number("arrival_s", least=0) or 0.0,
        row.count("count", default=1), row.maybe_number("every_s", least=0) or 0.0, max_slowdown,
        row.maybe_number("limit_ms", least=0, open_end=True), after, percentage, gpus,
    )  # fmt: skip


def _check_order(where: str, jobs: tuple[JobSpec, ...]) -> None:
    names = [job.name for job in jobs]
    for job in jobs:
        for name in job.after:
            if name not in names:
                raise DataError(f"{where}: job {job.name!r} comes after {name!r}.{did_you_mean(name, names)}")
    try:
        graphlib.TopologicalSorter({job.name: job.after for job in jobs}).prepare()
    except graphlib.CycleError as error:
        raise DataError(f"{where}: jobs wait for each other: {' after '.join(error.args[1])}") from error


def _together(row: Row, names: list[str]) -> tuple[tuple[str, tuple[str, ...]], tuple[float, ...]]:
    row.allow("jobs", "slowdowns", "share")
    jobs, slowdowns = row.texts("jobs"), row.fields.get("slowdowns")
    for name in jobs:
        if name not in names:
            raise DataError(f"{row.where}: there is no job {name!r}.{did_you_mean(name, names)}")
    method = row.maybe_text("share") or MPS
    if method not in METHODS:
        raise DataError(f"{row.where}: unknown way to share {method!r}.{did_you_mean(method, METHODS)}")
    numbers = [
        float(value)
        for value in (slowdowns if isinstance(slowdowns, list) else [])
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    ]
    if len(jobs) < 2 or len(numbers) != len(jobs):
        raise DataError(f"{row.where}: give two jobs or more, and one slowdown above 0 for each")
    ordered = sorted(zip(jobs, numbers))
    return (method, tuple(name for name, _ in ordered)), tuple(slowdown for _, slowdown in ordered)


def _arrivals(file: Row) -> Arrivals | None:
    if "arrivals" not in file.fields:
        return None
    row = file.row("arrivals").allow("trace", "file", "jobs", "seed", "load", "mean_s", "max_s")
    trace, path = row.text("trace"), row.maybe_text("file")
    if trace not in TRACES:
        raise DataError(f"{row.where}: unknown trace {trace!r}.{did_you_mean(trace, TRACES)}")
    if (trace == "poisson") != (path is None):
        raise DataError(f"{row.where}: philly and alibaba need file, and poisson has none")
    jobs = row.count("jobs", default=1000)
    if jobs > _MOST_JOBS:
        raise DataError(f"{row.where}: more than {_MOST_JOBS:,} jobs")
    load = row.maybe_number("load", least=0, open_end=True) or 1.0
    mean_s = row.maybe_number("mean_s", least=0, open_end=True) or 600.0
    max_s = row.maybe_number("max_s", least=0, open_end=True) or math.inf
    return Arrivals(trace, path, jobs, row.count("seed", default=1), load, mean_s, max_s)
