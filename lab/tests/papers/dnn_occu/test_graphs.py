"""What DNN-occu reads of a workload: nodes, edges with their tensors, and steps between nodes."""

import numpy as np

from foretell.devices import find_device
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from lab.papers.dnn_occu.graphs import describe_graph, graphs_from_bytes, graphs_to_bytes
from lab.papers.graph_networks.arrays import extract_graph_arrays

H200 = find_device("h200")


def test_a_graph_has_features_of_nodes_and_edges() -> None:
    arrays = extract_graph_arrays(Workload(tiny_graph(), Target(H200)))
    graph = describe_graph("a", arrays, "fp32", H200)
    assert len(graph) == len(arrays)
    assert np.isfinite(graph.nodes).all()
    assert graph.edge_features.shape == (arrays.edges.shape[1], 3)
    # half precision moves half the bytes: one less in a logarithm to base 2
    half = describe_graph("a", arrays, "fp16", H200)
    assert np.allclose(graph.edge_features[:, 1] - half.edge_features[:, 1], 1.0, atol=0.05)


def test_training_and_inference_of_one_graph_differ() -> None:
    arrays = extract_graph_arrays(Workload(tiny_graph(), Target(H200)))
    modes = [describe_graph("a", arrays, "fp32", H200, mode).nodes for mode in ("inference", "training")]
    assert not np.array_equal(*modes)


def test_graphs_are_read_as_they_were_written() -> None:
    arrays = extract_graph_arrays(Workload(tiny_graph(), Target(H200)))
    graphs = {name: describe_graph(name, arrays, dtype, H200) for name, dtype in (("a", "fp32"), ("b", "fp16"))}
    again = graphs_from_bytes(graphs_to_bytes(graphs))
    assert [graph.workload_id for graph in again] == ["a", "b"]
    for graph in again:
        for name in ("nodes", "edges", "edge_features"):
            assert np.array_equal(getattr(graph, name), getattr(graphs[graph.workload_id], name))
