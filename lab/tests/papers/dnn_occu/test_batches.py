"""Graphs of one size share a batch, and steps go along edges in both directions."""

import numpy as np
import pytest

from lab.papers.dnn_occu.graphs import FARTHEST, OccupancyGraph

pytest.importorskip("torch")

from lab.papers.dnn_occu.batches import PlacedGraphs, parts, steps_between
from lab.papers.dnn_occu.networks import torch


def test_large_graphs_share_no_batch() -> None:
    found = parts([3, 7, 3, 7, 3, 20], 2, most_pairs=60)
    assert [part.tolist() for part in found] == [[0, 2], [4], [1], [3], [5]]


def test_steps_go_along_edges_in_both_directions_and_end_somewhere() -> None:
    chain = torch.tensor([list(range(11)), list(range(1, 12))])
    steps = steps_between(12, chain)
    assert steps[0].tolist() == [*range(FARTHEST), *[FARTHEST] * (12 - FARTHEST)]
    assert torch.equal(steps, steps.T)
    apart = steps_between(2, torch.zeros((2, 0), dtype=torch.long))
    assert apart.tolist() == [[0, FARTHEST], [FARTHEST, 0]]


def test_a_batch_has_nodes_links_and_edges_of_each_graph() -> None:
    nodes = np.arange(10, dtype=np.float32).reshape(5, 2)
    chain = OccupancyGraph("a", nodes, np.array([[0, 1, 2, 3], [1, 2, 3, 4]]), np.ones((4, 3), np.float32))
    pair = OccupancyGraph("b", nodes[:2], np.array([[0], [1]]), np.full((1, 3), 2.0, np.float32))
    placed = PlacedGraphs([chain, pair], np.zeros(2, np.float32), np.full(2, 2.0, np.float32), "cpu")
    batch = placed.batch(np.array([1, 0]))
    assert batch.is_node.sum(1).tolist() == [2, 5]
    assert batch.links.tolist() == [[1, 1, 0, 0, 0], [1, 2, 2, 2, 1]]
    assert batch.nodes[0, 1].tolist() == [1.0, 1.5]
    assert batch.edges.tolist() == [[0, 5, 6, 7, 8], [1, 6, 7, 8, 9]]
    assert batch.edge_features[:2, 0].tolist() == [2.0, 1.0]
    assert batch.steps[1, 0].tolist() == [0, 1, 2, 3, 4]
    assert sorted(place for places, _ in placed.batches(1) for place in places.tolist()) == [0, 1]
