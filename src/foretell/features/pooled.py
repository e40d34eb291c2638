"""Features: one row a workload: its units pooled, and how it runs.

Equal units are one row with a count: a network repeats its blocks, and equal rows have equal times.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, KINDS, PHASES, SCHEMA, Units
from foretell.records import Workload

MODES = ("inference", "training", "prefill", "decode")
OPTIMIZERS = ("", "sgd", "adamw")
DTYPES = ("fp32", "fp16", "bf16")
_SHORT_US = 3.0  # below this a kernel is mostly launch
# of these kinds the backward pass takes times of its own
_BACKWARD_KINDS = ("elementwise", "normalisation", "pooling", "contraction", "attention")

POOLED_COLUMNS = (
    "log_time_us", "log_bound_us", "log_ratio", "log_units", "log_mean_us", "largest_share", "compute_share",
    "memory_share", "short_units", "short_share", "unit_spread", "dtype", "mode", "batch", "optimizer",
    "log_memory_mib",
    "log_largest_parameter", "log_parameters", "log_largest_output", "log_outputs",
    *(f"forward_{kind}" for kind in KINDS), *(f"backward_{kind}" for kind in _BACKWARD_KINDS), "backward_rest",
    "optimizer_share",
)  # fmt: skip
POOLED_SCHEMA = hashlib.sha256("|".join((SCHEMA, *POOLED_COLUMNS)).encode()).hexdigest()[:16]
_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class DistinctUnits:
    """Units that differ, how often each occurs, and what the device needs for one at least."""

    features: NDArray[np.float32]
    counts: NDArray[np.float64]
    bound_us: NDArray[np.float64]
    member: NDArray[np.intp]

    @classmethod
    def of(cls, units: Units) -> "DistinctUnits":
        """Merge equal units; ``member`` says for each unit which row is its own."""
        features, first, member, counts = np.unique(
            units.features, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        return cls(features, counts.astype(np.float64), units.bound_us[first], member.ravel())

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def first(self) -> NDArray[np.intp]:
        """Of each distinct unit the place of the first one of a workload that is equal to it."""
        return np.unique(self.member, return_index=True)[1]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a workload runs, and the memory that it needs by count."""

    mode: str
    dtype: str
    batch_size: int
    optimizer: str
    memory_mib: float

    @classmethod
    def of(cls, workload: Workload, memory_mib: float) -> "Setting":
        """The setting of a workload."""
        return cls(workload.mode, workload.dtype, workload.batch_size, workload.optimizer or "", memory_mib)


def pool(units: DistinctUnits, unit_us: NDArray[np.float64], setting: Setting) -> NDArray[np.float32]:
    """A row of `POOLED_COLUMNS` from the time of each distinct unit."""
    rows, counts = units.features, units.counts
    spent = unit_us * counts
    total_us, bound_us, number = float(spent.sum()), float((units.bound_us * counts).sum()), float(counts.sum())
    kind, phase = rows[:, _AT["kind"]].astype(int), rows[:, _AT["phase"]].astype(int)
    short = unit_us < _SHORT_US
    parameters, outputs = np.exp2(rows[:, _AT["log_parameter_bytes"]]), np.exp2(rows[:, _AT["log_written_bytes"]])
    logs = np.log(unit_us)
    mean_log = float((logs * counts).sum()) / number
    values = [
        math.log(total_us),
        math.log(bound_us),
        math.log(total_us / bound_us),
        math.log(number),
        math.log(total_us / number),
        float(unit_us.max()) / total_us,
        float((np.exp2(rows[:, _AT["log_compute_us"]]) * counts).sum()) / total_us,
        float((np.exp2(rows[:, _AT["log_memory_us"]]) * counts).sum()) / total_us,
        float(counts[short].sum()) / number,
        float(spent[short].sum()) / total_us,
        math.sqrt(float(((logs - mean_log) ** 2 * counts).sum()) / number),
        float(_code(DTYPES, setting.dtype)),
        float(_code(MODES, setting.mode)),
        float(setting.batch_size),
        float(_code(OPTIMIZERS, setting.optimizer)),
        math.log(setting.memory_mib),
        math.log(float(parameters.max())),
        math.log(float((parameters * counts).sum())),
        math.log(float(outputs.max())),
        math.log(float((outputs * counts).sum())),
    ]
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    shares = np.zeros((len(PHASES), len(KINDS)))
    np.add.at(shares, (phase, kind), spent / total_us)
    values += shares[forward].tolist()
    values += [float(shares[backward, KINDS.index(name)]) for name in _BACKWARD_KINDS]
    values.append(float(shares[backward].sum()) - sum(values[-len(_BACKWARD_KINDS) :]))
    values.append(float(shares[PHASES.index("optimizer")].sum()))
    return np.array(values, dtype=np.float32)


def _code(known: tuple[str, ...], value: str) -> int:
    return known.index(value) if value in known else -1
