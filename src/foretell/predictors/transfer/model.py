"""Predictors: what a unit takes on a GPU that was not measured, from what it takes on one that was.

Idea. The time of a unit has three parts: what its arithmetic and traffic need at the device's peaks, the time to start
its kernels, and further work of the SMs that the peaks do not explain. The first is computed for both devices. What the
measured device takes beyond it is divided into the other two: starting takes the same number of cycles of the boost
clock everywhere; the work takes the same number of cycles too, and is shared by all SMs at the clock that the workload
can hold (`foretell.predictors.transfer.clock`). The measured device has a power limit as well, so its own clock under
the unit is taken out first.

Fitted to public measurements of operators on ten GPUs, and of networks on two (``docs/lab/0035-transfer.md``): the
share of the bandwidth that streams reach, by kind of memory; how much tensor cores and vector units draw; and a factor
for each class of unit on GPUs that are older than the measured one. In fp32 the libraries of older GPUs run other
kernels than the measured one's, better or worse by the shape: there a factor follows a few sizes of the unit
(`SLOPED`). None of these depends on the size of a device, so one that has more of everything is never slower.

A unit may need less than its counted arithmetic: a causal attention skips half of it, a convolution by Winograd's
algorithm more. Where the measured device is faster than its peaks, the other one is taken to save as much.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, Hardware
from foretell.errors import ModelError
from foretell.features import COLUMNS
from foretell.features.operator_codes import operator_code
from foretell.features.units import DTYPES, KINDS, SCHEMA
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.roofline import BEST_COMPUTE
from foretell.predictors.transfer.clock import base_share, sustained_share, vector_share
from foretell.units import bytes_from_mib

FILE = "transfer.json"
CLASSES = ("product", "convolution", "grouped convolution", "attention", "elementwise", "rows", "other")


@dataclass(frozen=True)
class Sloped:
    """Units in fp32 whose factor on older GPUs follows some of their ``sizes``."""

    kind: str  # one of `CLASSES`
    sizes: tuple[str, ...]
    operators: tuple[str, ...] = ()  # of these alone; all without any
    least_window: int = 0
    is_batched: bool = False
    before_ampere: bool = False  # on GPUs older than Ampere alone


SLOPED: Mapping[str, Sloped] = MappingProxyType(
    {
        "batched product": Sloped("product", ("log_output", "log_n", "log_k", "log_m"), is_batched=True),
        "wide convolution": Sloped(
            "convolution", ("log_output", "log_k", "log_n", "log_intensity"), least_window=3, before_ampere=True
        ),
        # the code of the operator tells the two apart
        "rows": Sloped("rows", ("operator", "log_row"), operators=("Softmax", "LayerNormalization")),
    }
)
_FARTHEST = 2.0  # standard deviations of a size beyond which it counts no more
MEMORIES = ("stacked", "stacked, old", "checked", "plain")
_STACKED = ("6.0", "7.0", "8.0", "9.0", "10.0", "10.3")  # compute capabilities of the chips with HBM
_OLD, _AMPERE = "6.", (8, 0)
_ATTENTION_WORK = 0.5  # an assumption: of its counted products; a mask skips the rest, or exponentials take its time
_AT = {name: position for position, name in enumerate(COLUMNS)}

Values = NDArray[np.float64]


def memory_kind(device: Device) -> str:
    """The kind of a device's memory: HBM, or GDDR, which keeps its error-correcting codes beside the data.

    GeForce cards have no such codes.

    >>> from foretell.devices import find_device
    >>> [memory_kind(find_device(name)) for name in ("h200", "p100", "t4", "rtx-4090")]
    ['stacked', 'stacked, old', 'checked', 'plain']
    """
    if device.compute_capability in _STACKED:
        return "stacked, old" if device.compute_capability.startswith(_OLD) else "stacked"
    return "plain" if "GeForce" in device.name else "checked"


def _capability(device: Device) -> tuple[int, ...]:
    return tuple(int(part) for part in (device.compute_capability or "0").split("."))


@dataclass(frozen=True)
class UnitWork:
    """The units of one workload or of several: what they need on the measured device and on the other one.

    ``features`` are those on the measured device. ``first`` are the rows where workloads begin.
    """

    features: NDArray[np.float32]
    source_us: Values
    compute_us: Values
    memory_us: Values
    count: Values
    first: NDArray[np.intp]

    @property
    def classes(self) -> NDArray[np.intp]:
        """The class of each unit, as a position in `CLASSES`."""
        kind, groups = (self.features[:, _AT[name]] for name in ("kind", "groups"))
        is_window = self.features[:, _AT["kernel"]] > 0
        found = np.full(len(kind), CLASSES.index("other"))
        product = kind == KINDS.index("contraction")
        found[product] = CLASSES.index("product")
        found[product & is_window] = CLASSES.index("convolution")
        found[product & is_window & (groups > 1)] = CLASSES.index("grouped convolution")
        found[kind == KINDS.index("attention")] = CLASSES.index("attention")
        for name in ("elementwise", "generator"):
            found[kind == KINDS.index(name)] = CLASSES.index("elementwise")
        for name in ("normalisation", "reduction"):
            found[kind == KINDS.index(name)] = CLASSES.index("rows")
        return found

    def is_sloped(self, name: str) -> NDArray[np.bool_]:
        """Whether each unit is one of those in fp32 whose factor follows their sizes, under a name of `SLOPED`."""
        sloped = SLOPED[name]
        operator, dtype, kernel, many = (
            self.features[:, _AT[column]] for column in ("operator", "dtype", "kernel", "log_many")
        )
        found = (self.classes == CLASSES.index(sloped.kind)) & (dtype == DTYPES.index("fp32"))
        if sloped.operators:
            found &= np.isin(operator, [operator_code(name) for name in sloped.operators])
        if sloped.least_window:
            found &= kernel >= sloped.least_window
        return np.asarray(found & (many > 1.0) if sloped.is_batched else found)

    @property
    def on_tensor_cores(self) -> NDArray[np.bool_]:
        """Whether a unit's arithmetic is that of tensor cores, in half precision."""
        share, dtype = (self.features[:, _AT[name]] for name in ("tensor_core_share", "dtype"))
        return np.asarray((share > 0) & (dtype != DTYPES.index("fp32")))


@dataclass(frozen=True)
class Places:
    """What counts of the devices on which workloads run, a value each workload."""

    base: Values
    memory: NDArray[np.intp]  # a position in `MEMORIES`
    vector: Values  # what vector units draw as a share of what tensor cores draw
    clock: Values  # boost clock of the measured device / that of this one
    sms: Values  # SMs of the measured device / those that the workload can use
    part: Values  # the share of its SMs that the workload can use
    l2: Values  # log2 of the bytes of its L2 cache
    older: Values  # 1 where the architecture is older than the measured device's, else 0
    oldest: Values  # 1 where it is older than Ampere

    @classmethod
    def of(cls, hardware: Hardware, source: Device) -> "Places":
        """Those of one workload."""
        return cls.of_many([hardware], source)

    @classmethod
    def of_many(cls, places: Sequence[Hardware], source: Device) -> "Places":
        """Those of several workloads."""
        base, memory, *rest = zip(*(_place(hardware, source) for hardware in places), strict=True)
        return cls(np.array(base), np.array(memory, np.intp), *(np.array(numbers) for numbers in rest))


def _place(hardware: Hardware, source: Device) -> tuple[float, ...]:
    """A row of `Places`."""
    device, l2 = hardware.device, math.log2(bytes_from_mib(hardware.l2_mib))
    is_older, is_oldest = (float(_capability(device) < limit) for limit in (_capability(source), _AMPERE))
    clock = (source.boost_clock_mhz or 0.0) / (device.boost_clock_mhz or 1.0)
    memory = MEMORIES.index(memory_kind(device))
    sms = source.sms / hardware.sms
    return (
        base_share(device), memory, vector_share(device), clock, sms, hardware.sm_fraction, l2, is_older, is_oldest,
    )  # fmt: skip


@dataclass(frozen=True)
class TransferModel:
    """The fitted numbers."""

    memory_shares: Mapping[str, float]
    cached_share: float  # of the bandwidth, where all that a run moves fits into the L2 cache
    tensor_demand: float
    vector_demand: float
    factors: Mapping[str, float]  # logarithms, by class: on GPUs that are older than the measured one
    old_factors: Mapping[str, float]  # in addition on those that are older than Ampere
    # by name of `SLOPED` and size: its mean and its standard deviation over the measured units, and the slope
    slopes: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    # half widths of 90 % intervals in log(ratio): of a device, of a unit, and of a device of a new architecture
    device_width: float = 0.3
    unit_width: float = 0.3
    far_width: float = 0.4
    architectures: tuple[str, ...] = ()

    def times_us(self, work: UnitWork, places: Places, source: Device) -> "Transferred":
        """The time of each unit, and the clock that each workload holds."""
        rows = np.diff(np.append(work.first, len(work.source_us)))

        def spread(values: Values) -> Values:
            return np.repeat(values, rows)

        demand = self._demand(work, spread(places.vector))
        there = self._overheads(work, source)
        streamed = spread(self._shares()[places.memory])
        is_cached = work.features[:, _AT["log_moved_in_all"]] <= spread(places.l2)
        memory_us = (
            work.memory_us * there.saved / np.where(is_cached, np.maximum(self.cached_share, streamed), streamed)
        )
        compute_us = work.compute_us * there.saved
        cycles_us = there.working_us * spread(places.sms * places.clock)
        starting_us = there.starting_us * spread(places.clock)

        factors, old_factors = (
            np.array([numbers.get(name, 0.0) for name in CLASSES])[work.classes]
            for numbers in (self.factors, self.old_factors)
        )
        correction = np.exp(
            factors * spread(places.older)
            + old_factors * spread(places.oldest)
            + self._sloped(work, spread(places.older), spread(places.oldest))
        )

        def at(share: Values) -> Values:
            # starts keep the boost clock, so that a part of a device, which is throttled less, is never faster
            slowed = spread(share)
            peak_us = np.maximum(compute_us / BEST_COMPUTE / slowed, memory_us)
            return (peak_us + starting_us + cycles_us / slowed) * correction

        def load_at(share: Values) -> Values:
            busy = np.add.reduceat(demand * compute_us * work.count, work.first)
            return busy / np.add.reduceat(at(share) * work.count, work.first) * places.part

        share = sustained_share(load_at, places.base)
        return Transferred(at(share), share, load_at(share))

    def _demand(self, work: UnitWork, vector: Values) -> Values:
        """How much of the heaviest load a unit is while its arithmetic runs at the peak."""
        demand = np.where(work.on_tensor_cores, self.tensor_demand, self.vector_demand * vector)
        return np.asarray(demand * np.where(work.classes == CLASSES.index("attention"), _ATTENTION_WORK, 1.0))

    def _sloped(self, work: UnitWork, older: Values, oldest: Values) -> Values:
        """The logarithm of the factor that follows the sizes of a unit."""
        logs = np.zeros(len(work.source_us))
        for name, sizes in self.slopes.items():
            there = work.is_sloped(name) * (oldest if SLOPED[name].before_ampere else older)
            for column, (mean, deviation, slope) in sizes.items():
                logs += there * slope * standardised(work.features[:, _AT[column]], mean, deviation)
        return logs

    def _shares(self) -> Values:
        return np.array([self.memory_shares[name] for name in MEMORIES])

    def _overheads(self, work: UnitWork, source: Device) -> "_Overheads":
        compute_us, memory_us = (
            np.exp2(work.features[:, _AT[name]].astype(np.float64)) for name in ("log_compute_us", "log_memory_us")
        )
        demand = self._demand(work, np.full(len(work.source_us), vector_share(source)))
        busy = demand * np.minimum(1.0, compute_us / work.source_us)
        # the measured time is at the clock that the source holds: its arithmetic would be faster without the limit
        held = sustained_share(lambda share: busy * share, np.full(len(busy), base_share(source)))
        bound_us = np.maximum(compute_us / BEST_COMPUTE / held, memory_us / self.memory_shares[memory_kind(source)])
        saved = np.minimum(1.0, work.source_us / bound_us)
        peak_us = bound_us * saved
        beyond_us = np.maximum(work.source_us - peak_us, 0.0)
        launches = np.exp2(work.features[:, _AT["launches"]].astype(np.float64)) - 1.0
        # starting takes at most the launch overhead of the datasheet times the launches; the rest is work
        starting_us = np.minimum(beyond_us, launches * source.launch_overhead_us)
        return _Overheads(saved, starting_us, beyond_us - starting_us)


def standardised(sizes: NDArray[np.float32], mean: float, deviation: float) -> Values:
    """Sizes in standard deviations from the mean; far ones count as near ones, so that nothing is extrapolated."""
    return np.clip((sizes.astype(np.float64) - mean) / deviation, -_FARTHEST, _FARTHEST)


@dataclass(frozen=True)
class Transferred:
    """What is told: the time of each unit, and of each workload the clock and the load of the arithmetic units."""

    times_us: Values
    clock_share: Values  # of the boost clock
    load: Values


@dataclass(frozen=True)
class _Overheads:
    saved: Values  # what is left of the counted arithmetic and traffic
    starting_us: Values
    working_us: Values


def write(model: TransferModel, card: Mapping[str, object]) -> bytes:
    """The fitted numbers as a file; ``card`` says what they were fitted to and how far off they are."""
    return (json.dumps({**card, "schema": SCHEMA, "fitted": asdict(model)}, indent=1, sort_keys=True) + "\n").encode()


def load(data: bytes) -> TransferModel:
    """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
    try:
        card = json.loads(data)
        fitted = {**card["fitted"], "architectures": tuple(card["fitted"]["architectures"])}
        fitted["slopes"] = {name: _read_slopes(name, sizes) for name, sizes in fitted.get("slopes", {}).items()}
        schema, model = card["schema"], TransferModel(**fitted)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"These {len(data)} bytes are no fitted numbers of transfer: {error}.") from error
    if schema != SCHEMA:
        raise ModelError(
            "transfer was fitted to other features than today's; fit it again: python -m lab fit transfer."
        )
    return model


def _read_slopes(name: str, sizes: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float, float]]:
    if name not in SLOPED or set(sizes) != set(SLOPED[name].sizes):
        raise ValueError(f"it has slopes of {name!r} that this foretell does not know")
    found = {}
    for size, (mean, deviation, slope) in sizes.items():
        if not all(map(math.isfinite, (mean, deviation, slope))) or deviation <= 0:
            raise ValueError(f"the slope of {name!r} by {size!r} is not a number that can be")
        found[size] = (float(mean), float(deviation), float(slope))
    return found


@cache
def shipped_numbers() -> TransferModel:
    """The numbers that the package ships."""
    data = read_shipped(FILE)
    if data is None:
        raise ModelError(f"The package lacks {FILE}: install foretell again, or use --predictor roofline.")
    return load(data)
