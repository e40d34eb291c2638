"""The papers' networks by name: for one device, in their modes, and with what they do not know left unknown."""

import json
from pathlib import Path

import pytest

from foretell.devices import find_device
from foretell.errors import ModelError
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from lab.papers.graph_networks.arrays import SCHEMA
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.predictor import GraphPredictor
from lab.papers.graph_networks.weights import initial_weights
from small.tiny_workloads import H200, tiny_recipe


@pytest.fixture
def file(tmp_path: Path) -> Path:
    recipe = tiny_recipe("dippm")
    notes = {
        "name": "dippm", "recipe": recipe.to_json(), "schema": SCHEMA, "device": "h200", "modes": "inference,prefill",
        "metrics": json.dumps(dict.fromkeys(recipe.targets, 0.25)),
        "widths": json.dumps(dict.fromkeys(recipe.targets, 0.5)),
    }  # fmt: skip
    weights = {name: value * 0.01 if "out" in name else value for name, value in initial_weights(recipe, 0).items()}
    path = tmp_path / "mine.onnx"
    path.write_bytes(to_onnx(recipe, weights, notes))
    return path


def test_a_network_predicts_only_its_own_metrics(file: Path) -> None:
    predictor = GraphPredictor.from_file(file)
    assert isinstance(predictor, GraphPredictor)
    prediction = predictor.predict(Workload(tiny_graph(), H200))
    assert prediction.predictor == "dippm"
    assert prediction.latency_ms is not None
    assert prediction.latency_ms.high / prediction.latency_ms.low == pytest.approx(2.71828, rel=1e-4)
    assert prediction.throughput_per_s is not None
    assert prediction.throughput_per_s.value == pytest.approx(1e3 * prediction.batch_size / prediction.latency_ms.value)
    assert prediction.energy_j is not None
    assert prediction.power_w is None, "dippm does not tell power, and the roofline's is not its own"
    assert not prediction.breakdown
    assert "dippm was 25% off on held-out architectures" in " ".join(prediction.warnings)
    assert not any("roofline" in text.lower() for text in prediction.warnings)


def test_other_devices_and_modes_are_refused(file: Path) -> None:
    predictor = GraphPredictor.from_file(file)
    with pytest.raises(ModelError, match="fitted to h200, not to a100-sxm-40gb"):
        predictor.predict(Workload(tiny_graph(), Target(find_device("a100"))))
    with pytest.raises(ModelError, match="predicts inference, prefill, not training"):
        predictor.predict(Workload(tiny_graph(), H200, mode="training", optimizer="sgd"))


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no file"):
        GraphPredictor.from_file(tmp_path / "none.onnx")
