"""Weights are found again that made the times."""

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.predictors.compiled.fit import Measured, fit_compiled
from foretell.predictors.compiled.kernels import COMPILED_COLUMNS, GENERATED, CompiledKernels
from foretell.predictors.compiled.model import CompiledModel

WEIGHTS = {"product": 0.3, "product_small": -0.5, "traffic": 0.4, "launch": 0.7}


def kernels(seed: int) -> CompiledKernels:
    random = np.random.default_rng(seed)
    columns = np.zeros((6, len(COMPILED_COLUMNS)))
    columns[:3, COMPILED_COLUMNS.index("product")] = 1.0
    columns[: seed % 3, COMPILED_COLUMNS.index("product_small")] = 1.0
    columns[3:5, COMPILED_COLUMNS.index("traffic")] = 1.0
    columns[5, COMPILED_COLUMNS.index("launch")] = 1.0
    return CompiledKernels(np.exp(random.normal(1.0, 1.0, 6)), columns, ("MatMul",) * 3 + (GENERATED,) * 3)


def measured(seed: int, *, traced: bool) -> Measured:
    own = kernels(seed)
    times_us = CompiledModel("h200", tuple(WEIGHTS.get(name, 0.0) for name in COMPILED_COLUMNS)).times_us(own)
    parts = (times_us[:3].sum(), times_us[3:].sum()) if traced else (float("nan"),) * 2
    return Measured(own, times_us.sum(), *parts)


@pytest.mark.parametrize("traced", [True, False])
def test_weights_are_found_with_and_without_traces(traced):
    rows = [measured(seed, traced=traced) for seed in range(60)]
    result = dict(zip(COMPILED_COLUMNS, fit_compiled(rows, "h200", penalty=1e-4).weights, strict=True))
    assert {name: result[name] for name in WEIGHTS} == pytest.approx(WEIGHTS, abs=0.02)
    assert result["depthwise"] == 0.0, "of which there is none"


def test_an_outlier_does_not_spoil_the_fit():
    rows = [measured(seed, traced=True) for seed in range(60)]
    rows[7] = Measured(rows[7].kernels, 20 * rows[7].latency_us)
    result = dict(zip(COMPILED_COLUMNS, fit_compiled(rows, "h200", penalty=1e-4).weights, strict=True))
    assert {name: result[name] for name in WEIGHTS} == pytest.approx(WEIGHTS, abs=0.05)


def test_weights_are_pulled_to_nothing():
    rows = [measured(seed, traced=True) for seed in range(12)]
    weak, strong = (np.abs(fit_compiled(rows, "h200", penalty).weights).sum() for penalty in (1e-4, 3.0))
    assert strong < weak


def test_an_empty_set_is_an_error():
    with pytest.raises(InputError, match="no compiled workload"):
        fit_compiled([], "h200")
