"""Predictors: latency and power on a part of a GPU, from those on the whole of it.

Idea: Amdahl's law (G. Amdahl, AFIPS 1967). A share φ of a unit's time is spread over the SMs, and the rest is not. On n
of N SMs a unit takes 1 + φ (N/n − 1) times as long. One φ for each workload describes its time on every slice to 2 %;
here φ is a logistic function of a few features of each unit, so that it can be predicted for workloads that were not
measured (`foretell.predictors.slices.fit` fits it). Under MPS each launch costs a little more.

Power: a run needs the same energy for its arithmetic and traffic on every slice, and a device that runs anything draws
a floor. So power above the floor falls as latency grows: P = floor + (P of the whole − floor) · T of the whole / T.
With one measured floor this is 3 % off on 43 workloads.

A MIG instance owns a part of the bandwidth too. The share of a unit's time that its traffic needs at the peak is
divided by that part; the slower of both limits counts. Where all that a run moves fits into the instance's part of the
L2 cache, its traffic goes there, at `_CACHE_PACE` times the bandwidth of that part.

Other GPUs: the same unit takes as many cycles of n SMs there as on the measured device, so φ of a unit is that of the
measured device with as many SMs as the other one has (`shares_with`). Small work leaves most of a large GPU idle, so a
seventh of it is far less than seven times slower: a ResNet-50 at batch 1 twice, not five times as its peaks would say.

Consequences: more SMs or bandwidth are never slower, a slice draws no more than the whole, and all SMs give the latency
of the whole device.

Limits: measured for MPS and green contexts, which share caches and bandwidth with the rest of the device. MIG was not
measured: such predictions are marked as extrapolated, with wide intervals. With all SMs, MPS costs about 8 % on small
workloads (``mps_launch_us`` a launch). That is in the interval and in a warning, not in the value: ``mps:100`` means
the whole device, and the cost fades in between 100 and 90 %.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, Slice, find_device
from foretell.errors import ModelError
from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.protocol import Predictor
from foretell.predictors.roofline import CONSTANTS_FROM, LEAST_LATENCY_MS
from foretell.predictors.slices.features import (
    SLICE_COLUMNS,
    SLICE_SCHEMA,
    describe_scaling,
    fits_cache,
    launches_of,
    traffic_shares,
)
from foretell.predictors.transfer.predictor import on_source
from foretell.records import Estimate, OperatorShare, Prediction, Workload
from foretell.units import ms, per_second, seconds_from_ms, seconds_from_us

METHODS = {"mps": "mps", "sms": "green-context"}  # kind of slice → method of measuring it
_FULL_COST_BELOW = 0.9  # share of the SMs: from here to all of them the cost of a launch under MPS fades to 0
_LARGE_COST = 0.02  # of the latency: a smaller cost of MPS is not worth a warning
_CACHE_PACE = 2.0  # streams from the L2 over streams from the memory, as `foretell characterise` measured on an H200
_MIG_WIDTH = 0.3  # log(ratio): MIG was not measured, so its intervals are wider
_MIG_WARNING = "MIG was not measured: SMs scale as under MPS, bandwidth as the instance owns it."
_OTHER_WARNING = "Slices were measured on an {} alone: those of other GPUs follow it, SM for SM."
_MAX_LOGIT = 20.0  # beyond this the logistic function is 0 or 1, and exp would overflow

Values = NDArray[np.float64]


@runtime_checkable
class UnitTimePredictor(Predictor, Protocol):
    """A predictor that also predicts the times of units."""

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        ...


@dataclass(frozen=True)
class SliceModel:
    """The model fitted to the slices of one device.

    ``errors`` pairs a share of the SMs with the error in log(ratio) that nine in ten held-out slices stay below.
    """

    device: str
    base: float
    weights: tuple[float, ...]
    middle: tuple[float, ...]
    spread: tuple[float, ...]
    mps_launch_us: float
    errors: tuple[tuple[float, float], ...] = ()
    floor_w: float = 0.0  # what the device draws as soon as anything runs

    @classmethod
    def load(cls, data: bytes) -> "SliceModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            card = json.loads(data)
            schema, fitted = card["schema"], card["fitted"]
            vectors = {name: tuple(map(float, fitted[name])) for name in ("weights", "middle", "spread")}
            errors = tuple((float(share), float(error)) for share, error in fitted["errors"])
            numbers = float(fitted["base"]), float(fitted["mps_launch_us"])
            floor_w = float(fitted["floor_w"])
            model = cls(
                str(fitted["device"]), numbers[0], **vectors, mps_launch_us=numbers[1], errors=errors, floor_w=floor_w
            )
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of slices: {error}.") from error
        if schema != SLICE_SCHEMA or {len(vector) for vector in vectors.values()} != {len(SLICE_COLUMNS)}:
            raise ModelError(
                "This model of slices was fitted to other features than today's; fit it again: foretell train."
            )
        return model

    def scaled_shares(self, features: NDArray[np.float32], unit_us: Values, *, green: bool) -> Values:
        """The share φ of each unit's time that is spread over the SMs."""
        rows = (describe_scaling(features, unit_us, green=green) - self.middle) / self.spread
        return logistic(self.base + rows @ np.array(self.weights))

    def unit_times_us(
        self,
        features: NDArray[np.float32],
        unit_us: Values,
        part: Slice,
        device_sms: int,
        shares: Values | None = None,
        l2_mib: float = 0.0,
    ) -> Values:
        """The time of each unit on a part of the device, from its time on the whole.

        ``shares`` are those that are spread over the SMs, where they were found on another device. ``l2_mib`` is the L2
        cache that a MIG instance owns.
        """
        if shares is None:
            shares = self.scaled_shares(features, unit_us, green=part.kind == "sms")
        ratio = 1.0 + shares * (device_sms / part.sms - 1.0)
        if part.kind == "mig":
            traffic = traffic_shares(features, unit_us)
            in_cache = min(1.0, max(part.bandwidth_fraction, _CACHE_PACE * part.l2_fraction))
            owned = np.where(fits_cache(features, l2_mib), in_cache, part.bandwidth_fraction)
            ratio = np.maximum(ratio, 1.0 + traffic * (1.0 / owned - 1.0))
        return unit_us * ratio + self.launch_cost_us(part, device_sms) * launches_of(features)

    def launch_cost_us(self, part: Slice, device_sms: int) -> float:
        """What a launch costs more on a slice: nothing without MPS, and nothing with all SMs."""
        if part.kind != "mps":
            return 0.0
        return self.mps_launch_us * float(share_of_launch_cost(part.sms / device_sms))

    def power_w(self, whole: Estimate, scale: float, tdp_ratio: float = 1.0) -> Estimate:
        """The power on a slice that is ``scale`` times slower than the whole device.

        ``tdp_ratio`` is the power limit of the device over that of the fitted one: the floor is in proportion to it.
        """
        floor_w = self.floor_w * tdp_ratio
        return Estimate(*(_sliced_w(value, scale, floor_w) for value in (whole.value, whole.low, whole.high)))

    def width(self, share: float) -> float:
        """The error in log(ratio) that nine in ten stay below on a share of the SMs."""
        if not self.errors:
            return 0.0
        known, errors = zip(*sorted(self.errors), strict=True)
        # beyond the measured shares, `np.interp` takes the nearest one
        return float(np.interp(share, known, errors))


def shares_with(shares: Values, fitted_sms: int, sms: int) -> Values:
    """The shares φ of units on a device with ``sms`` SMs, from those on the fitted device.

    A unit takes (1 − φ) + φ N / n of its time on n of the fitted device's N SMs; the other device is one with n.

    >>> shares_with(np.array([0.0, 0.5, 1.0]), 132, 66).round(3).tolist()
    [0.0, 0.667, 1.0]
    """
    spread = shares * fitted_sms / sms
    return np.asarray(spread / (1.0 - shares + spread))


def share_of_launch_cost(sm_share: Values | float) -> Values:
    """How much of the cost of MPS counts: all of it up to 90 % of the SMs, nothing with all SMs.

    >>> share_of_launch_cost(np.array([0.1, 0.9, 0.95, 1.0])).round(3).tolist()
    [1.0, 1.0, 0.5, 0.0]
    """
    return np.minimum(1.0, (1.0 - np.asarray(sm_share)) / (1.0 - _FULL_COST_BELOW))


def _sliced_w(whole_w: float, scale: float, floor_w: float) -> float:
    # a device that draws less than the floor hardly works: on a slice it draws the same
    return whole_w if whole_w <= floor_w else floor_w + (whole_w - floor_w) / scale


def logistic(values: Values) -> Values:
    """Each value mapped to between 0 and 1."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -_MAX_LOGIT, _MAX_LOGIT))))


def write(model: SliceModel, card: dict[str, Any]) -> bytes:
    """A fitted model as one file; ``card`` says what it was fitted to and how accurate it is."""
    content = {**card, "schema": SLICE_SCHEMA, "columns": SLICE_COLUMNS, "fitted": asdict(model)}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def file_name(device: str) -> str:
    """The name of the file for a device."""
    return f"slices-{device}.json"


@cache
def shipped(device: str) -> SliceModel | None:
    """The model that the package ships for a device, or None."""
    data = read_shipped(file_name(device))
    return None if data is None else SliceModel.load(data)


class SlicedPredictor:
    """A predictor of whole devices, extended to slices by a `SliceModel`.

    The predictor itself answers for a whole device.
    """

    def __init__(self, predictor: UnitTimePredictor, model: SliceModel) -> None:
        self.whole_device = predictor
        self.model = model

    def predict(self, workload: Workload) -> Prediction:
        """Latency and power by the model of slices; memory as the predictor gives it."""
        part = workload.target.slice
        sliced = self.whole_device.predict(workload)
        if part is None or sliced.latency_ms is None:
            return sliced
        whole_workload = on_whole_device(workload)
        full, units = self.whole_device.predict(whole_workload), extract_units(whole_workload)
        # without units there is nothing to scale: keep the predictor's own estimate for the slice
        if full.latency_ms is None or not len(units):
            return sliced
        whole_us, part_us = self._times_us(workload, units)
        share = part.sms / workload.target.device.sms
        scale = float(part_us.sum() / whole_us.sum())
        # where the ratio is 1 it adds no uncertainty
        width = self.model.width(share) if scale > 1.0 else 0.0
        latency = _widened(full.latency_ms, scale, math.hypot(width, _MIG_WIDTH) if part.kind == "mig" else width)
        latency = latency.at_least(sliced.facts.get(LEAST_LATENCY_MS, 0.0))
        elsewhere = () if self._is_fitted_to(workload) else (_OTHER_WARNING.format(self.model.device.upper()),)
        latency, warning = self._with_launch_cost(latency, units, part, workload.target.device.sms)
        tdp_ratio = workload.target.device.tdp_w / find_device(self.model.device).tdp_w
        power = None if full.power_w is None else self.model.power_w(full.power_w, scale, tdp_ratio)
        return replace(
            sliced,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            power_w=power,
            energy_j=energy_of(power, latency),
            breakdown=_breakdown(units, part_us, latency.value, sliced.breakdown),
            extrapolated=full.extrapolated or part.kind == "mig",
            warnings=(*full.warnings, *([_MIG_WARNING] if part.kind == "mig" else []), *elsewhere, *warning),
        )

    def _with_launch_cost(
        self, latency: Estimate, units: Units, part: Slice, device_sms: int
    ) -> tuple[Estimate, tuple[str, ...]]:
        """Near all SMs: the interval with the cost of MPS that the value leaves out, and a warning if it is large."""
        if part.kind != "mps":
            return latency, ()
        missing_us = self.model.mps_launch_us - self.model.launch_cost_us(part, device_sms)
        missing_ms = ms(seconds_from_us(missing_us * float(launches_of(units.features).sum())))
        share = missing_ms / latency.value
        if share < _LARGE_COST:
            return latency, ()
        warning = f"MPS itself may cost about {share:.0%} here: measured, but not part of the value."
        return Estimate(latency.value, latency.low, latency.high + missing_ms), (warning,)

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        part = workload.target.slice
        if part is None:
            return self.whole_device.unit_times_us(workload, units)
        _, part_us = self._times_us(workload, extract_units(on_whole_device(workload)))
        # units that are equal on the slice may differ on the whole device: the mean of their times
        return np.asarray(np.bincount(units.member, part_us, len(units)) / units.counts)

    def _is_fitted_to(self, workload: Workload) -> bool:
        return workload.target.device.id == self.model.device

    def _times_us(self, workload: Workload, units: Units) -> tuple[Values, Values]:
        """The time of each unit on the whole device, and on its part."""
        part, device, distinct = workload.target.slice, workload.target.device, DistinctUnits.of(units)
        assert part is not None
        whole_us = self.whole_device.unit_times_us(on_whole_device(workload), distinct)[distinct.member]
        shares = None if self._is_fitted_to(workload) else self._shares_elsewhere(workload, part)
        l2_mib = workload.target.hardware.l2_mib
        return whole_us, self.model.unit_times_us(units.features, whole_us, part, device.sms, shares, l2_mib)

    def _shares_elsewhere(self, workload: Workload, part: Slice) -> Values:
        """The share of each unit's time that is spread over the SMs of a device that the model was not fitted to."""
        there = on_source(workload)
        shares = self.model.scaled_shares(there.units.features, there.unit_us, green=part.kind == "sms")
        return shares_with(shares, find_device(self.model.device).sms, workload.target.device.sms)


def on_slices(predictor: Predictor, device: Device) -> Predictor:
    """The predictor with the shipped model of slices; the predictor itself where there is no such model.

    GPUs of NVIDIA that have none of their own take the one of the measured device.
    """
    transferred = device.is_nvidia and bool(device.boost_clock_mhz)
    model = shipped(device.id) or (shipped(CONSTANTS_FROM) if transferred else None)
    if model is None or not isinstance(predictor, UnitTimePredictor):
        return predictor
    return SlicedPredictor(predictor, model)


def on_whole_device(workload: Workload) -> Workload:
    """The same workload on the whole device."""
    return replace(workload, target=replace(workload.target, slice=None))


def _widened(latency: Estimate, scale: float, width: float) -> Estimate:
    """A latency times a ratio that is itself uncertain; independent errors add as squares."""
    value = latency.value * scale
    below, above = math.log(latency.value / latency.low), math.log(latency.high / latency.value)
    return Estimate(value, value * math.exp(-math.hypot(below, width)), value * math.exp(math.hypot(above, width)))


def energy_of(power: Estimate | None, latency: Estimate) -> Estimate | None:
    """Power times latency; None where the power is not known."""
    if power is None:
        return None
    value, low, high = (seconds_from_ms(time_ms) for time_ms in (latency.value, latency.low, latency.high))
    return Estimate(power.value * value, power.low * low, power.high * high)


def _breakdown(
    units: Units, unit_us: Values, latency_ms: float, before: tuple[OperatorShare, ...]
) -> tuple[OperatorShare, ...]:
    """The rows of a breakdown with the times on a slice, longest first."""
    spent_us: dict[str, float] = {}
    for operator, phase, time_us in zip(units.operators, units.phases, unit_us.tolist(), strict=True):
        name = f"{operator} (backward)" if phase == "backward" else operator
        spent_us[name] = spent_us.get(name, 0.0) + time_us
    total_us = sum(spent_us.values())
    rows = [
        replace(row, latency_ms=latency_ms * spent_us[row.operator] / total_us, share=spent_us[row.operator] / total_us)
        for row in before
        if row.operator in spent_us
    ]
    return tuple(sorted(rows, key=lambda row: -row.latency_ms))
