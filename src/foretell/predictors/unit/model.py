"""Predictors: unit models, the default: the time of every unit of work, then a correction of their sum.

Idea. A unit of work is an operator with what runs as part of it. Its analytic bound is the time that the roofline gives
it at the peaks of the datasheet. A network (or trees) predicts the logarithm of its time over this bound. The bound
already knows sizes and the device, so the ratio stays within a narrow range, and one model serves kernels of 1 µs and
of 100 ms. The times of the units are added up. Small trees on pooled features of the whole workload then correct the
sum, because a sum does not know gaps, overlap and clocks. Memory is the peak that the allocator's replay counts. Power
is the roofline's times a predicted ratio; where a network predicts the power of units, their mean is the power instead.
Energy is power times latency.

Intervals follow split conformal prediction: H. Papadopoulos et al., Inductive Confidence Machines for Regression, ECML
2002; J. Lei et al., Distribution-Free Predictive Inference for Regression, JASA 113, 2018. More trees predict how large
the error of this workload will be (in logarithms). Held-out errors are divided by that expected size, and the quantile
of these scores that covers nine in ten of them sets the width of every interval. So intervals are wide where errors
were large. The errors come from cross-fitting instead of one calibration set, as in V. Vovk's cross-conformal
predictors (2015), which uses all data at the price of a guarantee that is only approximate.

Limits. The guarantee holds for workloads that are exchangeable with the measured ones. Here the scores come from folds
that hold out whole architectures, so a new architecture of a known kind is close to exchangeable. A new family, a kind
of operator that was never measured, or another device is not. For those there is the distance: how far the pooled
features are from the nearest measured workloads, as a multiple of the distance that 99 in 100 held-out workloads stay
within. Above 1 the prediction carries a warning that its interval may be too narrow.

All parts are stored as arrays in one zip file, which `foretell.predictors.unit.fit_model` writes.
"""

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features import COLUMNS, SCHEMA, Units, extract_units
from foretell.features.encoded import encode
from foretell.features.operator_codes import operator_name
from foretell.features.pooled import POOLED_SCHEMA, DistinctUnits, Setting, pool
from foretell.features.units import PHASES
from foretell.predictors.fitted_files import TRAINED, shipped_index
from foretell.predictors.options import with_options
from foretell.predictors.roofline import (
    COMPUTE_EFFICIENCY,
    CONTEXT_MIB,
    LEAST_LATENCY_MS,
    MEMORY_EFFICIENCY,
    RooflinePredictor,
    analytic_prediction,
)
from foretell.predictors.trees import Trees
from foretell.predictors.unit.network import UnitNetwork, UnitPredictions
from foretell.predictors.unit.reach import Reach
from foretell.records import Estimate, OperatorShare, Prediction, Workload
from foretell.units import ms, per_second, seconds_from_ms, seconds_from_us

METRICS = ("latency_ms", "memory_mib", "power_w", "energy_j")
CORRECTED = ("latency_ms", "power_w")
NETWORK, REACH = "network", "reach"
# what the trees for errors know beside the pooled features and the distance: how far the members of the network differ,
# how far units lie beyond what was measured, and which share of the time such units take
DOUBTS = ("spread", "beyond", "new_share")
NEIGHBOURS = 5
_LIMITS = ("compute", "memory")
_NEW_SHARE = 0.05  # of the time in new units: below it no warning is due
_NAMED_PARTS = 3
_PHASE = COLUMNS.index("phase")
_MAX_WIDTH = math.log(20.0)  # an interval never goes beyond a twentieth and twenty times the value
# LightGBM treats a negative category as a missing value, so an operator without a code gets a number of its own
_UNKNOWN_OPERATOR = 500.0

Row = NDArray[np.float32]


@dataclass(frozen=True)
class WorkloadPrediction:
    """The prediction for one workload; a ``distance`` above 1 is far from all that the model was fitted to.

    ``beyond`` says of each distinct unit how many octaves it lies beyond what was measured.
    """

    unit_us: NDArray[np.float64]
    estimates: Mapping[str, Estimate]
    distance: float
    beyond: NDArray[np.float64]


class UnitModel:
    """The model fitted to one device: a ``network`` or trees on units, and trees on the whole workload."""

    def __init__(
        self,
        models: Mapping[str, Trees],
        card: Mapping[str, Any],
        known: Row,
        reach: Reach,
        network: UnitNetwork | None = None,
    ) -> None:
        self.models = models
        self.network = network
        self.reach = reach
        self.card = card
        self.known = known
        scale = card["distance"]
        self._middle, self._spread = np.array(scale["middle"]), np.array(scale["spread"])

    @classmethod
    def load(cls, data: bytes) -> "UnitModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                card = json.loads(archive.read("card.json"))
                schemas = card["schema"], card["pooled_schema"]
                known = np.load(io.BytesIO(archive.read("known.npy")), allow_pickle=False).astype(np.float32)
                names = [name for name in archive.namelist() if name.endswith(".npz")]
                files = {name.removesuffix(".npz"): archive.read(name) for name in names}
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted predictor: {error}.") from error
        # features of the same shape but another meaning would give wrong numbers without an error
        if schemas != (SCHEMA, POOLED_SCHEMA):
            raise ModelError("This predictor was fitted to other features than today's; fit it again: foretell train.")
        network = UnitNetwork.load(files.pop(NETWORK)) if NETWORK in files else None
        reach = Reach.load(files.pop(REACH, b""))
        return cls({name: Trees.load(file) for name, file in files.items()}, card, known, reach, network)

    def times_us(self, units: DistinctUnits) -> NDArray[np.float64]:
        """The time of each distinct unit."""
        return np.asarray(np.exp(self.predict_units(units).log_ratio) * units.bound_us)

    def predict_units(self, units: DistinctUnits) -> UnitPredictions:
        """The time of each distinct unit over its bound, and its power where a network predicts it."""
        if self.network is not None:
            return self.network.predict(encode(units.features), units.bound_us)
        return UnitPredictions.mean_of([self.models["unit"].predict(tree_rows(units.features))], [])

    def predict(self, units: DistinctUnits, setting: Setting, roofline_w: float) -> WorkloadPrediction:
        """Predict all metrics of one workload, with intervals."""
        predictions = self.predict_units(units)
        unit_us, unit_w = np.exp(predictions.log_ratio) * units.bound_us, predictions.power_w
        row = pool(units, unit_us, setting)
        distance = float(self.distances(row[None])[0])
        beyond = self.reach.beyond(units.features)
        # distance and doubts are the last features: trees learn that errors grow with them
        doubts = doubts_of(unit_us * units.counts, predictions.spread, beyond)
        row = np.concatenate([row, [distance], doubts]).astype(np.float32)[None]
        base = {
            # equal units are predicted once and counted
            "latency_ms": ms(seconds_from_us(float((unit_us * units.counts).sum()))),
            "memory_mib": setting.memory_mib,
            "power_w": roofline_w if unit_w is None else mean_power_w(units, unit_us, unit_w),
        }
        values = {name: base[name] * math.exp(self._ratio(name, row)) for name in base}
        # energy has no trees of its own, so that it never contradicts power and latency; it has its own interval
        values["energy_j"] = values["power_w"] * seconds_from_ms(values["latency_ms"])
        estimates = {name: self._interval(name, value, row) for name, value in values.items()}
        return WorkloadPrediction(unit_us, estimates, distance, beyond)

    def distances(self, rows: Row) -> NDArray[np.float64]:
        """How far each row is from the nearest measured workloads; 1 is the 99th percentile of held-out workloads."""
        return nearest(self._scaled(rows), self.known) / float(self.card["distance"]["far"])

    def _scaled(self, rows: Row) -> Row:
        return np.asarray((rows - self._middle) / self._spread, dtype=np.float32)

    def _ratio(self, name: str, row: Row) -> float:
        """The logarithm of the correction of a metric; 0 where a network predicts the metric itself."""
        return float(self.models[name].predict(row)[0]) if name in self.models else 0.0

    def _interval(self, name: str, value: float, row: Row) -> Estimate:
        """The value times and divided by the expected error, which the conformal quantile scales."""
        expected = math.exp(float(self.models[f"{name}_error"].predict(row)[0]))
        width = min(expected * float(self.card["quantiles"][name]), _MAX_WIDTH)
        return Estimate(value, value * math.exp(-width), value * math.exp(width))


def doubts_of(
    spent_us: NDArray[np.float64], spread: NDArray[np.float64], beyond: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The `DOUBTS` of one workload: means over its units, weighted by their time."""
    weight = spent_us / spent_us.sum()
    return np.array([(weight * spread).sum(), (weight * beyond).sum(), weight[beyond > 0].sum()])


def mean_power_w(units: DistinctUnits, unit_us: NDArray[np.float64], unit_w: NDArray[np.float64]) -> float:
    """The mean power of a workload: the power of its units weighted by their time."""
    spent_us = unit_us * units.counts
    return float((spent_us * unit_w).sum() / spent_us.sum())


def tree_rows(features: Row) -> Row:
    """Rows of units in the form that the trees take."""
    rows = features.copy()
    # column 0 is the code of the operator, −1 where it is unknown
    rows[rows[:, 0] < 0, 0] = _UNKNOWN_OPERATOR
    return rows


def nearest(rows: Row, known: Row) -> NDArray[np.float64]:
    """The mean distance from each row to the `NEIGHBOURS` nearest known rows."""
    few = min(NEIGHBOURS, len(known))
    # |a − b|² = |a|² + |b|² − 2 ab: one matrix product instead of a difference for each pair
    squares = (rows**2).sum(1)[:, None] + (known**2).sum(1)[None] - 2 * rows @ known.T
    return np.asarray(np.sqrt(np.maximum(np.partition(squares, few - 1, axis=1)[:, :few], 0)).mean(1), np.float64)


def write(models: Mapping[str, bytes], card: Mapping[str, Any], known: Row) -> bytes:
    """Fitted trees as one file; the same trees give the same bytes."""
    numbers, file = io.BytesIO(), io.BytesIO()
    np.save(numbers, known.astype(np.float16))
    parts = {"card.json": json.dumps(card, indent=1, sort_keys=True).encode(), "known.npy": numbers.getvalue()}
    parts |= {f"{name}.npz": data for name, data in models.items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(parts):
            # a `ZipInfo` without a date, so that the bytes do not depend on the time of writing
            archive.writestr(zipfile.ZipInfo(name), parts[name], zipfile.ZIP_DEFLATED, 9)
    return file.getvalue()


@cache
def shipped(device: str, name: str) -> UnitModel:
    """The model that the package ships for a device; refuse a damaged file."""
    index = shipped_index(TRAINED)
    entry = index.get(device, {}).get(name)
    if entry is None:
        raise ModelError(
            f"No {name} is fitted to {device}, only to {', '.join(sorted(index))}. Use --predictor roofline."
        )
    file = TRAINED / entry["file"]
    if not file.is_file():
        raise ModelError(f"The package lacks {entry['file']}: install foretell again, or use --predictor roofline.")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ModelError(f"{entry['file']} is damaged: its checksum does not match. Install foretell again.")
    return UnitModel.load(data)


class UnitPredictor:
    """Predicts for devices that have a fitted model."""

    name = "unit-network"

    def __init__(self, model: UnitModel | None = None) -> None:
        self._model = model

    @classmethod
    def from_file(cls, path: Path) -> "UnitPredictor":
        """The predictor in a file that ``foretell train`` wrote."""
        if not path.is_file():
            raise ModelError(
                f"There is no file {path}; give the name of a predictor, or a file that foretell train wrote."
            )
        return cls(UnitModel.load(path.read_bytes()))

    def _fitted_to(self, workload: Workload) -> UnitModel:
        device = workload.target.device.id
        model = self._model or shipped(device, self.name)
        # files of older versions have no device, or an empty one: they are accepted
        if model.card.get("device", device) not in ("", device):
            raise ModelError(
                f"This predictor was fitted to {model.card['device']}, not to {device}; "
                f"use --predictor roofline, or measure {device} and run foretell train."
            )
        return model

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> NDArray[np.float64]:
        """The time of each distinct unit of a workload."""
        return self._fitted_to(workload).times_us(units)

    def predict(self, workload: Workload) -> Prediction:
        """Latency, memory, energy and power of a workload, with intervals."""
        model = self._fitted_to(workload)
        base = analytic_prediction(workload)
        units = extract_units(workload)
        # a graph of views alone launches nothing: there is no unit to predict
        if not len(units) or base.memory_mib is None or base.power_w is None:
            return RooflinePredictor().predict(workload)
        distinct = DistinctUnits.of(units)
        setting = Setting.of(workload, base.memory_mib.value)
        prediction = model.predict(distinct, setting, base.power_w.value)
        estimates = prediction.estimates
        latency, memory = estimates["latency_ms"].at_least(base.facts[LEAST_LATENCY_MS]), estimates["memory_mib"]
        # a device does not draw more than its TDP, whatever the correction says
        power = _capped(estimates["power_w"], workload.target.device.tdp_w)
        # both may have changed: energy stays their product
        energy_j = power.value * seconds_from_ms(latency.value)
        answer = replace(
            base,
            predictor=model.card["predictor"],
            latency_ms=latency,
            memory_mib=memory,
            energy_j=estimates["energy_j"].scaled(energy_j / estimates["energy_j"].value),
            power_w=power,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            device_memory_mib=memory + CONTEXT_MIB,
            breakdown=operator_shares(units, prediction.unit_us[distinct.member], latency.value),
            warnings=(*base.warnings, *_warnings(workload, model.reach, distinct, prediction)),
        )
        return with_options(answer, workload, model.card.get("options", ()))


class UnitTreesPredictor(UnitPredictor):
    """The same with trees on units: they are fitted in minutes on a CPU."""

    name = "unit-trees"


def _capped(estimate: Estimate, limit: float) -> Estimate:
    return Estimate(min(estimate.value, limit), min(estimate.low, limit), min(estimate.high, limit))


def _warnings(
    workload: Workload, reach: Reach, units: DistinctUnits, prediction: WorkloadPrediction
) -> tuple[str, ...]:
    warnings = []
    spent_us = prediction.unit_us * units.counts
    is_new = prediction.beyond > 0
    share = float(spent_us[is_new].sum() / spent_us.sum())
    if share >= _NEW_SHARE:
        parts = _new_parts(reach, units, spent_us, is_new)
        warnings.append(
            f"{share:.0%} of the time is in parts unlike anything measured, so intervals are wider: {parts}."
        )
    elif prediction.distance > 1.0:
        warnings.append("Every part is like one that was measured, but no measured model mixes them like this one.")
    if workload.target.slice is not None:
        warnings.append("Fitted to whole devices: on a slice the time follows from its share of the peaks.")
    return tuple(warnings)


def _new_parts(reach: Reach, units: DistinctUnits, spent_us: NDArray[np.float64], is_new: NDArray[np.bool_]) -> str:
    """The operators that are new, with what is new about them and their share of the time, largest first."""
    parts: dict[str, list[int]] = {}
    for row in np.flatnonzero(is_new)[np.argsort(-spent_us[is_new], kind="stable")].tolist():
        code, phase = int(units.features[row, 0]), int(units.features[row, _PHASE])
        name = operator_name(code) or "an unknown operator"
        parts.setdefault(f"{name} ({PHASES[phase]})" if PHASES[phase] == "backward" else name, []).append(row)
    texts = [
        f"{name} ({spent_us[rows].sum() / spent_us.sum():.0%}; {reach.describe(units.features[rows[0]])})"
        for name, rows in sorted(parts.items(), key=lambda part: -spent_us[part[1]].sum())[:_NAMED_PARTS]
    ]
    return ", ".join(texts) + (f" and {len(parts) - _NAMED_PARTS} more" if len(parts) > _NAMED_PARTS else "")


def operator_shares(units: Units, unit_us: NDArray[np.float64], latency_ms: float) -> tuple[OperatorShare, ...]:
    """The predicted time by operator, longest first; units are scaled so that they add up to the latency."""
    total_us = float(unit_us.sum())
    members: dict[str, list[int]] = {}
    for position, (operator, phase) in enumerate(zip(units.operators, units.phases, strict=True)):
        members.setdefault(f"{operator} (backward)" if phase == "backward" else operator, []).append(position)
    rows = []
    for name, positions in members.items():
        share = float(unit_us[positions].sum()) / total_us
        rows.append(OperatorShare(name, len(positions), latency_ms * share, share, _bound(units, positions)))
    return tuple(sorted(rows, key=lambda row: -row.latency_ms))


def _bound(units: Units, positions: list[int]) -> str:
    """What limits most of the time of some units: compute, memory or launches."""
    compute, memory = (np.exp2(units.features[positions, COLUMNS.index(f"log_{name}_us")]) for name in _LIMITS)
    # a bound is max(compute, memory) + launches: what is left is the launches
    launch_us = float(units.bound_us[positions].sum() - np.maximum(compute, memory).sum())
    spent_us = {
        # kernels reach a larger share of the peak of compute than of bandwidth: compare at what they reach
        "compute": float(compute.sum()) / COMPUTE_EFFICIENCY,
        "memory": float(memory.sum()) / MEMORY_EFFICIENCY,
        "launch": launch_us,
    }
    return max(spent_us, key=lambda name: spent_us[name])
