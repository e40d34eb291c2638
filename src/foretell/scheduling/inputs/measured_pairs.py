"""Scheduling: pairs of jobs that others have measured together, as a table of slowdowns.

Source: Gavel (Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI
2020): training throughputs alone and in pairs on V100, P100 and K80, as a table with ``gpu``, ``job_a``, ``job_b``,
``iso_a``, ``iso_b``, ``co_a`` and ``co_b``. A pair with throughput 0 could not share the GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DataError
from foretell.scheduling.cluster import MPS
from foretell.scheduling.inputs.traces import read_columns

_ONE_GPU = ", 1)"


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """Names of jobs, their measured pairs as `MeasuredSlowdowns` takes them, and pairs that could not share a GPU."""

    names: tuple[str, ...]
    groups: Mapping[tuple[str, tuple[str, ...]], tuple[float, ...]]
    apart: frozenset[tuple[str, str]]


def read_gavel(path: Path | str, gpu: str = "v100") -> MeasuredPairs:
    """All pairs of jobs with one GPU each; where a pair was measured twice, the first one counts."""
    groups: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
    apart: set[tuple[str, str]] = set()
    names: set[str] = set()
    for kind, *jobs, iso_a, iso_b, co_a, co_b in read_columns(
        path, "gpu", "job_a", "job_b", "iso_a", "iso_b", "co_a", "co_b"
    ):
        if kind != gpu or not all(str(job).endswith(_ONE_GPU) for job in jobs):
            continue
        first, second = (str(job).removeprefix("('").removesuffix(f"'{_ONE_GPU}") for job in jobs)
        names |= {first, second}
        if co_a > 0 and co_b > 0:
            pair = sorted([(first, max(1.0, iso_a / co_a)), (second, max(1.0, iso_b / co_b))])
            groups.setdefault((MPS, (pair[0][0], pair[1][0])), (pair[0][1], pair[1][1]))
        else:
            apart |= {(first, second), (second, first)}
    if not groups:
        raise DataError(f"{path} has no pair of jobs that shared a {gpu}.")
    return MeasuredPairs(tuple(sorted(names)), groups, frozenset(apart))
