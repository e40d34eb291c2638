"""Workflows: compare two models on the same device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretell.devices import Device
from foretell.errors import ForetellError
from foretell.readable import Readable
from foretell.records import METRICS, Estimate, Prediction
from foretell.workflows.many.predict_many import predict_many
from foretell.workflows.workload import InputShape

_FACTS = ("parameters", "macs", "flops")
COMPARED = (*METRICS, *_FACTS)


@dataclass(frozen=True, repr=False)
class ModelComparison(Readable):
    """The predictions of two models for the same device and configuration."""

    first: Prediction
    second: Prediction

    @property
    def times(self) -> dict[str, float]:
        """The ratio of the second model to the first, by metric; metrics that either prediction lacks are left out."""
        pairs = {name: (value_of(self.first, name), value_of(self.second, name)) for name in COMPARED}
        return {name: second / first for name, (first, second) in pairs.items() if first and second is not None}

    def heading(self) -> str:
        """Both models and the device."""
        return f"Comparison: {self.second.model} against {self.first.model} on {self.first.device}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The ratio of the second model to the first, by metric."""
        yield from ((name, f"{ratio:.3g} times") for name, ratio in self.times.items())

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each model."""
        return [row for prediction in (self.first, self.second) for row in prediction.rows()]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell compare --json`` prints."""
        return {"models": [self.first.to_dict(), self.second.to_dict()], "times": self.times}


def value_of(prediction: Prediction, name: str) -> float | None:
    """The value of one of `COMPARED`; None if the prediction lacks it."""
    if name in _FACTS:
        return prediction.facts.get(name)
    estimate: Estimate | None = getattr(prediction, name)
    return None if estimate is None else estimate.value


def compare(
    first: Any,
    second: Any,
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    dtype: str = "fp32",
    mode: str = "inference",
    slice: str | None = None,
    optimizer: str | None = None,
    input_shape: InputShape = None,
    context: int | None = None,
    predictor: str | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> ModelComparison:
    """Predict two models on the same device; the arguments are those of `foretell.predict`.

    >>> from foretell.testing import tiny_onnx
    >>> compare(tiny_onnx(), tiny_onnx()).times["latency_ms"]
    1.0
    """
    options: dict[str, Any] = {
        "device": device, "batch_size": batch_size, "dtype": dtype, "mode": mode, "slice": slice,
        "optimizer": optimizer, "input_shape": input_shape, "context": context, "predictor": predictor, "trust": trust,
        "allow_unknown": allow_unknown, "use_cache": use_cache,
        "memory_limit_gib": memory_limit_gib, "timeout_s": timeout_s,
    }  # fmt: skip
    found = []
    for answer in predict_many((first, second), **options):
        if isinstance(answer, ForetellError):
            raise answer
        found.append(answer)
    return ModelComparison(*found)
