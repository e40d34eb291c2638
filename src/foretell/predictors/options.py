"""Predictors: options that a predictor was not fitted to: the answer is a wide interval and a sentence, never silence.

Convolutions of images that lie channels-last run other kernels, or the same ones without copies before and after them.
Products in TF32 run other kernels than those in fp32, against another bound. How much that changes is not known until a
predictor was fitted to measurements with the option; until then its intervals grow by factors that are assumptions.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

from foretell.records import Estimate, Prediction, Workload

_FACTORS = {"latency_ms": 2.0, "throughput_per_s": 2.0, "energy_j": 2.0, "power_w": 1.3, "memory_mib": 1.25}
_FACTORS["occupancy"] = 1.5
_FACTORS["device_memory_mib"] = _FACTORS["memory_mib"]
_NAMES = {"channels_last": "images laid out channels-last", "tf32": "matrix products in TF32"}


def with_options(prediction: Prediction, workload: Workload, fitted: Container[str] = ()) -> Prediction:
    """Widen the intervals of a prediction for the options of a workload that are not among the ``fitted`` ones."""
    if prediction.channels_last != workload.channels_last:
        prediction = replace(prediction, channels_last=workload.channels_last)
    missing = [option for option in workload.options if option not in fitted]
    if not missing:
        return prediction
    wider: dict[str, Any] = {}
    for name, factor in _FACTORS.items():
        estimate: Estimate | None = getattr(prediction, name)
        if estimate is not None:
            wider[name] = Estimate(estimate.value, estimate.low / factor, estimate.high * factor)
    if "power_w" in wider:
        limit_w = max(workload.target.device.tdp_w, wider["power_w"].value)
        wider["power_w"] = replace(wider["power_w"], high=min(wider["power_w"].high, limit_w))
    if "occupancy" in wider:
        wider["occupancy"] = replace(wider["occupancy"], high=min(wider["occupancy"].high, 100.0))
    named = " and ".join(_NAMES[option] for option in missing)
    warning = f"Not fitted to {named}: the intervals are wide."
    warnings = tuple(other for other in prediction.warnings if other != warning)  # a predictor inside may have said it
    return replace(prediction, warnings=(*warnings, warning), **wider)
