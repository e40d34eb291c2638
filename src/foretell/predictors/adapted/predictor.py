"""Predictors: adapted: the answer for a device that was measured a few times: the base's, corrected unit by unit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from foretell.devices import Device
from foretell.errors import ModelError
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.adapted.base import Base, base_of, unit_times_us
from foretell.predictors.adapted.model import AdaptedModel
from foretell.predictors.adapted.units import CLASSES, Values, Work, work_of
from foretell.predictors.protocol import Predictor
from foretell.predictors.roofline import CONTEXT_MIB
from foretell.predictors.unit.pace import is_pace_note
from foretell.predictors.unit.predictor import operator_shares
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.units import per_second, seconds_from_ms

NAME = "adapted"
_SEEN = 0.05  # of a measured workload's time: then its class counts as measured
_UNSEEN = 0.2  # of a workload's time in classes that were not: then the answer is extrapolated
_SAME = 1e-3  # the base may change by rounding
_UNCALIBRATED = "uncalibrated:"  # how the base's warning begins that nothing of the device was measured


class AdaptedPredictor:
    """Predicts for the device that a file was adapted to; ``base`` is what the file starts from."""

    name = NAME

    def __init__(self, model: AdaptedModel, base: Predictor, source: str) -> None:
        self.model = model
        self._base = base
        self._source = source

    def _check(self, workload: Workload) -> None:
        card, device = self.model.card, workload.target.device
        if card.device != device.id:
            raise ModelError(
                f"{self._source} was adapted to {card.device}, not to {device.id}: measure {device.id} and run "
                "foretell adapt, or leave out --predictor."
            )
        if not is_same_probe(card.probe, probe_of(device, self._base, card.base)):
            raise ModelError(
                f"{self._source} corrects what foretell said about {device.id} on {card.made_at[:10]}; since then the "
                f"device's description or foretell has changed. Run foretell adapt again, or --predictor {card.base}."
            )

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        self._check(workload)
        unit_us = unit_times_us(workload, self._base, units)
        return np.asarray(unit_us * self.model.factors["latency_ms"].of_units(work_of(units, unit_us).rows))

    def predict(self, workload: Workload) -> Prediction:
        """The base's prediction with what measurements of the device changed."""
        self._check(workload)
        base = base_of(workload, self._base)
        if base is None:
            return self._base.predict(workload)
        answer = self._corrected(workload, base)
        reason = self._unseen(workload, base.work)
        warnings = [
            note for note in base.prediction.warnings if not note.startswith(_UNCALIBRATED) and not is_pace_note(note)
        ]
        return replace(
            answer,
            predictor=NAME,
            extrapolated=reason is not None,
            warnings=(self._note(), *([reason] if reason else []), *warnings),
        )

    def _corrected(self, workload: Workload, base: Base) -> Prediction:
        before, factors = base.prediction, self.model.factors
        assert before.latency_ms is not None
        times = factors["latency_ms"]
        latency = _changed(before.latency_ms, *times.of(base.work))
        unit_us = (base.unit_us * times.of_units(base.work.rows))[base.distinct.member]
        answer = replace(
            before,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            breakdown=operator_shares(base.units, unit_us, latency.value),
            occupancy=None,  # it follows from the base's times
        )
        if "memory_mib" in factors and before.memory_mib is not None:
            memory = _changed(before.memory_mib, *factors["memory_mib"].of(base.work))
            on_device = None if before.device_memory_mib is None else memory + CONTEXT_MIB
            answer = replace(answer, memory_mib=memory, device_memory_mib=on_device)
        if "power_w" in factors and before.power_w is not None:
            answer = replace(answer, power_w=_changed(before.power_w, *factors["power_w"].of(base.work)))
        return replace(answer, energy_j=_energy(answer.power_w, latency))

    def _note(self) -> str:
        card = self.model.card
        many = f"{card.samples} measurement{'s' * (card.samples != 1)}"
        return f"adapted: {card.base}, corrected by {many} of {card.device} ({self._source}, {card.made_at[:10]})"

    def _unseen(self, workload: Workload, work: Work) -> str | None:
        """Why the measurements say little about a workload; None where they do."""
        setting = setting_of(workload)
        if setting not in self.model.card.settings:
            return (
                f"extrapolated: nothing was measured in {setting} on {self.model.card.device}, only in "
                f"{', '.join(self.model.card.settings)}"
            )
        shares = work.shares
        unseen = [place for place, most in enumerate(self.model.card.shares) if most < _SEEN]
        if float(shares[unseen].sum()) <= _UNSEEN:
            return None
        named = ", ".join(f"{CLASSES[place]} ({shares[place]:.0%})" for place in unseen if shares[place] >= _SEEN)
        return f"extrapolated: no measured model spends time in {named or 'these units'}"


def setting_of(workload: Workload) -> str:
    """The mode, the dtype and the layout, as a card lists them."""
    return f"{workload.mode} {workload.dtype}{' channels-last' if workload.channels_last else ''}"


def probe_of(device: Device, base: Predictor, name: str) -> tuple[float, ...]:
    """What the base says about the units of a fixed small workload: another answer means another base."""
    known = _probes.get((id(base), device.id, name))
    if known is None or known[0] != device:
        workload = Workload(_probe_graph(), Target(device, None, "eager" if device.is_cpu else "cuda-graph"))
        found = base_of(workload, base)
        times = () if found is None else tuple(float(time_us) for time_us in found.unit_us)
        known = _probes[id(base), device.id, name] = (device, times)
    return known[1]


_probes: dict[tuple[int, str, str], tuple[Device, tuple[float, ...]]] = {}


def is_same_probe(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether two probes agree up to rounding."""
    return len(before) == len(now) and all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(before, now, strict=True))


@lru_cache(maxsize=1)
def _probe_graph() -> Graph:
    """A product and an elementwise operator: one is bound by arithmetic, the other by memory."""
    tensors = {
        "x": Tensor("x", (512, 1024), dtype="fp32", kind="input"),
        "w": Tensor("w", (1024, 2048), dtype="fp32", kind="parameter"),
        "h": Tensor("h", (512, 2048), dtype="fp32"),
        "y": Tensor("y", (512, 2048), dtype="fp32"),
    }
    nodes = [Node("h", "Gemm", ("x", "w"), ("h",)), Node("y", "Relu", ("h",), ("y",))]
    return Graph.build("probe", nodes, tensors, ["x"], ["y"])


def _changed(estimate: Estimate, ratio: float, width: float) -> Estimate:
    value = estimate.value * math.exp(ratio)
    return Estimate(value, value * math.exp(-width), value * math.exp(width))


def _energy(power: Estimate | None, latency: Estimate) -> Estimate | None:
    if power is None:
        return None
    times = (seconds_from_ms(time_ms) for time_ms in (latency.value, latency.low, latency.high))
    watts = (power.value, power.low, power.high)
    return Estimate(*(time_s * each for time_s, each in zip(times, watts, strict=True)))
