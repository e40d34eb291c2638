"""Graph networks fitted to everything measured, written, and served by their name or their file."""

import json
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError, InputError
from foretell.records import Workload
from foretell.testing import tiny_graph
from lab.judging import graph_serving
from lab.judging.graph_serving import held_out, train_graph_network
from lab.papers.graph_networks.network import GraphNetwork
from lab.papers.graph_networks.predictor import GraphPredictor
from small.small_store import write_store
from small.tiny_workloads import H200, tiny_recipe

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
    messages: list[str] = []
    written = train_graph_network(name, store, "h200", tmp_path / "cache", tmp_path, log=messages.append)
    assert [file.name for file in written] == files
    assert set(json.loads((tmp_path / "checksums.json").read_text())) == set(files)
    assert any("held out latency_ms" in line for line in messages)
    for file in written:
        mode = GraphNetwork.load(file.read_bytes()).notes["modes"].split(",")[0]
        workload = Workload(tiny_graph(), H200, mode=mode, optimizer="sgd" if mode == "training" else None)
        prediction = GraphPredictor.from_file(file).predict(workload)
        assert prediction.predictor == name
        assert prediction.latency_ms is not None
        assert 0 < prediction.latency_ms.low < prediction.latency_ms.value < prediction.latency_ms.high


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
        train_graph_network("trappm", store, "h200", tmp_path / "cache", tmp_path, log=lambda _: None)


@pytest.mark.parametrize("name", ["dippm", "trappm"])
def test_a_network_goes_on_from_another(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def written(into: str, **options: object) -> bytes:
        (file,) = train_graph_network(
            name, store, "h200", tmp_path / "cache", tmp_path / into, log=lambda _: None, **options
        )  # type: ignore[arg-type]
        return file.read_bytes()

    first = written("first")
    monkeypatch.setattr(graph_serving, "find_recipe", lambda name: tiny_recipe(name, epochs=0, encoder_epochs=1))
    file = tmp_path / "first" / f"{name}-h200.onnx"
    again = GraphNetwork.weights_of(written("again", start=file))
    for key, value in GraphNetwork.weights_of(first).items():
        np.testing.assert_allclose(again[key], value, atol=0.02, err_msg=key)  # 8 bits of 8 bits
    fresh = GraphNetwork.weights_of(written("fresh"))
    assert not np.allclose(fresh["out.weight"], again["out.weight"], atol=1e-4), "another one, had it begun anew"


def test_only_one_network_goes_on_and_only_from_a_file(store: Path, tmp_path: Path) -> None:
    for name, match in (("dippm", "There is no file"), ("mlp", "There is no file")):
        with pytest.raises(InputError, match=match):
            train_graph_network(
                name, store, "h200", tmp_path, tmp_path, start=tmp_path / "none.onnx", log=lambda _: None
            )
    (file, _) = train_graph_network("mlp", store, "h200", tmp_path, tmp_path, log=lambda _: None)
    with pytest.raises(InputError, match="several networks"):
        train_graph_network("mlp", store, "h200", tmp_path, tmp_path, start=file, log=lambda _: None)
