"""Predictors: what a unit takes on a GPU that was not measured, from what it takes on one that was.

Idea. The time of a unit has three parts: what its arithmetic and traffic need at the device's peaks, the time to start
its kernels, and further work of the SMs that the peaks do not explain. The first is computed for both devices. What the
measured device takes beyond it is divided into the other two: starting takes the same number of cycles of the boost
clock everywhere; the work takes the same number of cycles too, and is shared by all SMs at the clock that the workload
can hold (`foretell.predictors.transfer.clock`). The measured device has a power limit as well, so its own clock under
the unit is taken out first.

Streams (element-wise operators, norms, copies) load and compute at the same time, so their traffic and their work add
up as cubes, between one after the other and the longer of both. An H200 has more bandwidth for each SM than any other
GPU, so that its SMs are what streams wait for; elsewhere it is the memory (``docs/lab/0069-other-gpus-again.md``).

Fitted to public measurements of operators on ten GPUs, and of networks on two (``docs/lab/0035-transfer.md``): the
share of the bandwidth that streams reach, by kind of memory; how much tensor cores and vector units draw; and a factor
for each class of unit on GPUs that are older than the measured one. In fp32 the libraries of older GPUs run other
kernels than the measured one's: there a factor follows a few sizes of the unit, and wide convolutions start from the
older GPU's own peaks (`foretell.predictors.transfer.shapes`). None of these depends on the size of a device, so one
that has more of everything is never slower.

A unit may need less than its counted arithmetic: a causal attention skips half of it, a convolution by Winograd's
algorithm more. Where the measured device is faster than its peaks, the other one is taken to save as much.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device
from foretell.errors import ModelError
from foretell.features import COLUMNS
from foretell.features.units import DTYPES, KINDS, SCHEMA
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.roofline import BEST_COMPUTE
from foretell.predictors.transfer.clock import base_share, sustained_share, vector_share
from foretell.predictors.transfer.places import MEMORIES, Places, memory_kind
from foretell.predictors.transfer.shapes import SHAPED, WINOGRAD_WORK, Shape, is_shaped, read_shape, sizes_of

FILE = "transfer.json"
CLASSES = ("product", "convolution", "grouped convolution", "attention", "elementwise", "rows", "other")
_STREAMS = tuple(CLASSES.index(name) for name in ("elementwise", "rows", "other"))
_MATRIX = tuple(CLASSES.index(name) for name in ("product", "attention"))
# an assumption: how far the work of an SM follows its vector lanes, of which an A100 has half as many as an H200; where
# matrix units do the work, not at all
_FOLLOWS_LANES = 0.5
_ATTENTION_WORK = 0.5  # an assumption: of its counted products; a mask skips the rest, or exponentials take its time
_AT = {name: position for position, name in enumerate(COLUMNS)}

Values = NDArray[np.float64]


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

    def is_shaped(self, name: str) -> NDArray[np.bool_]:
        """Whether each unit is one of those in fp32 whose factor follows their sizes, under a name of `SHAPED`."""
        return is_shaped(name, self.features, self.classes == CLASSES.index(SHAPED[name].kind))

    @property
    def on_tensor_cores(self) -> NDArray[np.bool_]:
        """Whether a unit's arithmetic is that of tensor cores, in half precision."""
        share, dtype = (self.features[:, _AT[name]] for name in ("tensor_core_share", "dtype"))
        return np.asarray((share > 0) & (dtype != DTYPES.index("fp32")))


@dataclass(frozen=True)
class TransferModel:
    """The fitted numbers."""

    memory_shares: Mapping[str, float]
    cached_share: float  # of the bandwidth, where all that a run moves fits into the L2 cache, as on the source
    tensor_demand: float
    vector_demand: float
    factors: Mapping[str, float]  # logarithms, by class: on GPUs that are older than the measured one
    old_factors: Mapping[str, float]  # in addition on those that are older than Ampere
    shapes: Mapping[str, Shape] = field(default_factory=dict)  # by name of `SHAPED`
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
        classes = work.classes
        is_stream = np.isin(classes, _STREAMS)
        there = self._overheads(work, source, is_stream)
        from_peaks, shaped = self._shaped(work, spread(places.older) > 0, spread(places.oldest) > 0)
        demand = np.where(from_peaks, demand * WINOGRAD_WORK, demand)
        saved = np.where(from_peaks, 1.0, there.saved)
        streamed = spread(self._shares()[places.memory])
        cached = self.cached_share * spread(places.cache)
        is_cached = work.features[:, _AT["log_moved_in_all"]] <= spread(places.l2)
        memory_us = work.memory_us * saved / np.where(is_cached, np.maximum(cached, streamed), streamed)
        compute_us = work.compute_us * saved
        slower = np.where(np.isin(classes, _MATRIX), 1.0, spread(places.lanes**_FOLLOWS_LANES))
        cycles_us = np.where(from_peaks, 0.0, there.working_us * spread(places.sms * places.clock) * slower)
        starting_us = np.where(from_peaks, 0.0, there.starting_us * spread(places.clock))

        factors, old_factors = (
            np.array([numbers.get(name, 0.0) for name in CLASSES])[classes]
            for numbers in (self.factors, self.old_factors)
        )
        by_class = np.where(from_peaks, 0.0, factors * spread(places.older) + old_factors * spread(places.oldest))
        correction = np.exp(by_class + shaped)
        # peaks say nothing about a unit that is nearly all launch: it takes as many cycles as where it was measured
        least_us = np.where(from_peaks, work.source_us * spread(places.clock), 0.0)

        def at(share: Values) -> Values:
            # starts keep the boost clock, so that a part of a device, which is throttled less, is never faster
            slowed = spread(share)
            peak_us = np.maximum(compute_us / BEST_COMPUTE / slowed, memory_us)
            return np.maximum((_together(peak_us, cycles_us / slowed, is_stream) + starting_us) * correction, least_us)

        def load_at(share: Values) -> Values:
            busy = np.add.reduceat(demand * compute_us * work.count, work.first)
            return busy / np.add.reduceat(at(share) * work.count, work.first) * places.part

        share = sustained_share(load_at, places.base)
        return Transferred(at(share), share, load_at(share))

    def _demand(self, work: UnitWork, vector: Values) -> Values:
        """How much of the heaviest load a unit is while its arithmetic runs at the peak."""
        demand = np.where(work.on_tensor_cores, self.tensor_demand, self.vector_demand * vector)
        return np.asarray(demand * np.where(work.classes == CLASSES.index("attention"), _ATTENTION_WORK, 1.0))

    def _shaped(
        self, work: UnitWork, is_older: NDArray[np.bool_], is_oldest: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], Values]:
        """Which units start from the peaks of the GPU itself, and the logarithms of factors that follow sizes."""
        from_peaks, logs = np.zeros(len(work.source_us), bool), np.zeros(len(work.source_us))
        for name, shape in self.shapes.items():
            there = work.is_shaped(name) & (is_oldest if SHAPED[name].from_peaks else is_older)
            logs[there] = shape.logs(sizes_of(name, work.features[there], work.source_us[there]))
            from_peaks |= there & SHAPED[name].from_peaks
        return from_peaks, logs

    def _shares(self) -> Values:
        return np.array([self.memory_shares[name] for name in MEMORIES])

    def _overheads(self, work: UnitWork, source: Device, is_stream: NDArray[np.bool_]) -> "_Overheads":
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
        working_us = beyond_us - starting_us
        return _Overheads(saved, starting_us, np.where(is_stream, _apart(peak_us, working_us), working_us))


def _together(peak_us: Values, working_us: Values, is_stream: NDArray[np.bool_]) -> Values:
    """Both parts of the time: one after the other, or as streams, which do much of both at the same time."""
    return np.where(is_stream, np.cbrt(peak_us**3 + working_us**3), peak_us + working_us)


def _apart(peak_us: Values, longer_us: Values) -> Values:
    """The work of a stream that makes it ``longer_us`` longer than its peaks; `_together` undoes it."""
    return np.asarray(np.cbrt(longer_us * (3.0 * peak_us * (peak_us + longer_us) + longer_us**2)))


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
        fitted["shapes"] = {name: read_shape(name, shape) for name, shape in fitted["shapes"].items()}
        schema, model = card["schema"], TransferModel(**fitted)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"These {len(data)} bytes are no fitted numbers of transfer: {error}.") from error
    if schema != SCHEMA:
        raise ModelError(
            "transfer was fitted to other features than today's; fit it again: python -m lab fit transfer."
        )
    return model


@cache
def shipped_numbers() -> TransferModel:
    """The numbers that the package ships."""
    data = read_shipped(FILE)
    if data is None:
        raise ModelError(f"The package lacks {FILE}: install foretell again, or use --predictor roofline.")
    return load(data)
