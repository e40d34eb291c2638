"""Predictors: a sample: a measured workload as arrays, small enough to hold thousands in memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.pooled import DistinctUnits, Setting

TRUTHS = ("latency_ms", "memory_mib", "device_memory_mib", "power_w", "energy_j")


@dataclass(frozen=True)
class Sample:
    """A measured workload; what was not measured is NaN.

    ``unit_us`` is None where no trace was taken. ``captured`` says whether the latency is that of one run of a whole
    model: a replayed CUDA graph, or a run on a CPU.
    """

    workload_id: str
    spec: str
    family: str
    setting: Setting
    units: DistinctUnits
    unit_us: NDArray[np.float64] | None
    roofline_ms: float
    roofline_w: float
    truth: dict[str, float]
    captured: bool
