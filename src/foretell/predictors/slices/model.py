"""Predictors: latency on a part of a GPU, from the latency on the whole of it.

Idea: Amdahl's law (G. Amdahl, AFIPS 1967). A share φ of a unit's time is spread over the SMs, and the rest is not. On n
of N SMs a unit takes 1 + φ (N/n − 1) times as long. One φ for each workload describes its time on every slice to 2 %;
here φ is a logistic function of a few features of each unit, so that it can be predicted for workloads that were not
measured (`foretell.predictors.slices.fit` fits it). Under MPS each launch costs a little more.

Consequences: more SMs are never slower, and all SMs without MPS give the latency of the whole device.

Limits: measured for MPS and green contexts, which share caches and bandwidth with the rest of the device. MIG, which
divides them, was not measured; there the predictor itself answers, from the peaks of the slice.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Slice
from foretell.errors import ModelError
from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.protocol import Predictor
from foretell.predictors.slices.features import SLICE_COLUMNS, SLICE_SCHEMA, describe_scaling, launches_of
from foretell.records import Estimate, OperatorShare, Prediction, Workload
from foretell.units import per_second, seconds_from_ms

METHODS = {"mps": "mps", "sms": "green-context"}  # kind of slice → method of measuring it
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

    @classmethod
    def load(cls, data: bytes) -> "SliceModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            card = json.loads(data)
            schema, fitted = card["schema"], card["fitted"]
            vectors = {name: tuple(map(float, fitted[name])) for name in ("weights", "middle", "spread")}
            errors = tuple((float(share), float(error)) for share, error in fitted["errors"])
            numbers = float(fitted["base"]), float(fitted["mps_launch_us"])
            model = cls(str(fitted["device"]), numbers[0], **vectors, mps_launch_us=numbers[1], errors=errors)
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

    def unit_times_us(self, features: NDArray[np.float32], unit_us: Values, part: Slice, device_sms: int) -> Values:
        """The time of each unit on a part of the device, from its time on the whole."""
        shares = self.scaled_shares(features, unit_us, green=METHODS[part.kind] != "mps")
        times_us = unit_us * (1.0 + shares * (device_sms / part.sms - 1.0))
        return times_us + self.mps_launch_us * launches_of(features) if part.kind == "mps" else times_us

    def width(self, share: float) -> float:
        """The error in log(ratio) that nine in ten stay below on a share of the SMs."""
        if not self.errors:
            return 0.0
        known, errors = zip(*sorted(self.errors), strict=True)
        # beyond the measured shares, `np.interp` takes the nearest one
        return float(np.interp(share, known, errors))


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

    The predictor itself answers for a whole device, and for kinds of slices that were not measured (MIG).
    """

    def __init__(self, predictor: UnitTimePredictor, model: SliceModel) -> None:
        self.whole_device = predictor
        self.model = model

    def predict(self, workload: Workload) -> Prediction:
        """Latency by the model of slices; memory and power as the predictor gives them."""
        part = workload.target.slice
        sliced = self.whole_device.predict(workload)
        if part is None or part.kind not in METHODS or sliced.latency_ms is None:
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
        latency = _widened(full.latency_ms, scale, self.model.width(share) if scale > 1.0 else 0.0)
        return replace(
            sliced,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            energy_j=energy_of(sliced.power_w, latency),
            breakdown=_breakdown(units, part_us, latency.value, sliced.breakdown),
            warnings=full.warnings,
        )

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        part = workload.target.slice
        if part is None or part.kind not in METHODS:
            return self.whole_device.unit_times_us(workload, units)
        _, part_us = self._times_us(workload, extract_units(on_whole_device(workload)))
        # units that are equal on the slice may differ on the whole device: the mean of their times
        return np.asarray(np.bincount(units.member, part_us, len(units)) / units.counts)

    def _times_us(self, workload: Workload, units: Units) -> tuple[Values, Values]:
        """The time of each unit on the whole device, and on its part."""
        part, distinct = workload.target.slice, DistinctUnits.of(units)
        assert part is not None
        whole_us = self.whole_device.unit_times_us(on_whole_device(workload), distinct)
        part_us = self.model.unit_times_us(distinct.features, whole_us, part, workload.target.device.sms)
        return whole_us[distinct.member], part_us[distinct.member]


def on_slices(predictor: Predictor, device: str) -> Predictor:
    """The predictor with the shipped model of slices; the predictor itself where there is no such model."""
    model = shipped(device)
    return (
        SlicedPredictor(predictor, model)
        if model is not None and isinstance(predictor, UnitTimePredictor)
        else predictor
    )


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
