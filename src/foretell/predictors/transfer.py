"""Predictors: transfer: from a model fitted to one GPU to other GPUs, which were not measured.

Idea. The time of a unit has three parts: what its arithmetic and traffic need at the peaks of the device (`_peak_us`),
the time to start its kernels, and further work of the SMs that the peaks do not explain. The fitted model predicts the
whole for the H200; what is beyond the first part is divided into the other two. For another device the first part is
computed from its own peaks. Starting takes the same number of cycles everywhere, so it scales with the clock. The work
of the SMs also takes the same number of cycles and is shared by all SMs. Nothing is fitted
(``docs/lab/0022-other-gpus.md``). Memory and power are the roofline's.

Limits: other GPUs may run other kernels, have smaller caches, or throttle. The interval comes from two GPUs with public
measurements; the prediction is always marked as extrapolated.
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
from foretell.predictors.options import with_options
from foretell.predictors.roofline import (
    BEST_COMPUTE,
    BEST_MEMORY,
    CONSTANTS_FROM,
    LEAST_LATENCY_MS,
    RooflinePredictor,
    analytic_prediction,
)
from foretell.predictors.unit.predictor import operator_shares, shipped
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.units import ms, per_second, seconds_from_ms, seconds_from_us

# measured / predicted, nine times in ten, on two other GPUs with public measurements; others may be farther off
LATENCY_LOW, LATENCY_HIGH = 0.65, 1.6
_COMPUTE, _MEMORY, _LAUNCHES = (COLUMNS.index(name) for name in ("log_compute_us", "log_memory_us", "launches"))

Values = NDArray[np.float64]
# A sweep predicts one graph for many devices. By the id of a graph: a weak reference to it, which clears the entry when
# the graph is gone, and by setting the starting and working times on the H200.
_cache: dict[int, tuple["weakref.ref[Graph]", dict[tuple[str | bool | None, ...], tuple[Values, Values]]]] = {}


class TransferPredictor:
    """Predicts for GPUs with tensor cores, from the times on `CONSTANTS_FROM`."""

    name = "transfer"

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        return _transferred_us(workload, extract_units(workload))[units.first]

    def predict(self, workload: Workload) -> Prediction:
        """Latency transferred from the fitted model; memory and power as the roofline predicts them."""
        base = analytic_prediction(workload)
        units = extract_units(workload)
        if not len(units) or base.power_w is None:
            return RooflinePredictor().predict(workload)
        unit_us = _transferred_us(workload, units)
        latency_ms = ms(seconds_from_us(float(unit_us.sum())))
        latency = Estimate(latency_ms, latency_ms * LATENCY_LOW, latency_ms * LATENCY_HIGH)
        latency = latency.at_least(base.facts[LEAST_LATENCY_MS])
        seconds, power = (
            (seconds_from_ms(time_ms) for time_ms in (latency.value, latency.low, latency.high)),
            base.power_w,
        )
        energy = (time_s * watts for time_s, watts in zip(seconds, (power.value, power.low, power.high), strict=True))
        answer = replace(
            base,
            predictor=self.name,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            energy_j=Estimate(*energy),
            breakdown=operator_shares(units, unit_us, latency_ms),
            warnings=(extrapolated(workload.target.device), *base.warnings),
            extrapolated=True,
        )
        return with_options(answer, workload)


def extrapolated(device: Device) -> str:
    """A warning that says what the prediction for this device rests on."""
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
            f"transfer needs a GPU whose clock is known; {hardware.device.id} is not: use --predictor roofline."
        )
    clock_ratio = (source.boost_clock_mhz or 0.0) / hardware.device.boost_clock_mhz
    starting_us, working_us = _overheads_us(workload, source)
    # cycles at another clock; the work of SMs is shared by another number of them
    return np.asarray(_peak_us(units) + (starting_us + working_us * source.sms / hardware.sms) * clock_ratio)


def _overheads_us(workload: Workload, source: Device) -> tuple[Values, Values]:
    """The time of units on the measured device beyond what its peaks need: to start, and by work of the SMs.

    It is cached while the graph lives.
    """
    graph_id, runtime = id(workload.graph), workload.target.runtime
    key = (workload.mode, workload.dtype, workload.optimizer, workload.channels_last, runtime)
    if graph_id not in _cache:
        _cache[graph_id] = weakref.ref(workload.graph, lambda _: _cache.pop(graph_id, None)), {}
    by_setting = _cache[graph_id][1]
    if key not in by_setting:
        units = extract_units(replace(workload, target=Target(source, None, workload.target.runtime)))
        distinct = DistinctUnits.of(units)
        predicted_us = shipped(source.id, best_fitted(source.id) or "").times_us(distinct)[distinct.member]
        # a prediction below the peaks would leave a negative rest
        beyond_us = np.maximum(predicted_us - _peak_us(units), 0.0)
        launches = np.exp2(units.features[:, _LAUNCHES].astype(np.float64)) - 1.0
        # starting takes at most the launch overhead of the datasheet times the launches; the rest is work
        starting_us = np.minimum(beyond_us, launches * source.launch_overhead_us)
        by_setting[key] = starting_us, beyond_us - starting_us
    return by_setting[key]


def _peak_us(units: Units) -> Values:
    """The time that arithmetic and traffic take at the best shares of the peaks."""
    compute, memory = (np.exp2(units.features[:, column].astype(np.float64)) for column in (_COMPUTE, _MEMORY))
    return np.asarray(np.maximum(compute / BEST_COMPUTE, memory / BEST_MEMORY))
