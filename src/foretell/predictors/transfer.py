"""predictors: what a network fitted to one GPU tells of others that nobody measured.

A unit takes the time that the device needs for its arithmetic and its traffic, which follows from the peaks, and what
its kernels take beyond that: to start, and the work of SMs. Both are the same number of cycles on every device, and the
latter is shared by its SMs. The network tells all for the device that was measured; here the first is put at the
other's peaks, the rest at its clock and SMs. Nothing is fitted (``docs/lab/0022-other-gpus.md``). Memory and power are
the roofline's.
"""

import weakref
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import InputError
from foretell.features import COLUMNS, Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.predictors.fitted_files import best_fitted
from foretell.predictors.roofline import (
    BEST_COMPUTE,
    BEST_MEMORY,
    CONSTANTS_FROM,
    RooflinePredictor,
    analytic_prediction,
)
from foretell.predictors.unit.model import operator_shares, shipped
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.units import ms, per_second, seconds_from_ms, seconds_from_us

# measured over told, nine times in ten, on two GPUs that were not measured here; others may be farther off
LATENCY_LOW, LATENCY_HIGH = 0.65, 1.6
_COMPUTE, _MEMORY, _LAUNCHES = (COLUMNS.index(name) for name in ("log_compute_us", "log_memory_us", "launches"))

Values = NDArray[np.float64]
# by graph, a sweep asks for many devices: how each is used, and what its units take
_kept: dict[int, tuple["weakref.ref[Graph]", dict[tuple[str | None, ...], tuple[Values, Values]]]] = {}


class TransferPredictor:
    """Answers for GPUs with tensor cores, by what `CONSTANTS_FROM` takes."""

    name = "transfer"

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        return _transferred_us(workload, extract_units(workload))[units.first]

    def predict(self, workload: Workload) -> Prediction:
        """Latency from the network, the rest as the roofline tells it."""
        base = analytic_prediction(workload)
        units = extract_units(workload)
        if not len(units) or base.power_w is None:
            return RooflinePredictor().predict(workload)
        unit_us = _transferred_us(workload, units)
        latency_ms = ms(seconds_from_us(float(unit_us.sum())))
        latency = Estimate(latency_ms, latency_ms * LATENCY_LOW, latency_ms * LATENCY_HIGH)
        seconds, power = (seconds_from_ms(each) for each in (latency.value, latency.low, latency.high)), base.power_w
        energy = (each * watts for each, watts in zip(seconds, (power.value, power.low, power.high), strict=True))
        return replace(
            base,
            predictor=self.name,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            energy_j=Estimate(*energy),
            breakdown=operator_shares(units, unit_us, latency_ms),
            warnings=(extrapolated(workload.target.device), *base.warnings),
            extrapolated=True,
        )


def extrapolated(device: Device) -> str:
    """What an answer for this device rests on, said plainly."""
    return (
        f"uncalibrated: {device.id} is extrapolated from an H200 until measured data covers it; no measurement of "
        f"{device.name} went into this answer: its latency comes from what units of work take on an H200, memory and "
        "power from an analytic roofline"
    )


def _transferred_us(workload: Workload, units: Units) -> Values:
    """The time of each unit on the workload's device."""
    source, hardware = find_device(CONSTANTS_FROM), workload.target.hardware
    if hardware.device.is_cpu or not hardware.device.boost_clock_mhz:
        raise InputError(
            f"transfer needs a GPU whose clock is known, and {hardware.device.id} is none: use --predictor roofline."
        )
    slower = (source.boost_clock_mhz or 0.0) / hardware.device.boost_clock_mhz
    starting_us, working_us = _beyond_us(workload, source)
    return np.asarray(_least_us(units) + (starting_us + working_us * source.sms / hardware.sms) * slower)


def _beyond_us(workload: Workload, source: Device) -> tuple[Values, Values]:
    """What units take on the device that was measured beyond what its peaks need: to start, and by work of SMs.

    Kept while the graph lives.
    """
    place, key = id(workload.graph), (workload.mode, workload.dtype, workload.optimizer, workload.target.runtime)
    if place not in _kept:
        _kept[place] = weakref.ref(workload.graph, lambda _: _kept.pop(place, None)), {}
    known = _kept[place][1]
    if key not in known:
        units = extract_units(replace(workload, target=Target(source, None, workload.target.runtime)))
        distinct = DistinctUnits.of(units)
        told_us = shipped(source.id, best_fitted(source.id) or "").times_us(distinct)[distinct.member]
        beyond_us = np.maximum(told_us - _least_us(units), 0.0)
        launches = np.exp2(units.features[:, _LAUNCHES].astype(np.float64)) - 1.0
        starting_us = np.minimum(beyond_us, launches * source.launch_overhead_us)
        known[key] = starting_us, beyond_us - starting_us
    return known[key]


def _least_us(units: Units) -> Values:
    """What arithmetic and traffic take at the best shares of the peaks."""
    compute, memory = (np.exp2(units.features[:, column].astype(np.float64)) for column in (_COMPUTE, _MEMORY))
    return np.asarray(np.maximum(compute / BEST_COMPUTE, memory / BEST_MEMORY))
