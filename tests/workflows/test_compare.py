"""Advice and comparisons as dictionaries: nothing unknown becomes 0, and ratios only of what both know."""

import json
from dataclasses import replace

import pytest

from foretell.advisors.placement import Requirements
from foretell.records import Estimate
from foretell.testing import tiny_onnx
from foretell.workflows.advise import advise_serving, advise_training
from foretell.workflows.compare import COMPARED, ModelComparison, value_of
from foretell.workflows.predict import predict


def test_an_interval_has_three_numbers() -> None:
    assert Estimate(2.0, 1.0, 3.0).to_dict() == {"value": 2.0, "low": 1.0, "high": 3.0}


def test_a_placement_is_json_with_what_is_not_known_left_open() -> None:
    placement = advise_serving(tiny_onnx(), Requirements(), devices=["h200", "v100-pcie-16gb"], mig=False)
    plain = placement.to_dict()
    json.dumps(plain, allow_nan=False)
    assert len(plain["choices"]) == len(placement.choices)
    assert plain["choices"][0]["latency_ms"]["value"] == placement.choices[0].candidate.latency_ms.value
    assert plain["choices"][0]["instances"] is None, "no rate was asked for"
    assert {refusal["place"] for refusal in plain["refused"]} == {refusal.place for refusal in placement.refused}


def test_a_training_has_its_steps_and_hours() -> None:
    advice = advise_training(tiny_onnx(), 100, devices=["h200"], batch_size=4)
    plain = advice.to_dict()
    json.dumps(plain, allow_nan=False)
    assert plain["steps"] == 100
    assert plain["choices"][0]["hours"]["value"] == pytest.approx(
        100 * plain["choices"][0]["step_ms"]["value"] / 3_600_000
    )


def test_how_many_times_as_much_leaves_out_what_one_does_not_know() -> None:
    first = predict(tiny_onnx(), batch_size=1)
    second = replace(predict(tiny_onnx(), batch_size=64), power_w=None)
    result = ModelComparison(first, second).times
    assert result["macs"] == 64
    assert result["parameters"] == 1
    assert "power_w" in COMPARED
    assert "power_w" not in result
    assert value_of(second, "power_w") is None
