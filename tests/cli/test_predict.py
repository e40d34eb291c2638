"""``foretell predict``."""

import json
from typing import Any

import pytest

from command_line import run


def test_predict_prints_one_object(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(
        run(capsys, "predict", model, "--device", "a100", "-b", "8", "--dtype", "fp16", "--json")
    )
    assert found["model"] == model
    assert (found["batch_size"], found["dtype"], found["mode"]) == (8, "fp16", "inference")
    for metric in ("latency_ms", "memory_mib", "energy_j", "power_w"):
        assert 0 < found[metric]["low"] <= found[metric]["value"] <= found[metric]["high"]
    assert found["coverage"] == 1.0


def test_predict_shows_a_box(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "predict", model, "--mode", "training", "--optimizer", "adamw")
    for word in ("latency", "peak memory", "adamw", "Conv"):
        assert word in shown
