"""Predictors: the default: serves fitted unit models as predictions of a workload, with shares, warnings and limits.

`foretell.predictors.unit.model` has the model itself. Here its answer is brought within what is physically possible
(the least time of arithmetic, the power limit of the device), divided among operators, and its doubts are put into
words: which parts of the workload are unlike anything measured, and how much of the time they take.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features import COLUMNS, Units, extract_units
from foretell.features.operator_codes import operator_name
from foretell.features.pooled import MODES, DistinctUnits, Setting
from foretell.features.units import PHASES
from foretell.predictors.fitted_files import TRAINED, shipped_index
from foretell.predictors.occupancy.model import occupancies_of
from foretell.predictors.options import with_options
from foretell.predictors.roofline import (
    BOUNDS,
    COMPUTE_EFFICIENCY,
    CONTEXT_MIB,
    LEAST_LATENCY_MS,
    MEMORY_EFFICIENCY,
    RooflinePredictor,
    analytic_prediction,
)
from foretell.predictors.unit.model import UnitModel, WorkloadPrediction
from foretell.predictors.unit.pace import core_note
from foretell.predictors.unit.reach import Reach
from foretell.records import TF32, Estimate, OperatorShare, Prediction, Workload
from foretell.units import per_second, seconds_from_ms

_NEW_SHARE = 0.05  # of the time in new units: below it no warning is due
_NAMED_PARTS = 3
_MAX_LISTS = 256  # of operators whose numbers are kept
_PHASE = COLUMNS.index("phase")
_HALVES = ("fp16", "bf16")
_FORWARD = tuple(mode for mode in MODES if mode != "training")
_TIMES = [COLUMNS.index("log_compute_us"), COLUMNS.index("log_memory_us")]


@cache
def shipped(device: str, name: str) -> UnitModel:
    """The model that the package ships for a device; refuse a damaged file."""
    index = shipped_index(TRAINED)
    entry = index.get(device, {}).get(name)
    if entry is None:
        known = sorted(other for other, fitted in index.items() if name in fitted)
        raise ModelError(f"No {name} is fitted to {device}, only to {', '.join(known)}. Use --predictor roofline.")
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

    def units_of(self, workload: Workload) -> Units:
        """The units that run; where a runtime fuses operators, those that others absorb are left out."""
        return extract_units(workload)

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> NDArray[np.float64]:
        """The time of each distinct unit of a workload."""
        return self._fitted_to(workload).times_us(self._asked(workload, units))

    def _asked(self, workload: Workload, units: DistinctUnits) -> DistinctUnits:  # noqa: ARG002 others need it
        """The units as the model takes them: their bound is what it predicts multiples of."""
        return units

    def _notes(self, workload: Workload) -> tuple[str, ...]:
        """What an answer of this predictor means."""
        return (core_note(),) if workload.target.device.is_cpu else ()

    def predict(self, workload: Workload) -> Prediction:
        """Latency, memory, energy and power of a workload, with intervals."""
        return self.predict_many([workload])[0]

    def predict_many(self, workloads: Sequence[Workload]) -> list[Prediction]:
        """The predictions of several workloads; the model is asked once for all on the same device."""
        found: list[Prediction | None] = [None] * len(workloads)
        asked: dict[UnitModel, list[tuple[int, Described]]] = {}
        for number, workload in enumerate(workloads):
            model = self._fitted_to(workload)
            described = self._describe(workload, model)
            if isinstance(described, Prediction):
                found[number] = described
            else:
                asked.setdefault(model, []).append((number, described))
        for model, group in asked.items():
            answers = model.predict_many([one.question for _, one in group])
            pairs = zip(group, answers, strict=True)
            occupancies = occupancies_of([(workloads[n], one.distinct, answer.unit_us) for (n, one), answer in pairs])
            for (number, one), answer, occupancy in zip(group, answers, occupancies, strict=True):
                notes = self._notes(workloads[number])
                found[number] = _answer(workloads[number], model, one, answer, occupancy, notes)
        return [prediction for prediction in found if prediction is not None]

    def _describe(self, workload: Workload, model: UnitModel) -> "Described | Prediction":
        """What the model is asked about a workload, or the roofline's answer where it cannot be asked."""
        measured = model.card.get("settings", ())
        # files of older versions do not say what was measured, and were fitted to all modes and precisions
        if measured and stand_in(workload, measured) is None:
            return _unmeasured(workload, measured)
        base = analytic_prediction(workload, with_breakdown=False)
        units = self.units_of(workload)
        # a graph of views alone launches nothing: there is no unit to predict
        if not len(units) or base.memory_mib is None or base.power_w is None:
            return RooflinePredictor().predict(workload)
        distinct = DistinctUnits.of(units)
        setting = Setting.of(workload, base.memory_mib.value)
        asked = self._asked(workload, distinct)
        # the catalogue's CPU is one core
        floor_ms = base.facts[LEAST_LATENCY_MS] / workload.target.threads
        return Described(base, units, distinct, (asked, setting, base.power_w.value), floor_ms)


@dataclass(frozen=True)
class Described:
    """A workload as a model takes it, and the roofline's prediction, parts of which stay.

    Nothing is faster than ``floor_ms``; what is predicted faster than ``likely_ms`` is doubted.
    """

    base: Prediction
    units: Units
    distinct: DistinctUnits
    question: tuple[DistinctUnits, Setting, float]
    floor_ms: float
    likely_ms: float = 0.0


def _answer(
    workload: Workload,
    model: UnitModel,
    asked: Described,
    prediction: WorkloadPrediction,
    occupancy: Estimate | None,
    notes: tuple[str, ...],
) -> Prediction:
    """The prediction within what is possible, with its parts, and its doubts in words."""
    base, distinct, estimates = asked.base, asked.distinct, prediction.estimates
    latency = _doubted(estimates["latency_ms"], asked.likely_ms).at_least(asked.floor_ms)
    # where nobody measured the memory, it is counted as for any device
    memory = estimates.get("memory_mib", base.memory_mib)
    assert memory is not None
    power, energy = _power_and_energy(estimates, latency, workload.target.device.tdp_w)
    answer = replace(
        base,
        predictor=model.card["predictor"],
        latency_ms=latency,
        memory_mib=memory,
        throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
        occupancy=occupancy,
        device_memory_mib=memory + CONTEXT_MIB if workload.target.device.is_nvidia else None,
        breakdown=operator_shares(asked.units, prediction.unit_us[distinct.member], latency.value),
        warnings=(
            *notes,
            *_half_note(workload, model.card.get("settings", ())),
            *base.warnings,
            *_warnings(workload, model.reach, distinct, prediction),
        ),
        power_w=power,
        energy_j=energy,
    )
    return with_options(answer, workload, model.card.get("options", ()))


def _doubted(latency: Estimate, likely_ms: float) -> Estimate:
    """The estimate with ``likely_ms`` as its value where it is below; the interval then holds both.

    >>> _doubted(Estimate(5.0, 4.0, 6.0), 10.0)
    Estimate(value=10.0, low=4.0, high=12.0)
    """
    if latency.value >= likely_ms:
        return latency
    return Estimate(likely_ms, latency.low, latency.high * likely_ms / latency.value)


class UnitTreesPredictor(UnitPredictor):
    """The same with trees on units: they are fitted in minutes on a CPU."""

    name = "unit-trees"


def stand_in(workload: Workload, measured: Sequence[str]) -> str | None:
    """The measured mode and precision that tells this workload's units, its own if it was measured; None if none does.

    A forward pass has the same units in every mode. The two half precisions stand for each other if each was measured
    in some mode: they run the same kernels but for the type of their numbers.
    """
    # the tensors of tf32 are those of fp32; which products run in it is an option of its own
    dtype = "fp32" if workload.dtype == TF32 else workload.dtype
    modes = (workload.mode, *_FORWARD) if workload.mode in _FORWARD else (workload.mode,)
    is_half = dtype in _HALVES and any(setting.endswith(f" {dtype}") for setting in measured)
    named = [f"{mode} {kind}" for kind in (dtype, *(_HALVES if is_half else ())) for mode in modes]
    return next((setting for setting in named if setting in measured), None)


def _half_note(workload: Workload, measured: Sequence[str]) -> tuple[str, ...]:
    """A sentence where another half precision stands for the one that was asked for."""
    setting = stand_in(workload, measured) if measured else None
    if setting is None or workload.dtype not in _HALVES or setting.endswith(f" {workload.dtype}"):
        return ()
    return (f"Nothing was measured in {workload.mode} {workload.dtype}; {setting} was, and half precisions are alike.",)


def _unmeasured(workload: Workload, measured: Sequence[str]) -> Prediction:
    """The roofline's answer where nothing was measured in this mode and precision."""
    answer = RooflinePredictor().predict(workload)
    asked = f"{workload.mode} {workload.dtype}"
    note = f"Nothing was measured in {asked} on {workload.target.device.id}, only in {', '.join(measured)}."
    return replace(answer, extrapolated=True, warnings=(note, *answer.warnings))


def _power_and_energy(
    estimates: Mapping[str, Estimate], latency: Estimate, most_w: float
) -> tuple[Estimate | None, Estimate | None]:
    """Both, or none where nobody measured power."""
    if "power_w" not in estimates:
        return None, None
    # a device does not draw more than its TDP, whatever the correction says
    power = _capped(estimates["power_w"], most_w)
    # both may have changed: energy stays their product
    energy_j = power.value * seconds_from_ms(latency.value)
    return power, estimates["energy_j"].scaled(energy_j / estimates["energy_j"].value)


def _capped(estimate: Estimate, limit: float) -> Estimate:
    return Estimate(min(estimate.value, limit), min(estimate.low, limit), min(estimate.high, limit))


def _warnings(
    workload: Workload, reach: Reach, units: DistinctUnits, prediction: WorkloadPrediction
) -> tuple[str, ...]:
    warnings = doubts(reach, units, prediction, prediction.unit_us)
    if workload.target.slice is not None:
        warnings += ("Fitted to whole devices: on a slice the time follows from its share of the peaks.",)
    return warnings


def doubts(
    reach: Reach, units: DistinctUnits, prediction: WorkloadPrediction, unit_us: NDArray[np.float64], where: str = ""
) -> tuple[str, ...]:
    """What is unlike anything measured about a workload, in one sentence; none where nothing is.

    Args:
        reach: What was measured.
        units: The distinct units of the workload.
        prediction: How far each lies beyond that, and how far the whole.
        unit_us: The time of each, of which the sentence gives shares.
        where: The device that was measured, where the answer is for another one.
    """
    spent_us = unit_us * units.counts
    is_new = prediction.beyond > 0
    share = float(spent_us[is_new].sum() / spent_us.sum())
    measured = f"measured on {where}" if where else "measured"
    if share >= _NEW_SHARE:
        parts = _new_parts(reach, units, spent_us, is_new)
        return (f"{share:.0%} of the time is in parts unlike anything {measured}, so intervals are wider: {parts}.",)
    if prediction.distance > 1.0:
        return (f"Every part is like one that was {measured}, but no measured model mixes them like this one.",)
    return ()


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
    row, names = _operators(units.operators, units.phases)
    count = len(names)
    compute, memory = np.exp2(units.rows[:, _TIMES])[units.member].T
    # a bound is max(compute, memory) + launches: what is left is the launches
    launch_us = units.bound_us - np.maximum(compute, memory)
    limits = np.stack(
        [
            # kernels reach a larger share of the peak of compute than of bandwidth: compare at what they reach
            np.bincount(row, compute, count) / COMPUTE_EFFICIENCY,
            np.bincount(row, memory, count) / MEMORY_EFFICIENCY,
            np.bincount(row, launch_us, count),
        ]
    ).argmax(axis=0)
    shares = (np.bincount(row, unit_us, count) / unit_us.sum()).tolist()
    counts = np.bincount(row, minlength=count).tolist()
    rows = [
        OperatorShare(name, counts[number], latency_ms * shares[number], shares[number], BOUNDS[limits[number]])
        for number, name in enumerate(names)
    ]
    return tuple(sorted(rows, key=lambda share: -share.latency_ms))


@lru_cache(_MAX_LISTS)
def _operators(operators: tuple[str, ...], phases: tuple[str, ...]) -> tuple[NDArray[np.intp], list[str]]:
    """For each unit the number of its operator in a breakdown, and the name of each operator there."""
    numbers: dict[tuple[str, bool], int] = {}
    pairs = zip(operators, map("backward".__eq__, phases), strict=True)
    of_unit = np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.intp)
    return of_unit, [f"{operator} (backward)" if is_backward else operator for operator, is_backward in numbers]
