"""Rendering: the words for quantities and answers, the same on the terminal, on the page and in reports."""

from collections.abc import Mapping
from typing import Any

from foretell.records import Prediction
from foretell.units import bytes_from_mib, size

# name and unit of each quantity, in the order in which they are shown
QUANTITIES = {
    "latency_ms": ("latency", "ms"),
    "host_latency_ms": ("eager latency (host)", "ms"),
    "throughput_per_s": ("throughput", "items/s"),
    "device_memory_mib": ("device memory", "MiB"),
    "memory_mib": ("peak memory", "MiB"),
    "energy_j": ("energy", "J"),
    "power_w": ("power", "W"),
    "occupancy": ("occupancy", "%"),
}
MEANINGS = {
    "device memory": "what the process takes of the GPU, as nvidia-smi shows it",
    "peak memory": "the most that PyTorch's allocator holds at a time, without the driver's context",
}
_SOURCES = {
    "unit-network": "fitted to measurements of this GPU",
    "unit-trees": "fitted to measurements of this device",
    "transfer": "scaled from measurements of an H200, because this GPU was not measured",
    "roofline": "computed from the peaks of the device, because nothing like it was measured",
    "adapted": "corrected by your own measurements of this device",
}
MIG = "the smallest slice of the GPU that would do (MIG, a partition made in hardware)"


def source_of(predictor: str) -> str:
    """What a prediction rests on, in words; the name of a predictor that is not one of ours.

    >>> source_of("unit-network")
    'fitted to measurements of this GPU'
    """
    return _SOURCES.get(predictor, f"predicted by {predictor}")


def fit_sentence(prediction: Prediction) -> str:
    """Whether it fits, in one sentence with both numbers; empty if that is not known."""
    return fit_text(prediction.to_dict())


def fit_text(prediction: Mapping[str, Any]) -> str:
    """The same for the JSON object of a prediction."""
    fits, need = prediction.get("fits"), prediction.get("device_memory_mib") or prediction.get("memory_mib")
    if fits is None or need is None:
        return ""
    part = f" {prediction['slice']}" if prediction["slice"] else ""
    each = ", each GPU" if prediction.get("parallel") else ""
    value, low, high, capacity = (
        size(bytes_from_mib(mib)) for mib in (need["value"], need["low"], need["high"], prediction["capacity_mib"])
    )
    where = f"on {prediction['device']}{part}{each}: about {value} of {capacity}"
    texts = {
        "yes": f"Fits {where}, up to {high}.",
        "perhaps": f"Perhaps fits {where}, between {low} and {high}; foretell fit says what surely does.",
        "no": f"Does not fit {where}, at least {low}; foretell fit says what would.",
    }
    return texts[fits]
