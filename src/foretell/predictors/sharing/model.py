"""Predictors: the slowdown of each of two or three jobs on one GPU, under MPS or by time-slicing.

Idea. Under MPS the kernels of several processes run at the same time where there is room. `contention` simulates that,
launch by launch, and trees learn what it leaves out (L2, block turnover, launch order). Without MPS the driver gives
each process the whole device in turn: of n saturated processes each gets 1/n of the time, less what switching costs,
whatever they compute. That is one measured number for each n.

Consequences: a slowdown is at least 1, equal jobs are slowed down equally, the order of jobs does not count, and a
third job never makes anybody faster.

Limits: measured with jobs that always have work (back-to-back replays of CUDA graphs). A job that waits for requests
disturbs less than this.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.sharing.contention import Group
from foretell.predictors.sharing.features import COLUMNS, SHARING_SCHEMA, describe_groups
from foretell.predictors.sharing.jobs import Job, describe_job
from foretell.predictors.sharing.launches import FIGURES, LaunchModel
from foretell.predictors.trees import Trees
from foretell.records import Estimate

MPS, TIME_SLICING = "mps", "time-slicing"
METHODS = (MPS, TIME_SLICING)

Values = NDArray[np.float64]
Widths = tuple[tuple[float, float], ...]  # a log slowdown, and the error in it that nine in ten stay below


@dataclass(frozen=True)
class TimeSlices:
    """The slowdown of each of ``members`` processes in turn, and the error in its logarithm nine in ten stay below."""

    members: int
    slowdown: float
    width: float


@dataclass(frozen=True)
class SharingModel:
    """What was fitted to the groups measured on one device."""

    device: str
    launches: LaunchModel
    correction: Trees
    widths: Widths
    time_slices: tuple[TimeSlices, ...]

    @classmethod
    def load(cls, data: bytes) -> "SharingModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                card = json.loads(arrays["card"].tobytes())
                trees = [Trees.load(arrays[name].tobytes()) for name in (*FIGURES, "correction")]
            schema, fitted = card["schema"], card["fitted"]
            widths = tuple((float(size), float(width)) for size, width in fitted["widths"])
            slices = tuple(TimeSlices(int(n), float(value), float(width)) for n, value, width in fitted["time_slices"])
            device = str(fitted["device"])
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of sharing: {error}.") from error
        if schema != SHARING_SCHEMA or trees[-1].columns != len(COLUMNS):
            raise ModelError(
                "This model of sharing was fitted to other features than today's; fit it again: foretell train."
            )
        return cls(device, LaunchModel(tuple(trees[:-1])), trees[-1], widths, slices)

    def job(self, features: NDArray[np.float32], counts: Values, unit_us: Values, share: float = 1.0) -> Job:
        """A workload's units as a job under a limit of the SMs."""
        return describe_job(features, counts, unit_us, self.launches.predict(features), share)

    def slowdowns(self, jobs: Group, method: str = MPS) -> tuple[Estimate, ...]:
        """How many times slower each of the jobs is than alone under the same limit."""
        if method == TIME_SLICING:
            (known,) = [one for one in self.time_slices if one.members == len(jobs)]
            return (_interval(math.log(known.slowdown), known.width),) * len(jobs)
        asked = [jobs, *(_unlimited_beside(jobs, one) for one in range(len(jobs)) if _has_limits_beside(jobs, one))]
        logs, *without_limits = self.mps_logs(asked)
        for one in reversed(range(len(jobs))):
            # less room for the others never slows a job down
            if _has_limits_beside(jobs, one):
                logs[one] = min(logs[one], without_limits.pop()[one])
        return tuple(_interval(log, self.width(log)) for log in logs)

    def mps_logs(self, groups: Sequence[Group]) -> list[list[float]]:
        """The log slowdown of every job of every group under MPS."""
        # always in the same order: sums of floats depend on it, and trees cut between them
        orders = [sorted(range(len(group)), key=lambda one: group[one].digest) for group in groups]
        groups = [[group[one] for one in order] for group, order in zip(groups, orders, strict=True)]
        inside = [groups_inside(group) for group in groups]
        asked = [
            [group[one] for one in members] for group, found in zip(groups, inside, strict=True) for members in found
        ]
        rows, base = describe_groups(asked)
        logs = largest_inside(inside, base + self.correction.predict(rows))
        return [[one[order.index(place)] for place in range(len(one))] for one, order in zip(logs, orders, strict=True)]

    def width(self, log_slowdown: float) -> float:
        """The error in a log slowdown that nine in ten stay below."""
        sizes, widths = zip(*sorted(self.widths), strict=True)
        return float(np.interp(log_slowdown, sizes, widths))


def groups_inside(group: Group) -> list[tuple[int, ...]]:
    """The places of the members of a group's pairs, and of the group itself.

    >>> groups_inside("abc")
    [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
    """
    places = range(len(group))
    return [members for size in range(2, len(group) + 1) for members in combinations(places, size)]


def largest_inside(inside: Sequence[Sequence[tuple[int, ...]]], logs: Values) -> list[list[float]]:
    """For each member of each group its largest log slowdown in any group inside it: one more job helps nobody."""
    values, result = iter(logs.tolist()), []
    for found in inside:
        largest = [0.0] * len(found[-1])
        for members in found:
            for one in members:
                largest[one] = max(largest[one], next(values))
        result.append(largest)
    return result


def _has_limits_beside(jobs: Group, one: int) -> bool:
    return any(job.share < 1.0 for place, job in enumerate(jobs) if place != one)


def _unlimited_beside(jobs: Group, one: int) -> list[Job]:
    return [job if place == one else replace(job, share=1.0) for place, job in enumerate(jobs)]


def _interval(log: float, width: float) -> Estimate:
    return Estimate(math.exp(log), math.exp(max(log - width, 0.0)), math.exp(log + width))


def write(model: SharingModel, card: dict[str, Any]) -> bytes:
    """A fitted model as one file; ``card`` says what it was fitted to and how accurate it is."""
    fitted = {
        "device": model.device,
        "widths": model.widths,
        "time_slices": [(one.members, one.slowdown, one.width) for one in model.time_slices],
    }
    content = json.dumps({**card, "schema": SHARING_SCHEMA, "columns": COLUMNS, "fitted": fitted}, sort_keys=True)
    named = dict(zip((*FIGURES, "correction"), (*model.launches.trees, model.correction), strict=True))
    arrays = {name: np.frombuffer(trees.to_bytes(), np.uint8) for name, trees in named.items()}
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, card=np.frombuffer(content.encode(), np.uint8), **arrays)
    return data.getvalue()


def file_name(device: str) -> str:
    """The name of the file for a device."""
    return f"sharing-{device}.npz"


@cache
def shipped(device: str) -> SharingModel | None:
    """The model that the package ships for a device, or None."""
    data = read_shipped(file_name(device))
    return None if data is None else SharingModel.load(data)
