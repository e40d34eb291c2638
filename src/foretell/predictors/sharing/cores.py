"""Predictors: the slowdown of two or three processes of one thread each that share two cores of a CPU.

Idea. What contends is time on the cores: of n processes each gets 2/n of a core, never more than one. What caches and
memory add is measured: one number for each n. How much of its time a model spends on memory says nothing more about it
(docs/lab/0043-cpu-sharing.md).

Limits: measured on one kind of processor, with processes that always have work. Two threads of one core are no two
cores. Of three processes one may have a core to itself for seconds: the interval knows, the value is the mean.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from foretell.errors import ModelError
from foretell.predictors.fitted_files import read_shipped
from foretell.records import Estimate

METHOD = "cores"
CORES = 2
FILE = "sharing-cpu.json"


@dataclass(frozen=True)
class CoreModel:
    """By number of processes the log slowdown of each, and the error in it that nine in ten stay below."""

    slowdowns: dict[int, tuple[float, float]]

    @classmethod
    def load(cls, data: bytes) -> "CoreModel":
        """Read what `write` wrote."""
        try:
            found = {
                int(count): (float(one["log_slowdown"]), float(one["width"]))
                for count, one in json.loads(data)["slowdowns"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of shared cores: {error}.") from error
        if not found or not all(math.isfinite(log) and math.isfinite(width) for log, width in found.values()):
            raise ModelError(
                "A fitted model of shared cores has finite slowdowns for at least one number of processes."
            )
        return cls(found)

    def slowdown(self, processes: int) -> Estimate:
        """How many times slower each process is than alone."""
        if processes not in self.slowdowns:
            raise ModelError(f"Nobody measured {processes} processes on {CORES} cores.")
        log, width = self.slowdowns[processes]
        return Estimate(math.exp(log), math.exp(max(log - width, 0.0)), math.exp(log + width))


def log_time(processes: int) -> float:
    """The log slowdown of processes that only share the time of the cores.

    >>> [round(math.exp(log_time(processes)), 2) for processes in (1, 2, 3)]
    [1.0, 1.0, 1.5]
    """
    return math.log(max(processes / CORES, 1.0))


def write(model: CoreModel, card: dict[str, Any]) -> bytes:
    """A fitted model as one file; ``card`` says what it was fitted to and how accurate it is."""
    slowdowns = {str(n): {"log_slowdown": log, "width": width} for n, (log, width) in model.slowdowns.items()}
    return (json.dumps({**card, "slowdowns": slowdowns}, indent=1, sort_keys=True) + "\n").encode()


@cache
def shipped() -> CoreModel | None:
    """The model that the package ships, or None."""
    data = read_shipped(FILE)
    return None if data is None else CoreModel.load(data)
