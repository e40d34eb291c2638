"""What DNN-occu reads of a workload: nodes, edges with their tensors, and steps between nodes."""

import numpy as np

from foretell.devices import find_device
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from lab.papers.dnn_occu.graphs import FARTHEST, describe_graph, steps_between
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
    assert graph.links.tolist() == [1, 2, 2, 2, 1]


def test_steps_go_along_edges_in_both_directions_and_end_somewhere() -> None:
    chain = np.array([np.arange(11), np.arange(1, 12)])
    steps = steps_between(12, chain)
    assert steps[0].tolist() == [*range(FARTHEST), *[FARTHEST] * (12 - FARTHEST)]
    assert np.array_equal(steps, steps.T)
    assert steps_between(2, np.zeros((2, 0), np.int64)).tolist() == [[0, FARTHEST], [FARTHEST, 0]]
