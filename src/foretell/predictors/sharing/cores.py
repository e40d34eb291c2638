"""Predictors: the slowdown of two or three processes of one thread each that share two cores of a CPU.

Idea. What contends is time on the cores: of n processes each gets 2/n of a core, never more than one. Besides, what
runs at the same time shares caches and memory, which hurts a process the more it lives from memory, and the more its
neighbours do. So the log slowdown is that of the time, plus a few fitted weights for these.

Limits: measured on one kind of processor, with processes that always have work. Two threads of one core are no two
cores.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features.units import COLUMNS as UNIT_COLUMNS
from foretell.predictors.fitted_files import read_shipped
from foretell.records import Estimate

METHOD = "cores"
CORES = 2
COLUMNS = ("processes", "more_than_cores", "own_traffic", "traffic_beside", "traffic_of_both")
FILE = "sharing-cpu.json"
_MEMORY = UNIT_COLUMNS.index("log_memory_us")

Values = NDArray[np.float64]


@dataclass(frozen=True)
class CoreModel:
    """Weights of `COLUMNS`, and by number of processes the error in a log slowdown that nine in ten stay below."""

    weights: tuple[float, ...]
    widths: tuple[tuple[int, float], ...]

    @classmethod
    def load(cls, data: bytes) -> "CoreModel":
        """Read what `write` wrote."""
        try:
            content = json.loads(data)
            weights = tuple(float(content["weights"][name]) for name in COLUMNS)
            widths = tuple((int(n), float(width)) for n, width in content["widths"].items())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of shared cores: {error}.") from error
        if not all(map(math.isfinite, weights)) or not widths:
            raise ModelError("A fitted model of shared cores has finite weights and at least one width.")
        return cls(weights, widths)

    def slowdowns(self, traffic: Sequence[float]) -> tuple[Estimate, ...]:
        """How many times slower each process is than alone; ``traffic`` is the share of its time that memory takes."""
        width = dict(self.widths).get(len(traffic), max(own for _, own in self.widths))
        logs = log_time(len(traffic)) + describe(traffic) @ np.array(self.weights)
        return tuple(
            Estimate(math.exp(log), math.exp(max(log - width, 0.0)), math.exp(log + width))
            for log in np.maximum(logs, 0.0).tolist()
        )


def log_time(processes: int) -> float:
    """The log slowdown of processes that only share the time of the cores.

    >>> [round(math.exp(log_time(processes)), 2) for processes in (1, 2, 3)]
    [1.0, 1.0, 1.5]
    """
    return math.log(max(processes / CORES, 1.0))


def describe(traffic: Sequence[float]) -> Values:
    """One row of `COLUMNS` for each process."""
    own, count = np.asarray(traffic, np.float64), len(traffic)
    # of those beside it, so many run at the same time
    beside = (own.sum() - own) * min(CORES - 1, count - 1) / max(count - 1, 1)
    return np.stack([np.ones(count), np.full(count, float(count > CORES)), own, beside, own * beside], axis=1)


def traffic_of(features: NDArray[np.float32], counts: Values, bound_us: Values) -> float:
    """The share of a workload's least time that its memory traffic takes."""
    total_us = float(bound_us @ counts)
    if total_us <= 0:
        return 0.0
    return min(1.0, float(np.exp2(features[:, _MEMORY].astype(np.float64)) @ counts) / total_us)


def write(model: CoreModel, card: dict[str, Any]) -> bytes:
    """A fitted model as one file; ``card`` says what it was fitted to and how accurate it is."""
    weights = dict(zip(COLUMNS, model.weights, strict=True))
    content = {**card, "weights": weights, "widths": {str(n): width for n, width in model.widths}}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


@cache
def shipped() -> CoreModel | None:
    """The model that the package ships, or None."""
    data = read_shipped(FILE)
    return None if data is None else CoreModel.load(data)
