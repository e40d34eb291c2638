from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.graph.ir.serde import to_document
from foretell.predictors.fusion.edges import edges_of
from foretell.predictors.fusion.partitioner import Partitioner
from foretell.testing import tiny_graph
from foretell.training import fusion
from small.small_store import write_table

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty networks, whose convolution and activation are fused, and one whose compiler failed."""
    folder = tmp_path_factory.mktemp("store")
    graphs, labelled, edges = [], [], []
    for number in range(20):
        graph = tiny_graph(channels=8 * (number + 1))
        facts = {"campaign_id": "c", "spec": f"timm:net{number}", "graph_hash": graph.hash}
        graphs.append({**facts, "input_shape": "3x16x16", "mode": "inference", "document": to_document(graph)})
        own = {**facts, "fusion_id": f"f{number}", "backend": "onnxruntime", "family": f"family{number % 2}"}
        labelled.append({**own, "status": "ok"})
        for source, target in edges_of(graph):
            edges.append({**own, "source": source, "target": target, "fused": target <= 1})
    labelled.append({**labelled[0], "fusion_id": "failed", "status": "crash"})
    write_table(folder / "one", "graphs", graphs)
    write_table(folder / "one", "fusion_graphs", labelled)
    write_table(folder / "one", "fusion_edges", edges)
    return folder


def test_labelled_edges_are_read_and_architectures_stay_in_one_fold(store):
    edges = fusion.read_edges(store)
    edges_per_graph = len(edges_of(tiny_graph()))
    assert edges.graphs == {"onnxruntime": 20}
    assert len(edges.fused) == 20 * edges_per_graph
    assert edges.fused.reshape(20, edges_per_graph)[:, :1].all()
    assert not edges.fused.reshape(20, edges_per_graph)[:, 1:].any()
    assert {len(set(row)) for row in edges.fold.reshape(20, edges_per_graph).tolist()} == {1}
    assert fusion.fold_of("timm:resnet18") == fusion.fold_of("timm:resnet18")


def test_the_partitioner_is_judged_beside_its_baselines(store, tmp_path):
    pytest.importorskip("lightgbm")
    edges = fusion.read_edges(store)
    judged = fusion.judge(edges)
    assert (judged[fusion.TREES] == edges.fused).all()
    assert (judged["pair frequency"] == edges.fused).all()
    overall, by_family, by_pattern = fusion.tables(edges, judged)
    assert overall.title.startswith("onnxruntime: 20 graphs")
    assert overall.rows["partitioner"] == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0}
    assert overall.rows["never"]["precision"] is None
    assert set(by_family.rows) == {"family0", "family1"}
    assert by_pattern.rows["Conv-Relu"]["fused"] == 1.0
    path = fusion.write_report([overall, by_family, by_pattern], tmp_path)
    assert "| partitioner | **100** | **100** | **100** |" in path.read_text()


def test_a_fitted_one_is_written_with_its_scores(store, tmp_path):
    pytest.importorskip("lightgbm")
    path = fusion.train(store, "h200", tmp_path, tmp_path)
    card = Partitioner.load(path.read_bytes()).card
    assert card["held_out"]["onnxruntime"]["accuracy"] == 1.0
    assert card["graphs"] == {"onnxruntime": 20}


def test_a_store_without_fusion_and_labels_that_do_not_fit_are_errors(store, tmp_path):
    with pytest.raises(DataError, match="No fusion was collected"):
        fusion.read_edges(tmp_path)
    for table in ("graphs", "fusion_graphs"):
        (tmp_path / f"{table}.parquet").write_bytes((store / "one" / f"{table}.parquet").read_bytes())
    write_table(tmp_path, "fusion_edges", [])
    with pytest.raises(DataError, match="0 labels; collect it again"):
        fusion.read_edges(tmp_path)
    (tmp_path / "graphs.parquet").unlink()
    with pytest.raises(DataError, match="no graph of timm:net0 under onnxruntime"):
        fusion.read_edges(tmp_path)


def test_scores_without_positive_predictions():
    assert fusion.scores(np.zeros(2, bool), np.zeros(2, bool)) == {"accuracy": 1.0, "precision": None, "recall": None}
