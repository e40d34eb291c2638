"""LILOU's partitioner beside foretell's: folds that were not seen, runtimes, patterns."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from foretell.features.operator_codes import operator_code
from lab.papers.lilou import partitioner as lilou_partitioner
from lab.papers.lilou.edge_network import EdgeFit
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.partitioner import evaluate, examples_of, on_chain, tables, write_report
from lab.papers.lilou.sets import load_edges, prepare_edges
from small.small_fusion import write_fusion

FITS = {"lilou": EdgeFit(Gat(16, 1, "mutual", published=False), Schedule(rate=2e-2, batch=4, epochs=8), lstm=16)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fusion(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cache(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted networks."""
    folder = tmp_path_factory.mktemp("cache")
    assert evaluate(store, "h200", folder, only_networks=True, fits=FITS) == []
    return folder


def test_networks_are_kept_and_judged_elsewhere(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(lilou_partitioner, "fit_edge_network", lambda *_: pytest.fail("fitted again"))
    lines: list[str] = []
    report_tables = evaluate(store, "h200", cache, fits=FITS, log=lines.append)
    assert any("fitting partitioner and baselines" in line for line in lines)
    by_title = {table.title.partition(",")[0].partition(":")[0] + f" {table.head}": table for table in report_tables}
    onnx, eager = by_title["onnxruntime predictor"], by_title["eager predictor"]
    assert onnx.rows["lilou"]["accuracy"] > onnx.rows["never"]["accuracy"]
    assert onnx.rows["pair frequency"]["accuracy"] == 1.0
    assert "partitioner" in onnx.rows
    assert "partitioner" not in eager.rows  # foretell reads origins there
    assert eager.rows["never"]["accuracy"] == 1.0
    assert by_title["onnxruntime pattern"].rows["Conv-Relu"]["fused"] == 1.0
    assert by_title["Fits network"].rows["lilou"]["epochs"] == 8
    lines.clear()
    evaluate(store, "h200", cache, fits=FITS, log=lines.append)
    assert not lines  # nothing is fitted a second time
    text = write_report(report_tables, tmp_path).read_text(encoding="utf-8")
    assert "### inductor: 10 graphs" in text


def test_eager_mode_is_judged_on_the_graphs_of_onnx_runtime(store: Path, cache: Path) -> None:
    loaded = load_edges(prepare_edges(store, cache))
    examples = examples_of(loaded)
    assert len(examples) == 20 + 10
    assert len(examples.fused) == examples.sizes.sum()
    assert examples.graph[20:].tolist() == list(range(0, 20, 2))
    assert not examples.fused[len(loaded.fused) :].any()


def test_tables_compare_the_predictions(store: Path, cache: Path) -> None:
    loaded = load_edges(prepare_edges(store, cache))
    truth = examples_of(loaded).fused
    report_tables = tables(loaded, {"rules": ~truth, "lilou": truth}, ["lilou"])
    assert all(
        row["accuracy"] == float(name == "lilou") for table in report_tables[::3] for name, row in table.rows.items()
    )
    families = report_tables[2]
    assert set(families.rows) == {"family0", "family1", "family2"}


def test_a_chain_counts_only_if_all_its_edges_are_right() -> None:
    codes = {name: operator_code(name) for name in ("Div", "Erf", "Add", "Mul")}
    operators = np.array([codes[name] for name in ("Div", "Erf", "Add", "Mul", "Div", "Add", "Mul")], np.int16)
    edges = np.array([[0, 1, 2, 4, 5], [1, 2, 3, 5, 6]])
    assert on_chain(operators, edges, ("Div", "Erf", "Add", "Mul")).tolist() == [True, True, True, False, False]
