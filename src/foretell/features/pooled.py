"""Features: one row for a whole workload: its units pooled, and its settings.

A network repeats its blocks, so many of its units are equal. Equal units are merged into one row with a count, because
equal rows get equal predictions.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, KINDS, PHASES, SCHEMA, Units
from foretell.frozen import dataclass
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
_EXPONENTS = [_AT[f"log_{name}"] for name in ("parameter_bytes", "written_bytes", "compute_us", "memory_us")]

Values = NDArray[np.float64]


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
        rows = units.rows
        numbers: defaultdict[bytes, int] = defaultdict(count().__next__)  # a new row gets the next number
        # equal rows have equal bytes: a number that is not finite or −0 does not occur
        merged = np.array(list(map(numbers.__getitem__, bytes_of(rows))), np.intp)
        first = np.empty(len(numbers), np.intp)
        first[merged[::-1]] = np.arange(len(merged) - 1, -1, -1)  # of several the first one stays
        # in the order of their bytes, whatever the order of the units
        keys = list(numbers)
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.intp)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        member, chosen = place[merged][units.member], first[order]
        counts = np.bincount(member, minlength=len(order)).astype(np.float64)
        return cls(rows[chosen], counts, units.row_bound_us[chosen], member)

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


def bytes_of(rows: NDArray[Any]) -> list[bytes]:
    """The bytes of each row.

    >>> bytes_of(np.array([[1, 0], [2, 1]], np.uint8))
    [b'\\x01\\x00', b'\\x02\\x01']
    """
    joined = np.ascontiguousarray(rows)
    size = joined.shape[1] * joined.itemsize
    return joined.view(np.dtype((np.void, size)))[:, 0].tolist() if len(joined) else []


def pool(units: DistinctUnits, unit_us: NDArray[np.float64], setting: Setting) -> NDArray[np.float32]:
    """Return a row of `POOLED_COLUMNS`, given the time of each distinct unit."""
    return np.asarray(pool_many(Stacked.of([units]), unit_us, [setting])[0])


@dataclass(frozen=True)
class Stacked:
    """The distinct units of several workloads, one after the other; each workload has some."""

    features: NDArray[np.float32]
    counts: Values
    bound_us: Values
    starts: NDArray[np.intp]  # the first row of each workload
    owner: NDArray[np.intp]  # the workload of each row

    @classmethod
    def of(cls, workloads: Sequence[DistinctUnits]) -> "Stacked":
        """Stack the units of some workloads."""
        sizes = [len(units) for units in workloads]
        starts = np.zeros(len(sizes), np.intp)
        np.cumsum(sizes[:-1], out=starts[1:])
        if len(workloads) == 1:
            (units,) = workloads
            return cls(units.features, units.counts, units.bound_us, starts, np.zeros(len(units), np.intp))
        return cls(
            np.concatenate([units.features for units in workloads]),
            np.concatenate([units.counts for units in workloads]),
            np.concatenate([units.bound_us for units in workloads]),
            starts,
            np.repeat(np.arange(len(sizes)), sizes),
        )

    def sums(self, values: Values) -> Values:
        """The sum over the rows of each workload."""
        return np.asarray(np.bincount(self.owner, values, len(self.starts)), np.float64)

    def means(self, unit_us: Values, values: Values) -> Values:
        """The mean over the units of each workload, weighted by the time that all of them take."""
        weights = unit_us * self.counts
        return self.sums(weights * values) / self.sums(weights)

    def largest(self, values: Values) -> Values:
        """The largest value of each workload."""
        return np.asarray(np.maximum.reduceat(values, self.starts), np.float64)

    def split(self, values: Values) -> list[Values]:
        """The values of each workload."""
        return np.split(values, self.starts[1:]) if len(self.starts) > 1 else [values]


def pool_many(units: Stacked, unit_us: Values, settings: Sequence[Setting]) -> NDArray[np.float32]:
    """Return a row of `POOLED_COLUMNS` for each workload, given the time of each distinct unit."""
    rows, counts, owner = units.features, units.counts, units.owner
    times_us = unit_us * counts
    total_us, bound_us, number = units.sums(times_us), units.sums(units.bound_us * counts), units.sums(counts)
    kind, phase = rows[:, _AT["kind"]].astype(np.intp), rows[:, _AT["phase"]].astype(np.intp)
    short = unit_us < _SHORT_US
    parameters, outputs, compute_us, memory_us = np.exp2(rows[:, _EXPONENTS]).T
    # the spread of the units' times, on a logarithmic scale
    logs = np.log(unit_us)
    mean_log = units.sums(logs * counts) / number
    values = [
        np.log(total_us),
        np.log(bound_us),
        np.log(total_us / bound_us),
        np.log(number),
        np.log(total_us / number),
        units.largest(unit_us) / total_us,
        units.sums(compute_us * counts) / total_us,
        units.sums(memory_us * counts) / total_us,
        units.sums(counts * short) / number,
        units.sums(times_us * short) / total_us,
        np.sqrt(units.sums((logs - mean_log[owner]) ** 2 * counts) / number),
        [_code(DTYPES, setting.dtype) for setting in settings],
        [_code(MODES, setting.mode) for setting in settings],
        [setting.batch_size for setting in settings],
        [_code(OPTIMIZERS, setting.optimizer) for setting in settings],
        [math.log(max(setting.memory_mib, _LEAST_MIB)) for setting in settings],
        np.log(units.largest(parameters)),
        np.log(units.sums(parameters * counts)),
        np.log(units.largest(outputs)),
        np.log(units.sums(outputs * counts)),
    ]
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    place, size = (owner * len(PHASES) + phase) * len(KINDS) + kind, (len(settings), len(PHASES), len(KINDS))
    shares = np.bincount(place, times_us / total_us[owner], math.prod(size)).reshape(size)
    # the order of the following values is that of POOLED_COLUMNS
    own = shares[:, backward][:, [KINDS.index(name) for name in _BACKWARD_KINDS]]
    rest = shares[:, backward].sum(axis=1) - own.sum(axis=1)
    updates = shares[:, PHASES.index("optimizer")].sum(axis=1)
    columns = [*values, *shares[:, forward].T, *own.T, rest, updates]
    return np.array(columns, np.float64).T.astype(np.float32)


def _code(known: tuple[str, ...], value: str) -> int:
    return known.index(value) if value in known else -1
