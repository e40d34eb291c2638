"""Predictors: transfer: latency, power and energy on GPUs that were not measured, from a model fitted to one that was.

`foretell.predictors.transfer.model` has the rule for a unit. Here the units of a workload are summed, brought within
what is physically possible, and given an interval. It comes from GPUs that were left out of the fit: an error of the
whole device, which many units share, and one of each unit, which shrinks as units average out. Where nothing of a
GPU's architecture was in the public measurements, and for training steps, the first is wider. What the measured
device's predictor doubts, this one doubts too: the interval there is a third part of the width, and a warning names the
parts of a workload that are unlike anything measured there.

A power limit that the user lowered slows what would draw more (`foretell.predictors.transfer.clock.limited_share`).

Power: the load and the clock say which share of the power limit arithmetic needs; a byte takes as much energy as on the
measured device; the power at rest is the roofline's share of the limit. Memory is the roofline's.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import InputError
from foretell.features import COLUMNS, Units, extract_units
from foretell.features.pooled import DistinctUnits, Setting
from foretell.graph import Graph
from foretell.predictors.fitted_files import best_fitted
from foretell.predictors.options import with_options
from foretell.predictors.roofline import (
    BASE_SHARE_OF_TDP,
    CONSTANTS_FROM,
    LEAST_LATENCY_MS,
    MEMORY_POWER_SLOPE,
    POWER_HIGH,
    POWER_LOW,
    RooflinePredictor,
    analytic_prediction,
    peak_memory_mib,
)
from foretell.predictors.transfer.clock import base_share, limited_share, squared_voltage
from foretell.predictors.transfer.model import TransferModel, UnitWork, shipped_numbers
from foretell.predictors.transfer.places import Places
from foretell.predictors.unit.model import WorkloadPrediction
from foretell.predictors.unit.predictor import doubts, operator_shares, shipped
from foretell.predictors.unit.reach import Reach
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.units import ms, per_second, seconds_from_ms, seconds_from_us

_COMPUTE, _MEMORY = (COLUMNS.index(name) for name in ("log_compute_us", "log_memory_us"))

Values = NDArray[np.float64]
# A sweep predicts one graph for many devices. By the id of a graph: a weak reference to it, which clears the entry when
# the graph is gone, and by setting what its units take on the H200.
_Key = tuple[str | bool | None, ...]
_cache: dict[int, tuple["weakref.ref[Graph]", dict[_Key, "OnSource"]]] = {}


@dataclass(frozen=True)
class OnSource:
    """A workload on the measured device: its units, and what the predictor of that device says about them."""

    units: Units
    distinct: DistinctUnits
    prediction: WorkloadPrediction
    reach: Reach

    @property
    def unit_us(self) -> Values:
        """The time of each unit there."""
        return self.prediction.unit_us[self.distinct.member]

    @property
    def half_width(self) -> float:
        """Half of the width of the interval there, in log(ratio)."""
        latency = self.prediction.estimates["latency_ms"]
        return math.log(latency.high / latency.value)


@dataclass(frozen=True)
class _Described:
    """A workload with what the roofline says of it, and what its units take on the measured device."""

    workload: Workload
    base: Prediction
    units: Units
    source: OnSource


class TransferPredictor:
    """Predicts for GPUs of NVIDIA whose clock is known, from the times on `CONSTANTS_FROM`."""

    name = "transfer"

    def __init__(self, model: TransferModel | None = None) -> None:
        self._model = model

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        _check_clocks([workload])
        (source,) = on_sources([workload])
        ((times_us, _, _),) = self._transferred([(workload, extract_units(workload), source)])
        return times_us[units.first]

    def predict(self, workload: Workload) -> Prediction:
        """Latency, power and energy transferred from the fitted model; memory as the roofline predicts it."""
        return self.predict_many([workload])[0]

    def predict_many(self, workloads: Sequence[Workload]) -> list[Prediction]:
        """The predictions of several workloads, on any devices; the measured device's model is asked once for all."""
        bases = [analytic_prediction(workload, with_breakdown=False) for workload in workloads]
        units = [extract_units(workload) for workload in workloads]
        found: list[Prediction | None] = [None] * len(workloads)
        asked = []
        for number, (base, own) in enumerate(zip(bases, units, strict=True)):
            # a graph of views alone launches nothing: there is no unit to transfer
            if len(own) and base.power_w is not None:
                asked.append(number)
            else:
                found[number] = RooflinePredictor().predict(workloads[number])
        _check_clocks([workloads[number] for number in asked])
        sources = on_sources([workloads[number] for number in asked])
        triples = [(workloads[n], units[n], source) for n, source in zip(asked, sources, strict=True)]
        for number, source, there in zip(asked, sources, self._transferred(triples), strict=True):
            described = _Described(workloads[number], bases[number], units[number], source)
            found[number] = self._answer(described, there)
        return [prediction for prediction in found if prediction is not None]

    def _answer(self, asked: _Described, there: "_There") -> Prediction:
        """The prediction within what is possible, with its parts, and its doubts in words."""
        workload, base, source, device = asked.workload, asked.base, asked.source, asked.workload.target.device
        latency_ms = ms(seconds_from_us(float(there.times_us.sum())))
        width = math.exp(math.hypot(self._half_width(workload, there.times_us), source.half_width))
        latency = Estimate(latency_ms, latency_ms / width, latency_ms * width).at_least(base.facts[LEAST_LATENCY_MS])
        latency, power, notes = _limited(device, latency, _power(workload, asked.units, there))
        seconds = (seconds_from_ms(time_ms) for time_ms in (latency.value, latency.low, latency.high))
        energy = (time_s * watts for time_s, watts in zip(seconds, (power.value, power.low, power.high), strict=True))
        answer = replace(
            base,
            predictor=self.name,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            power_w=power,
            energy_j=Estimate(*energy),
            breakdown=operator_shares(asked.units, there.times_us, latency.value),
            warnings=(
                extrapolated(device),
                *_throttling(workload, there),
                *notes,
                *base.warnings,
                *doubts(
                    source.reach, source.distinct, source.prediction, there.times_us[source.distinct.first], "an H200"
                ),
            ),
            extrapolated=True,
        )
        return with_options(answer, workload)

    @property
    def _numbers(self) -> TransferModel:
        return self._model or shipped_numbers()

    def _transferred(self, asked: Sequence[tuple[Workload, Units, OnSource]]) -> list["_There"]:
        """The time of each unit on the device of each workload, and the clock that it holds."""
        if not asked:
            return []
        source = find_device(CONSTANTS_FROM)
        own = np.concatenate([units.features[:, [_COMPUTE, _MEMORY]] for _, units, _ in asked]).astype(np.float64)
        compute_us, memory_us = np.exp2(own).T
        ends = np.cumsum([len(units) for _, units, _ in asked])
        first = np.concatenate([[0], ends[:-1]]).astype(np.intp)
        features = np.concatenate([known.units.features for _, _, known in asked])
        source_us = np.concatenate([known.unit_us for _, _, known in asked])
        work = UnitWork(features, source_us, compute_us, memory_us, np.ones(len(features)), first)
        places = Places.of_many([workload.target.hardware for workload, _, _ in asked], source)
        there = self._numbers.times_us(work, places, source)
        shares, loads = there.clock_share.tolist(), there.load.tolist()
        return [_There(*each) for each in zip(np.split(there.times_us, ends[:-1]), shares, loads, strict=True)]

    def _half_width(self, workload: Workload, times_us: Values) -> float:
        """Half of the width of the interval, in log(ratio)."""
        model, shares = self._numbers, times_us / times_us.sum()
        # training steps were measured on one other GPU: no second one says how far off they are
        is_near = workload.target.device.architecture in model.architectures and not workload.is_training
        # as many units of equal length would vary as much
        units = 1.0 / float((shares**2).sum())
        return math.hypot(model.device_width if is_near else model.far_width, model.unit_width / math.sqrt(units))


class _There(NamedTuple):
    """One workload on its device: the time of each unit, the share of the boost clock, and the load."""

    times_us: Values
    clock_share: float
    load: float


def _check_clocks(workloads: Sequence[Workload]) -> None:
    for device in (workload.target.device for workload in workloads):
        if device.is_cpu or not device.boost_clock_mhz:
            raise InputError(
                f"transfer needs a GPU whose clock is known; {device.id} is not: use --predictor roofline."
            )


def extrapolated(device: Device) -> str:
    """A warning that says what the prediction for this device rests on."""
    return (
        f"uncalibrated: {device.id} is extrapolated from an H200 until measured data covers it; no measurement of a "
        f"whole model on {device.name} by foretell went into this answer: its latency comes from what units of work "
        "take on an H200 and from public tables of operators on other GPUs, its memory from an analytic model"
    )


def _throttling(workload: Workload, there: _There) -> tuple[str, ...]:
    share = there.clock_share
    if share >= _FULL_CLOCK:
        return ()
    device = workload.target.device
    return (
        f"{device.id} cannot hold its boost clock under this load: about {share * (device.boost_clock_mhz or 0.0):.0f} "
        f"of {device.boost_clock_mhz:.0f} MHz at its {device.rated_tdp_w or device.tdp_w:.0f} W.",
    )


_FULL_CLOCK = 0.95
_BELOW_LIMIT = 0.85  # of the limit: who is held down by it draws as much or more, on average
_LEAST_JUDGED = 0.35  # of the maker's power limit: nothing below was held against measurements


def _limited(device: Device, latency: Estimate, power: Estimate) -> tuple[Estimate, Estimate, tuple[str, ...]]:
    """Latency and power under a limit that the user lowered below the maker's, and what is to say about it."""
    rated_w, limit_w = device.rated_tdp_w, device.tdp_w
    if rated_w is None or limit_w >= rated_w:
        return latency, power, ()
    shares = [limited_share(watts, limit_w, rated_w) for watts in (power.value, power.low, power.high)]
    slower = Estimate(latency.value / shares[0], latency.low / shares[1], latency.high / shares[2])
    least_w = min(power.low, _BELOW_LIMIT * limit_w)
    capped = Estimate(min(power.value, limit_w), least_w, min(power.high, limit_w))
    notes = []
    if shares[0] < 1.0:
        notes.append(
            f"At {limit_w:.0f} W instead of {rated_w:.0f} W {device.id} keeps about {shares[0]:.0%} of its clock: this "
            f"would draw about {power.value:.0f} W. The rule was held against four other GPUs with lowered limits."
        )
    if limit_w < _LEAST_JUDGED * rated_w:
        notes.append(
            f"A limit of {limit_w:.0f} W is {limit_w / rated_w:.0%} of the maker's: nothing that low was held against "
            "measurements, and the time may be far off. For another card with its own limit state its base clock."
        )
    return slower, capped, tuple(notes)


def _power(workload: Workload, units: Units, there: _There) -> Estimate:
    """At the power limit where the limit holds the clock down; else by load and traffic."""
    device, hardware = workload.target.device, workload.target.hardware
    tdp_w = device.rated_tdp_w or device.tdp_w
    at_limit, held = squared_voltage(np.array([base_share(device), there.clock_share])).tolist()
    arithmetic = there.load * held / (base_share(device) * at_limit)
    traffic_us = np.exp2(units.features[:, _MEMORY].astype(np.float64)).sum()
    traffic = float(traffic_us / there.times_us.sum()) * hardware.bandwidth_gb_per_s / device.bandwidth_gb_per_s
    # a byte takes as much energy as on the measured device, where the slope comes from
    source = find_device(CONSTANTS_FROM)
    bytes_per_watt = device.bandwidth_gb_per_s / tdp_w / (source.bandwidth_gb_per_s / source.tdp_w)
    busy = min(1.0, arithmetic + MEMORY_POWER_SLOPE * bytes_per_watt * traffic)
    power_w = tdp_w * (BASE_SHARE_OF_TDP + (1 - BASE_SHARE_OF_TDP) * busy)
    return Estimate(power_w, power_w * POWER_LOW, min(power_w * POWER_HIGH, tdp_w))


def on_source(workload: Workload) -> OnSource:
    """What the predictor of the measured device says about a workload, cached while the graph lives."""
    return on_sources([workload])[0]


def on_sources(workloads: Sequence[Workload]) -> list[OnSource]:
    """The same for several workloads; the predictor is asked once about all that are not cached."""
    tables = [_cached(workload.graph) for workload in workloads]
    keys = [
        (workload.mode, workload.dtype, workload.optimizer, workload.channels_last, workload.target.runtime)
        for workload in workloads
    ]
    source = find_device(CONSTANTS_FROM)
    asked: dict[tuple[int, _Key], tuple[Units, DistinctUnits, Setting]] = {}
    for workload, table, key in zip(workloads, tables, keys, strict=True):
        if key not in table and (id(table), key) not in asked:
            there = replace(workload, target=Target(source, None, workload.target.runtime))
            units = extract_units(there)
            asked[id(table), key] = units, DistinctUnits.of(units), Setting.of(there, peak_memory_mib(there))
    if asked:
        model = shipped(source.id, best_fitted(source.id) or "")
        # nothing of the power on the source is transferred
        questions = [(distinct, setting, math.nan) for _, distinct, setting in asked.values()]
        answers = dict(zip(asked, model.predict_many(questions), strict=True))
        for table, key in zip(tables, keys, strict=True):
            if (id(table), key) in asked:
                units, distinct, _ = asked[id(table), key]
                table[key] = OnSource(units, distinct, answers[id(table), key], model.reach)
    return [table[key] for table, key in zip(tables, keys, strict=True)]


def _cached(graph: Graph) -> dict[_Key, OnSource]:
    """What is cached of a graph."""
    graph_id = id(graph)
    if graph_id not in _cache:
        _cache[graph_id] = weakref.ref(graph, lambda _: _cache.pop(graph_id, None)), {}
    return _cache[graph_id][1]
