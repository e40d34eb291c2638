"""Predictors: one that answers once for each workload. Slices of a device ask again and again for the whole of it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.pooled import DistinctUnits
from foretell.predictors.protocol import Predictor
from foretell.records import Prediction, Workload


def remembering(predictor: Predictor) -> Predictor:
    """The predictor, which remembers its answers as long as it lives; one without times of units as it is."""
    return Remembering(predictor) if hasattr(predictor, "unit_times_us") else predictor


class Remembering:
    """Remembers by the identity of graphs, so it holds on to them."""

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self._held: dict[int, Workload] = {}
        self._predictions: dict[tuple[object, ...], Prediction] = {}
        self._times_us: dict[tuple[object, ...], NDArray[np.float64]] = {}

    def _key(self, workload: Workload) -> tuple[object, ...]:
        self._held.setdefault(id(workload.graph), workload)
        target = workload.target
        place = target.device.id, target.slice.text if target.slice else None, target.runtime
        return (
            id(workload.graph), *place, workload.dtype, workload.mode, workload.optimizer, workload.channels_last
        )  # fmt: skip

    def predict(self, workload: Workload) -> Prediction:
        """The predictor's answer."""
        key = self._key(workload)
        if key not in self._predictions:
            self._predictions[key] = self._predictor.predict(workload)
        return self._predictions[key]

    def unit_times_us(self, workload: Workload, units: DistinctUnits) -> NDArray[np.float64]:
        """The predictor's times; units follow from the workload."""
        key = self._key(workload)
        if key not in self._times_us:
            self._times_us[key] = self._predictor.unit_times_us(workload, units)
        return self._times_us[key]
