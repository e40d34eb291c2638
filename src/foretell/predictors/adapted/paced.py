"""Predictors: adapted: times on the user's own processor, from those on the measured one and the pace of both.

Idea. ``foretell characterise`` times the product that all CPU measurements were taken beside; the ratio is the pace.
Units that are mostly products (products, convolutions, attention) are multiplied by it; all others stay as they are,
for they follow the memory and the framework, which differ less. On an Intel Xeon whose pace is 0.70, 66 workloads were
measured that the AMD EPYC of the fit had run too: its own times are 30 % off there, times the pace 23 %, by this rule
20 % (medians 28, 19, 14 %). Least squares give products a factor of 0.69, as the pace says, and the rest one of 1.3.

Limits: one other processor, and another version of PyTorch on it. The interval is wider by what held nine in ten of the
66 (`_WIDTH`); ``foretell adapt`` corrects what is left.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.adapted.units import CLASSES, classes_of
from foretell.predictors.slices.model import UnitTimePredictor
from foretell.predictors.unit.pace import REFERENCE_MS, is_pace_note, paced_note
from foretell.predictors.unit.predictor import operator_shares
from foretell.records import Estimate, Prediction, Workload
from foretell.units import per_second

ANALYTIC = "roofline"  # its times are no multiples of the reference's
_PACED = tuple(CLASSES.index(name) for name in ("products", "convolutions", "attention"))
_WIDTH = 0.48  # half of the width that another processor adds, in log(ratio)

Values = NDArray[np.float64]


class PacedPredictor:
    """A predictor of the measured core, brought to one that takes ``reference_ms`` for the reference product."""

    def __init__(self, predictor: UnitTimePredictor, reference_ms: float, date: str) -> None:
        self._predictor = predictor
        self._reference_ms = reference_ms
        self._date = date

    def units_of(self, workload: Workload) -> Units:
        """The units that run; where a runtime fuses operators, those that others absorb are left out."""
        units: Units = getattr(self._predictor, "units_of", extract_units)(workload)
        return units

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> Values:
        """The time of each distinct unit of a workload."""
        paces = np.where(np.isin(classes_of(units.features), _PACED), self._reference_ms / REFERENCE_MS, 1.0)
        return np.asarray(self._predictor.unit_times_us(workload, units) * paces)

    def predict(self, workload: Workload) -> Prediction:
        """The prediction with times of this machine; what the roofline answers stays as it is."""
        answer = self._predictor.predict(workload)
        if answer.predictor == ANALYTIC or answer.latency_ms is None:
            return answer
        units = self.units_of(workload)
        distinct = DistinctUnits.of(units)
        before_us, after_us = (one.unit_times_us(workload, distinct) for one in (self._predictor, self))
        latency = _widened(answer.latency_ms.scaled(float(after_us @ distinct.counts / (before_us @ distinct.counts))))
        note = paced_note(workload.target.run, self._reference_ms, self._date)
        return replace(
            answer,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            breakdown=operator_shares(units, after_us[distinct.member], latency.value),
            warnings=(note, *(text for text in answer.warnings if not is_pace_note(text))),
        )


def _widened(latency: Estimate) -> Estimate:
    below, above = math.log(latency.value / latency.low), math.log(latency.high / latency.value)
    low, high = (math.exp(math.hypot(width, _WIDTH)) for width in (below, above))
    return Estimate(latency.value, latency.value / low, latency.value * high)
