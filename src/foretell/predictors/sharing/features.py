"""Predictors: what the trees of sharing see of a job and of those beside it."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sharing.contention import MEMBERS, Group, Rules, simulate
from foretell.predictors.sharing.jobs import Job
from foretell.predictors.sharing.launches import LAUNCH_SCHEMA

SHARING_VERSION = 2  # raise it when jobs, rules or columns get other values than before
# the first is what the slowdown is measured against; the others show how sure it is
RULES = (
    Rules(least=0.005, crowding=0.4),
    Rules(least=0.05, crowding=0.4),
    Rules(least=0.005),
)
_SIZES = ("log_time_us", "log_launches", "log_kernel_us", "log_longest_us")
_SHARES = ("fill", "spread", "traffic", "compute", "gaps", "full", "blocking")
_OWN = (*_SIZES, *_SHARES)
_SIMULATED = tuple(f"simulated_{number}" for number in range(len(RULES)))
COLUMNS = (
    *_OWN,
    *(f"largest_{name}" for name in _OWN),
    *(f"least_{name}" for name in _SIZES),
    *(f"sum_{name}" for name in _SHARES),
    "members", "own_limit", "sum_limits", "least_limit", "time_ratio", "kernel_ratio",
    *_SIMULATED, "largest_pair", "sum_of_pairs",
)  # fmt: skip
SHARING_SCHEMA = hashlib.sha256(
    "|".join((LAUNCH_SCHEMA, str(SHARING_VERSION), *COLUMNS, repr(RULES))).encode()
).hexdigest()[:16]
_FULL = 0.8

Values = NDArray[np.float64]


def describe_groups(
    groups: Sequence[Group], *, steps: int = 1200, starts: int = 8
) -> tuple[NDArray[np.float32], Values]:
    """One row of `COLUMNS` for each member of each group, and its simulated log slowdown."""
    pairs = [
        (number, one, other)
        for number, group in enumerate(groups)
        for one in range(len(group))
        for other in range(one + 1, len(group))
        if len(group) > 2
    ]
    smaller = [(groups[number][one], groups[number][other]) for number, one, other in pairs]
    logs_of_all = np.log(simulate([*groups, *smaller], RULES[0], steps=steps, starts=starts))
    simulated = [logs_of_all[: len(groups)]]
    simulated += [np.log(simulate(groups, rules, steps=steps, starts=starts)) for rules in RULES[1:]]
    # in a pair the largest pair is the pair itself
    largest_pair = np.where(_sizes(groups)[:, None] > 2, 0.0, simulated[0])
    sum_of_pairs = largest_pair.copy()
    for (number, one, other), logs in zip(pairs, logs_of_all[len(groups) :], strict=True):
        for place, value in ((one, logs[0]), (other, logs[1])):
            largest_pair[number, place] = max(largest_pair[number, place], value)
            sum_of_pairs[number, place] += value
    rows, base = [], []
    for number, group in enumerate(groups):
        logs = np.stack([values[number] for values in simulated])
        for one in range(len(group)):
            tail = [*logs[:, one], largest_pair[number, one], sum_of_pairs[number, one]]
            rows.append([*_beside(group, one), *tail])
            base.append(logs[0, one])
    return np.array(rows, np.float32).reshape(-1, len(COLUMNS)), np.array(base)


def _sizes(groups: Sequence[Group]) -> NDArray[np.intp]:
    sizes = np.array([len(group) for group in groups], np.intp)
    assert sizes.max(initial=0) <= MEMBERS
    return sizes


def _beside(group: Group, one: int) -> list[float]:
    """A job and those beside it, whatever their order."""
    own, others = describe(group[one]), [describe(job) for place, job in enumerate(group) if place != one]
    limits = [job.share for place, job in enumerate(group) if place != one]
    return [
        *own.values(),
        *(max(other[name] for other in others) for name in _OWN),
        *(min(other[name] for other in others) for name in _SIZES),
        *(sum(other[name] for other in others) for name in _SHARES),
        len(group), group[one].share, sum(limits), min(limits),
        max(other["log_time_us"] for other in others) - own["log_time_us"],
        max(other["log_longest_us"] for other in others) - own["log_kernel_us"],
    ]  # fmt: skip


def describe(job: Job) -> dict[str, float]:
    """A job in a few numbers; means are over its time."""
    kernel_us = job.work_us + job.gap_us
    weight = kernel_us / kernel_us.sum()
    return {
        "log_time_us": float(np.log2(job.time_us)),
        "log_launches": float(np.log2(job.launches)),
        "log_kernel_us": float(np.log2(job.time_us / job.launches)),
        "log_longest_us": float(np.log2(weight @ kernel_us)),
        "fill": float(weight @ job.fill),
        "spread": float(weight @ job.spread),
        "traffic": float(weight @ job.traffic),
        "compute": float(weight @ job.compute),
        "gaps": float(job.gap_us.sum() / kernel_us.sum()),
        "full": float(weight @ (job.fill > _FULL)),
        # a kernel that fills the device is in the way for as long as it runs
        "blocking": float(np.log2(1.0 + weight @ (job.fill * kernel_us))),
    }
