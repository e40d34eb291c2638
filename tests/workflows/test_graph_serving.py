"""Graph networks fitted to everything measured, written, and served by their name or their file."""

import json
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.graph_network import GraphNetwork
from foretell.predictors.graph_predictor import GraphPredictor
from foretell.records import Workload
from foretell.testing import tiny_graph
from foretell.workflows import graph_serving
from foretell.workflows.graph_serving import held_out, train_graph_network
from tiny_workloads import H200, tiny_recipe
from workflows.small_store import write_store

pytest.importorskip("pyarrow")
pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_serving, "find_recipe", lambda name: tiny_recipe(name, epochs=2, encoder_epochs=1))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("dippm", ["dippm-h200.onnx"]),
        ("trappm", ["trappm-h200.onnx"]),
        ("mlp", ["mlp-inference-h200.onnx", "mlp-training-h200.onnx"]),
    ],
)
def test_a_fitted_network_answers_with_an_interval(store: Path, tmp_path: Path, name: str, files: list[str]) -> None:
    said: list[str] = []
    written = train_graph_network(name, store, "h200", tmp_path / "cache", tmp_path, say=said.append)
    assert [file.name for file in written] == files
    assert set(json.loads((tmp_path / "checksums.json").read_text())) == set(files)
    assert any("held out latency_ms" in line for line in said)
    for file in written:
        mode = GraphNetwork.load(file.read_bytes()).notes["modes"].split(",")[0]
        workload = Workload(tiny_graph(), H200, mode=mode, optimizer="sgd" if mode == "training" else None)
        found = GraphPredictor.from_file(file).predict(workload)
        assert found.predictor == name
        assert found.latency_ms is not None
        assert 0 < found.latency_ms.low < found.latency_ms.value < found.latency_ms.high


def test_errors_and_widths_are_those_of_what_is_served() -> None:
    class Twice:
        def predict(self, graphs: list[object]) -> dict[str, np.ndarray]:
            return {"latency_ms": np.array([2.0] * len(graphs))}

    class Known:
        workload_id = "a"
        truth = {"latency_ms": 1.0}  # noqa: RUF012

    metrics, widths = held_out(Twice(), [Known()] * 20, {"a": None})  # type: ignore[arg-type, dict-item, list-item]
    assert metrics["latency_ms"] == pytest.approx(1.0)
    assert widths["latency_ms"] == pytest.approx(np.log(2))


def test_a_store_of_one_mode_is_too_small_for_the_other(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(graph_serving.MODES, "trappm", (("decode",),))  # type: ignore[misc, attr-defined]
    with pytest.raises(DataError, match="too few to fit trappm to decode"):
        train_graph_network("trappm", store, "h200", tmp_path / "cache", tmp_path, say=lambda _: None)
