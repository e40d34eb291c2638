"""Testing: the pytest plugin: a fixture ``model_budget`` for tests that keep a model within its budget.

pytest finds it by itself where foretell is installed:

    def test_the_detector_keeps_its_budget(model_budget):
        model_budget("detector.onnx", device="l4", batch_size=8, dtype="fp16", latency_ms=20, memory_mib=8000)
"""

from collections.abc import Callable
from typing import Any

import pytest

Keep = Callable[..., None]


@pytest.fixture
def model_budget() -> Keep:
    """A function that fails the test if a model does not fit, or takes more than ``latency_ms`` or ``memory_mib``."""
    from foretell.testing.budgets import assert_fits, assert_latency, assert_memory

    def keep(
        model: Any,
        *,
        device: str = "h200",
        latency_ms: float | None = None,
        memory_mib: float | None = None,
        sure: bool | None = None,
        **options: Any,
    ) -> None:
        decides = {} if sure is None else {"sure": sure}
        # runtime decides about time only
        fitting = {name: value for name, value in options.items() if name != "runtime"}
        assert_fits(model, device=device, **decides, **fitting)
        if latency_ms is not None:
            assert_latency(model, latency_ms, device=device, **decides, **options)
        if memory_mib is not None:
            assert_memory(model, memory_mib, device=device, **decides, **options)

    return keep
