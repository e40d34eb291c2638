"""Predictors: times on the user's own processor, from those on the measured one and the pace of both.

Idea. Processors differ, and a fixed product of two matrices on one core says by how much: all times on a CPU were
measured beside it, and are brought to a core that takes `REFERENCE_MS` for it. ``foretell characterise`` times the same
product on the user's machine; the ratio is the pace, and a prediction for ``cpu`` is multiplied by it.

Limits: one number for products, convolutions and streams alike. Where a processor's memory is slower or faster than its
arithmetic suggests, the answer is off by that much, so the interval is wider (`_WIDTH`); ``foretell adapt`` corrects
it.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretell.features.pooled import DistinctUnits
from foretell.predictors.protocol import Predictor
from foretell.records import Estimate, Prediction, Workload
from foretell.units import per_second

REFERENCE_MS = 0.14  # a product of 192 × 192 matrices in fp32 on one core; times on CPUs are brought to this pace
ANALYTIC = "roofline"  # its times are no multiples of the reference's
_WIDTH = 0.25  # half of the width that another processor adds, in log(ratio): an assumption
_ONE_CORE = "For one core that multiplies two 192 × 192 matrices in"


def one_core_note() -> str:
    """What a time on the catalogue's CPU means."""
    return (
        f"{_ONE_CORE} {REFERENCE_MS:g} ms, as the measured one does; yours may differ: foretell characterise finds its "
        "pace, and foretell adapt --device cpu corrects the rest by a few measurements."
    )


class PacedPredictor:
    """A predictor of the measured core, brought to one that takes ``reference_ms`` for the reference product."""

    def __init__(self, predictor: Predictor, reference_ms: float, date: str) -> None:
        self._predictor = predictor
        self._reference_ms = reference_ms
        self._date = date

    @property
    def pace(self) -> float:
        """How many times longer this machine takes."""
        return self._reference_ms / REFERENCE_MS

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> NDArray[np.float64]:
        """The time of each distinct unit of a workload."""
        times_us = self._predictor.unit_times_us(workload, units)  # type: ignore[attr-defined]
        return np.asarray(times_us * self.pace)

    def predict(self, workload: Workload) -> Prediction:
        """The prediction with times of this machine; what the roofline answers stays as it is."""
        answer = self._predictor.predict(workload)
        if answer.predictor == ANALYTIC or answer.latency_ms is None:
            return answer
        latency = _widened(answer.latency_ms.scaled(self.pace))
        note = (
            f"{_ONE_CORE} {self._reference_ms:.3g} ms, as this machine does (foretell characterise, {self._date}); "
            "foretell adapt --device cpu corrects the rest by a few measurements."
        )
        return replace(
            answer,
            latency_ms=latency,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            breakdown=tuple(replace(row, latency_ms=row.latency_ms * self.pace) for row in answer.breakdown),
            warnings=(note, *(text for text in answer.warnings if not text.startswith(_ONE_CORE))),
        )


def _widened(latency: Estimate) -> Estimate:
    below, above = math.log(latency.value / latency.low), math.log(latency.high / latency.value)
    low, high = (math.exp(math.hypot(width, _WIDTH)) for width in (below, above))
    return Estimate(latency.value, latency.value / low, latency.value * high)
