"""Scheduling: arrivals and durations of jobs: traces of real clusters that the user has, and a Poisson process.

A trace is a list of (arrival in seconds, duration alone in seconds), sorted by arrival. Jobs of one GPU are taken and
jobs of several are left out: that keeps 93 % of the jobs of Philly, and 99 % of the pods with a GPU of Alibaba. Jobs
that never ran or have not ended are left out, too. A trace with a negative time is damaged, and refused.

Sources: Philly: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX
ATC 2019, as a table with ``timestamp``, ``duration`` and ``num_gpus``. Alibaba: cluster-trace-gpu-v2023 (openb pods),
with ``creation_time``, ``scheduled_time``, ``deletion_time`` and ``num_gpu``.
"""

import datetime
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import DataError
from foretell.optional import require

TRACES = ("philly", "alibaba", "poisson")
_MOST_ROWS = 20_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a job arrives, and how long it takes alone."""

    arrival_s: float
    duration_s: float


def read_philly(path: Path | str) -> list[Arrival]:
    """The jobs of one GPU of Philly's trace."""
    rows = read_columns(path, "timestamp", "duration", "num_gpus")
    return _sorted(
        path,
        (
            Arrival(_moment(path, stamp), float(duration))
            for stamp, duration, gpus in rows
            if gpus == 1 and duration is not None and _lasts(path, duration)
        ),
    )


def read_alibaba(path: Path | str) -> list[Arrival]:
    """The pods with one GPU, or a part of one, that ran and ended."""
    rows = read_columns(path, "creation_time", "scheduled_time", "deletion_time", "num_gpu")
    return _sorted(
        path,
        (
            Arrival(float(created), float(deleted - scheduled))
            for created, scheduled, deleted, gpus in rows
            if gpus == 1 and None not in (created, scheduled, deleted)
            if _lasts(path, scheduled - created, deleted - scheduled)
        ),
    )


READERS: dict[str, Callable[[Path | str], list[Arrival]]] = {"philly": read_philly, "alibaba": read_alibaba}


def window(trace: Sequence[Arrival], jobs: int, rng: random.Random) -> list[Arrival]:
    """That many jobs in a row, from a random moment of a trace; the first one arrives at 0. A short trace begins anew.

    >>> trace = [Arrival(5.0, 1.0), Arrival(7.0, 2.0)]
    >>> [(a.arrival_s, a.duration_s) for a in window(trace, 3, random.Random(0))]
    [(0.0, 2.0), (1.0, 1.0), (3.0, 2.0)]
    """
    if not trace:
        raise DataError("The trace has no job of one GPU.")
    begin, span_s = rng.randrange(len(trace)), trace[-1].arrival_s - trace[0].arrival_s + 1.0
    first_s, taken = trace[begin].arrival_s, []
    for offset in range(begin, begin + jobs):
        turn, index = divmod(offset, len(trace))
        entry = trace[index]
        taken.append(Arrival(entry.arrival_s + turn * span_s - first_s, entry.duration_s))
    return taken


def poisson(jobs: int, mean_s: float, rng: random.Random) -> Iterator[Arrival]:
    """Jobs that arrive one a second on average, independently, with exponential durations."""
    now_s = 0.0
    for _ in range(jobs):
        yield Arrival(now_s, rng.expovariate(1 / mean_s))
        now_s += rng.expovariate(1.0)


def at_load(
    arrivals: Sequence[Arrival], load: float, gpus: int, max_s: float = math.inf, widths: Sequence[int] = ()
) -> list[Arrival]:
    """The same jobs with arrivals closer together or further apart, so that they offer ``load`` times the GPUs' time.

    Durations above ``max_s`` are cut. Jobs that all arrive at once stay so. ``widths`` has the GPUs of each job, one by
    default.

    >>> [a.arrival_s for a in at_load([Arrival(0, 10.0), Arrival(1, 10.0)], load=2.0, gpus=1)]
    [0.0, 10.0]
    """
    cut = [Arrival(entry.arrival_s, min(entry.duration_s, max_s)) for entry in arrivals]
    span_s = cut[-1].arrival_s - cut[0].arrival_s if cut else 0.0
    offered_s = sum(entry.duration_s * width for entry, width in zip(cut, widths or [1] * len(cut), strict=True))
    wanted_s = offered_s / (load * gpus)
    factor = wanted_s / span_s if span_s else 1.0
    return [Arrival(entry.arrival_s * factor, entry.duration_s) for entry in cut]


def read_columns(path: Path | str, *names: str) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns of a Parquet file of the user."""
    parquet = require("pyarrow.parquet", extra="data", purpose="Reading a trace")
    try:
        file = parquet.ParquetFile(path)
        if file.metadata.num_rows > _MOST_ROWS:
            raise DataError(f"The trace {path} has {file.metadata.num_rows:,} rows; {_MOST_ROWS:,} are the most.")
        missing = [name for name in names if name not in file.schema_arrow.names]
        if missing:
            raise DataError(f"The trace {path} has no column {missing[0]!r}; it needs {', '.join(names)}.")
        table = file.read(columns=list(names))
    except OSError as error:
        raise DataError(f"Cannot read the trace {path}: {str(error).splitlines()[0]}. Give a Parquet file.") from error
    except ValueError as error:  # pyarrow's errors about damaged files
        raise DataError(f"The trace {path} is not a Parquet file: {str(error).splitlines()[0]}") from error
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _sorted(path: Path | str, arrivals: Iterator[Arrival]) -> list[Arrival]:
    try:
        found = sorted(arrivals, key=lambda entry: entry.arrival_s)
    except (TypeError, ValueError) as error:
        raise DataError(f"The trace {path} has a value that is no number or time: {error}.") from error
    if not found:
        raise DataError(f"The trace {path} has no job of one GPU.")
    for entry in found:
        if not (math.isfinite(entry.arrival_s) and math.isfinite(entry.duration_s)):
            raise DataError(f"The trace {path} has a time that is not finite.")
    return found


def _lasts(path: Path | str, *times_s: float) -> bool:
    """Whether the last of some times is above 0; a negative one is an error of the trace."""
    if min(times_s) < 0:
        raise DataError(f"The trace {path} has a job with a negative time, {min(times_s):g} s.")
    return times_s[-1] > 0


def _moment(path: Path | str, stamp: object) -> float:
    """Seconds of a time such as 2017-10-09 07:01:55. Zones do not matter: only differences count."""
    try:
        return datetime.datetime.fromisoformat(str(stamp)).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError as error:
        raise DataError(f"The trace {path} has the time {stamp!r}; write 2017-10-09 07:01:55.") from error
