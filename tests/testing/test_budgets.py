"""Assertions that fail a build when a model outgrows its budget."""

from typing import Any

import pytest

import foretell
from foretell.errors import InputError
from foretell.testing import BudgetError, assert_fits, assert_latency, assert_memory, tiny_onnx


def test_a_model_within_its_budget_passes_and_gives_the_prediction() -> None:
    prediction = foretell.predict(tiny_onnx(), device="l4", batch_size=8)
    assert prediction.latency_ms is not None
    kept = assert_latency(tiny_onnx(), prediction.latency_ms.value * 1.01, device="l4", batch_size=8)
    assert kept.latency_ms == prediction.latency_ms
    assert assert_fits(tiny_onnx(), device="l4", batch_size=8).fits == "yes"
    assert assert_memory(tiny_onnx(), 4000, device="l4").device == "l4"


def test_sure_asks_for_the_upper_end() -> None:
    latency = foretell.predict(tiny_onnx()).latency_ms
    assert latency is not None
    between = (latency.value + latency.high) / 2
    assert_latency(tiny_onnx(), between)
    with pytest.raises(BudgetError, match=r"takes 0\.\d+ ms \(.*\) on h200, inference, batch 1, fp32; the budget is"):
        assert_latency(tiny_onnx(), between, sure=True)


def test_a_model_that_outgrows_its_budget_fails_with_one_line() -> None:
    with pytest.raises(AssertionError, match=r"the budget is 100 MiB\. See what would help: foretell improve\.$"):
        assert_memory(tiny_onnx(), 100)
    with pytest.raises(BudgetError, match=r"^no: "):
        assert_fits(tiny_onnx(size=4096), device="t4", batch_size=4096)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_a_number_above_zero(limit: float) -> None:
    for check in (assert_latency, assert_memory):
        with pytest.raises(InputError, match="it must be a number above 0"):
            check(tiny_onnx(), limit)


def test_a_mistake_is_no_budget() -> None:
    options: dict[str, Any] = {"device": "l5"}
    with pytest.raises(foretell.ForetellError, match="Unknown device 'l5'"):
        assert_fits(tiny_onnx(), **options)
