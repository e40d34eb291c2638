import subprocess
import sys

import numpy as np
import pytest

from foretell.errors import ModelError
from lab.papers.graph_networks import network as graph_network
from lab.papers.graph_networks.arrays import SCHEMA
from lab.papers.graph_networks.network import GraphNetwork
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.weights import initial_weights
from small.tiny_workloads import tiny_graphs, tiny_recipe


def written(recipe=None, **notes):
    recipe = recipe or tiny_recipe("dippm")
    known = {"name": "tiny", "recipe": recipe.to_json(), "schema": SCHEMA, "metrics": '{"latency_ms": 0.1}'}
    # small weights: an untrained network must not predict e^100
    weights = {name: value * 0.01 if "out" in name else value for name, value in initial_weights(recipe, 0).items()}
    return to_onnx(recipe, weights, known | notes)


def test_what_was_written_is_known_again():
    network = GraphNetwork.load(written())
    assert network.name == "tiny"
    assert network.recipe == tiny_recipe("dippm")
    assert network.targets == ("latency_ms", "energy_j", "device_memory_mib", "memory_mib")
    assert network.metrics == {"latency_ms": 0.1}


def test_predictions_are_positive_and_do_not_depend_on_the_batch(monkeypatch):
    network, graphs = GraphNetwork.load(written()), tiny_graphs(5)
    together = network.predict(graphs)
    monkeypatch.setattr(graph_network, "_GRAPHS_AT_ONCE", 2)
    for name, values in network.predict(graphs).items():
        assert values.dtype == np.float64
        assert (values > 0).all()
        np.testing.assert_allclose(values, together[name], rtol=1e-5)


def test_no_graphs_give_no_predictions():
    assert {name: len(values) for name, values in GraphNetwork.load(written()).predict([]).items()} == {
        "latency_ms": 0, "energy_j": 0, "device_memory_mib": 0, "memory_mib": 0,
    }  # fmt: skip


def test_other_files_are_refused():
    with pytest.raises(ModelError, match="not an ONNX model"):
        GraphNetwork.load(b"nothing")
    with pytest.raises(ModelError, match="fit it again"):
        GraphNetwork.load(written(schema="0123456789abcdef"))
    from foretell.testing import tiny_onnx

    with pytest.raises(ModelError):
        GraphNetwork.load(tiny_onnx().SerializeToString())


def test_serving_needs_no_torch(tmp_path):
    (tmp_path / "net.onnx").write_bytes(written())
    code = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from foretell.devices import find_device
from lab.papers.graph_networks.arrays import extract_graph_arrays
from lab.papers.graph_networks.network import GraphNetwork
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
graph = extract_graph_arrays(Workload(tiny_graph(), Target(find_device("h200"))))
network = GraphNetwork.load(Path(sys.argv[1]).read_bytes())
assert network.predict([graph])["latency_ms"][0] > 0
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.onnx")], check=True, timeout=60)
