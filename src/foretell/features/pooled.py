"""Features: one row for a whole workload: its units pooled, and its settings.

A network repeats its blocks, so many of its units are equal. Equal units are merged into one row with a count, because
equal rows get equal predictions.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, KINDS, PHASES, SCHEMA, Units
from foretell.graph.memory.allocator import BLOCK_BYTES
from foretell.records import TF32, Workload
from foretell.units import mib

MODES = ("inference", "training", "prefill", "decode")
OPTIMIZERS = ("", "sgd", "adamw")
DTYPES = ("fp32", "fp16", "bf16")
_LEAST_MIB = mib(BLOCK_BYTES)  # a graph of empty tensors takes nothing, which has no logarithm
_SHORT_US = 3.0  # a kernel shorter than this is mostly launch overhead
# the kinds whose backward time gets a column of its own; the others are summed in "backward_rest"
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
    """The distinct units of a workload, how often each occurs, and the least time that one needs.

    ``member`` maps each unit of the workload to its row.
    """

    features: NDArray[np.float32]
    counts: NDArray[np.float64]
    bound_us: NDArray[np.float64]
    member: NDArray[np.intp]

    @classmethod
    def of(cls, units: Units) -> "DistinctUnits":
        """Merge the equal units of a workload."""
        rows = np.ascontiguousarray(units.features)
        # equal rows have equal bytes: a number that is not finite or −0 does not occur
        size, data = rows.shape[1] * rows.itemsize, rows.tobytes()
        numbers: dict[bytes, int] = {}
        found = [numbers.setdefault(data[at : at + size], len(numbers)) for at in range(0, len(data), size)]
        merged = np.array(found, np.intp)
        first = np.empty(len(numbers), np.intp)
        first[merged[::-1]] = np.arange(len(found) - 1, -1, -1)  # of several the first one stays
        # in the order of their bytes, whatever the order of the units
        keys = list(numbers)
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.intp)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        member, chosen = place[merged], first[order]
        counts = np.bincount(member, minlength=len(order)).astype(np.float64)
        return cls(rows[chosen], counts, units.bound_us[chosen], member)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def first(self) -> NDArray[np.intp]:
        """For each row the position of the first unit of the workload that is equal to it."""
        return np.unique(self.member, return_index=True)[1]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a workload, and its analytic peak memory."""

    mode: str
    dtype: str
    batch_size: int
    optimizer: str
    memory_mib: float
    options: tuple[str, ...] = ()  # not a feature: rows of units show what they change

    @classmethod
    def of(cls, workload: Workload, memory_mib: float) -> "Setting":
        """Take the settings from a workload."""
        optimizer, options = workload.optimizer or "", workload.options
        # the tensors of tf32 are those of fp32; which products run in it the units say
        dtype = "fp32" if workload.dtype == TF32 else workload.dtype
        return cls(workload.mode, dtype, workload.batch_size, optimizer, memory_mib, options)


def pool(units: DistinctUnits, unit_us: NDArray[np.float64], setting: Setting) -> NDArray[np.float32]:
    """Return a row of `POOLED_COLUMNS`, given the time of each distinct unit."""
    rows, counts = units.features, units.counts
    times_us = unit_us * counts
    total_us, bound_us, number = float(times_us.sum()), float((units.bound_us * counts).sum()), float(counts.sum())
    kind, phase = rows[:, _AT["kind"]].astype(int), rows[:, _AT["phase"]].astype(int)
    short = unit_us < _SHORT_US
    parameters, outputs = np.exp2(rows[:, _AT["log_parameter_bytes"]]), np.exp2(rows[:, _AT["log_written_bytes"]])
    # the spread of the units' times, on a logarithmic scale
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
        float(times_us[short].sum()) / total_us,
        math.sqrt(float(((logs - mean_log) ** 2 * counts).sum()) / number),
        float(_code(DTYPES, setting.dtype)),
        float(_code(MODES, setting.mode)),
        float(setting.batch_size),
        float(_code(OPTIMIZERS, setting.optimizer)),
        math.log(max(setting.memory_mib, _LEAST_MIB)),
        math.log(float(parameters.max())),
        math.log(float((parameters * counts).sum())),
        math.log(float(outputs.max())),
        math.log(float((outputs * counts).sum())),
    ]
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    shares = np.zeros((len(PHASES), len(KINDS)))
    np.add.at(shares, (phase, kind), times_us / total_us)
    # the order of the following values is that of POOLED_COLUMNS
    values += shares[forward].tolist()
    values += [float(shares[backward, KINDS.index(name)]) for name in _BACKWARD_KINDS]
    values.append(float(shares[backward].sum()) - sum(values[-len(_BACKWARD_KINDS) :]))
    values.append(float(shares[PHASES.index("optimizer")].sum()))
    return np.array(values, dtype=np.float32)


def _code(known: tuple[str, ...], value: str) -> int:
    return known.index(value) if value in known else -1
