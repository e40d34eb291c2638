"""Collectives: the fit recovers constants that made the times."""

from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.llm.collectives import FACTOR_BYTES, collective_time, fabric_of
from lab.judging.collectives import Fit, Rows, fit, read_engine_factors


def made(shapes: dict[str, list[float]], factors: dict[str, tuple[float, float, float]]) -> tuple[Rows, Fit]:
    """Rows that follow the formula exactly."""
    devices = {"Hopper": "h200", "Ampere": "a100-sxm-80gb"}
    keys = [
        (devices[name], name, kind, gpus, 2.0**power)
        for name in factors for kind in shapes for gpus in (2, 4, 8) for power in range(9, 30)
    ]  # fmt: skip
    device, architecture, kind, gpus, size = (np.array(column) for column in zip(*keys, strict=True))
    truth = Fit(tuple(shapes), {kind: np.array(own) for kind, own in shapes.items()}, factors)
    rows = Rows(device, architecture, kind, gpus.astype(float), size.astype(float), np.ones(len(keys)))
    return Rows(device, architecture, kind, rows.gpus, rows.size, truth.predict(rows)), truth


def test_recovers_constants() -> None:
    """Without noise the fit is exact, also for a device that is left out with known factors."""
    shapes = {"all-reduce": [5.0, 0.3, 4.0, 0.0, 0.5, 0.9], "all-gather": [4.0, 0.2, 3.0, 0.0, 0.4, 0.7]}
    rows, truth = made(shapes, {"Hopper": (1.0, 1.0, 1.2), "Ampere": (1.6, 0.8, 1.0)})
    fitted = fit(rows)
    assert fitted.predict(rows) == pytest.approx(rows.us, rel=1e-3)
    assert fitted.factors["Ampere"] == pytest.approx(truth.factors["Ampere"], rel=1e-2)
    assert fitted.shapes["all-reduce"][0] == pytest.approx(5.0, rel=1e-2)


def test_an_engine_that_takes_twice_the_mean_has_a_factor_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric = fabric_of(find_device("h200"))

    def row(name: str, kernel: str, size: int, times: float) -> dict[str, object]:
        seconds = collective_time("all-reduce", size, 8, fabric, "engine").seconds.value
        return {"framework": name, "kernel_source": kernel, "num_gpus": 8, "message_size": size / 2,
                "allreduce_dtype": "half", "latency": times * seconds * 1000}  # fmt: skip

    sizes = [2**power for power in range(13, 27)]
    rows = [row("trtllm", "TRTLLM", size, 2.0) for size in sizes]
    rows += [row("sglang", "TRTLLM", size, 9.0) for size in sizes]  # another engine's kernel: left out
    rows += [row("vllm", "vLLM_custom_eager", size, 9.0) for size in sizes]
    monkeypatch.setattr("lab.judging.collectives._table", lambda *_: rows)
    factors = read_engine_factors(Path())
    assert set(factors) == {"trtllm"}
    assert factors["trtllm"][8] == pytest.approx([2.0] * len(FACTOR_BYTES), rel=0.02)
