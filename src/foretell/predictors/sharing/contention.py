"""Predictors: contention: jobs under MPS, simulated launch by launch.

Rules. A job's kernels run one after the other, over and over. A kernel takes the places for blocks that kernels which
came before it left; a kernel that finds none gets a small part anyway, as blocks end. What is spread over SMs runs
slower on fewer of them, and everything runs slower on SMs that others use too. Kernels that together ask for more than
the bandwidth share it. Between its kernels a job holds nothing. Nothing here is random except where in its sequence
each job starts, and that is the same in every call.

Many groups are simulated together, and each several times from other starts: a step is an event in each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sharing.jobs import Job

MEMBERS = 3
_NEVER = 1e30
_DONE = 1e-9

Values = NDArray[np.float64]
Group = Sequence[Job]


@dataclass(frozen=True)
class Rules:
    """What a kernel gets when nothing is left, how much bandwidth there is, and how SMs are shared."""

    least: float = 0.03
    bandwidth: float = 1.0
    crowding: float = 0.0  # how much slower a kernel runs when others hold all other places


@dataclass(frozen=True)
class _Launches:
    """The launches of all jobs, one row a job, padded."""

    work_us: Values
    gap_us: Values
    fill: Values
    spread: Values
    traffic: Values
    length: NDArray[np.intp]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "_Launches":
        longest = max(len(job.work_us) for job in jobs)

        def padded(name: str) -> Values:
            rows = np.zeros((len(jobs), longest))
            for row, job in zip(rows, jobs, strict=True):
                values = getattr(job, name)
                row[: len(values)] = values
            return rows

        return cls(
            padded("work_us"),
            padded("gap_us"),
            padded("fill"),
            padded("spread"),
            padded("traffic"),
            np.array([len(job.work_us) for job in jobs], np.intp),
        )


def simulate(groups: Sequence[Group], rules: Rules, *, steps: int = 1200, starts: int = 8) -> Values:
    """The slowdown of every member of every group, one row a group; 1 where a group has no such member."""
    jobs: dict[str, Job] = {}
    distinct: dict[tuple[str, ...], int] = {}
    row, place = np.zeros(len(groups), np.intp), np.zeros((len(groups), MEMBERS), np.intp)
    for number, group in enumerate(groups):
        # sorted, so that the order in which somebody names the jobs changes nothing
        order = sorted(range(len(group)), key=lambda one: group[one].digest)
        place[number, order] = np.arange(len(order))
        jobs |= {job.digest: job for job in group}
        row[number] = distinct.setdefault(tuple(group[one].digest for one in order), len(distinct))
    known = {digest: number for number, digest in enumerate(jobs)}
    member = np.full((len(distinct), MEMBERS), -1, np.intp)
    for digests, number in distinct.items():
        member[number, : len(digests)] = [known[digest] for digest in digests]
    limit = np.array([job.share for job in jobs.values()])
    repeated = np.repeat(member, starts, axis=0)
    lasted_us, alone_us = _run(_Launches.of(list(jobs.values())), limit, repeated, rules, steps, starts)
    shape = (len(distinct), starts, MEMBERS)
    slowdown = lasted_us.reshape(shape[:2]).sum(1)[:, None] / np.maximum(alone_us.reshape(shape).sum(1), _DONE)
    slowdown = _equal_for_equal(np.where(member >= 0, np.maximum(slowdown, 1.0), 1.0), member)
    return np.take_along_axis(slowdown[row], place, axis=1)


def _equal_for_equal(slowdown: Values, member: NDArray[np.intp]) -> Values:
    same = (member[:, :, None] == member[:, None, :]) & (member >= 0)[:, None, :]
    count = np.maximum(same.sum(2), 1)
    return np.asarray(np.where(member >= 0, (same * slowdown[:, None, :]).sum(2) / count, 1.0))


def _run(
    launches: _Launches, limit: Values, member: NDArray[np.intp], rules: Rules, steps: int, starts: int
) -> tuple[Values, Values]:
    """How long each simulation lasted, and how long each member would have needed alone for what it did.

    Every group gets the same random numbers for its ``starts``: what else is asked must not change its answer.
    """
    generator = np.random.default_rng(0)

    def random() -> Values:
        return np.tile(generator.random((starts, member.shape[1])), (len(member) // starts, 1))

    there, job = member >= 0, np.maximum(member, 0)
    length, share = launches.length[job], limit[job]
    at = (random() * length).astype(np.intp)
    working = np.zeros(member.shape, bool)
    left, since = random(), random()
    lasted_us, alone_us, rows = np.zeros(len(member)), np.zeros(member.shape), np.arange(len(member))
    for step in range(steps):
        work_us, gap_us, fill, spread, traffic = (
            values[job, at]
            for values in (launches.work_us, launches.gap_us, launches.fill, launches.spread, launches.traffic)
        )
        rate, taken = np.ones(member.shape), np.zeros(member.shape)
        free = np.ones(len(member))
        order = np.argsort(np.where(there, since, _NEVER), axis=1)
        for one in order.T:
            own_share, runs = share[rows, one], working[rows, one] & there[rows, one]
            got = np.maximum(np.minimum(free, own_share), rules.least * own_share)
            rate[rows, one] = np.where(runs, 1.0 / (1.0 + spread[rows, one] * (1.0 / got - 1.0)), 1.0)
            taken[rows, one] = np.where(runs, np.minimum(got, fill[rows, one] * own_share), 0.0)
            free = np.maximum(free - taken[rows, one], 0.0)
        by_others = taken.sum(1, keepdims=True) - taken
        rate = np.where(working, rate / (1.0 + rules.crowding * by_others), rate)
        asked = (rate * traffic * (working & there)).sum(1, keepdims=True) / rules.bandwidth
        rate = np.where(working & (asked > 1.0), rate / np.maximum(1.0 + traffic * (asked - 1.0), _DONE), rate)
        phase_us = np.where(working, work_us, gap_us)
        until_us = np.where(there, left * phase_us / rate, _NEVER).min(1)
        lasted_us += until_us
        progress = np.where(there, np.minimum(until_us[:, None] * rate / np.maximum(phase_us, _DONE), left), 0.0)
        alone_us += progress * np.where(working, work_us * (1.0 + spread * (1.0 / share - 1.0)), gap_us)
        left = left - progress
        ended = there & (left <= _DONE)
        at = np.where(ended & working, (at + 1) % length, at)
        # a kernel that is launched now comes after all that run
        since = np.where(ended & ~working, 1.0 + step + random() * 0.5, since)
        working, left = working ^ ended, np.where(ended, 1.0, left)
    return lasted_us, alone_us
