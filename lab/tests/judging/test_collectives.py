"""Collectives: the fit recovers constants that made the times."""

import numpy as np
import pytest

from lab.judging.collectives import Fit, Rows, fit


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
