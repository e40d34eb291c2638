"""Merged nodes change no answer of a network that cannot tell them apart."""

import numpy as np
import pytest

from lab.papers.dnn_occu.graphs import OccupancyGraph
from lab.papers.dnn_occu.merging import merge_equal

WIDTH = 5


def repeated(blocks: int) -> OccupancyGraph:
    """A first node, then equal blocks of two branches that join; the last block differs in one feature."""
    random = np.random.default_rng(0)
    kinds = random.normal(size=(4, WIDTH)).astype(np.float32)
    nodes, edges = [kinds[0]], []
    for _ in range(blocks):
        last = len(nodes) - 1
        nodes += [kinds[1], kinds[1], kinds[2]]
        edges += [(last, last + 1), (last, last + 2), (last + 1, last + 3), (last + 2, last + 3)]
    nodes[-1] = kinds[3]
    ends = np.array(edges).T
    return OccupancyGraph("a", np.stack(nodes), ends, np.ones((ends.shape[1], 3), np.float32))


def test_equal_nodes_are_one_and_counted() -> None:
    graph = repeated(20)
    merged = merge_equal(graph, 0)
    assert len(merged) == 4
    assert merged.counts is not None
    assert merged.counts.sum() == len(graph)
    deep = merge_equal(graph, 3)
    assert len(merged) < len(deep) < 12
    # an edge from each of two equal branches stays two edges
    assert np.bincount(deep.edges[1]).max() == 2


@pytest.mark.parametrize("name", ["dnnperf", "transformer", "mlp"])
def test_no_answer_changes(name: str) -> None:
    pytest.importorskip("torch")
    from lab.papers.dnn_occu.batches import PlacedGraphs
    from lab.papers.dnn_occu.networks import LOOKS_AT_SOURCES, NETWORKS, torch

    torch.manual_seed(1)
    network = NETWORKS[name](WIDTH, 3).eval()
    graphs = [repeated(12), repeated(2)]
    scale = np.zeros(WIDTH, np.float32), np.ones(WIDTH, np.float32)
    with torch.no_grad():
        whole, merged = (
            network(PlacedGraphs(own, *scale, "cpu", has_steps=False).batch(np.arange(2)))
            for own in (graphs, [merge_equal(graph, LOOKS_AT_SOURCES[name]) for graph in graphs])
        )
    assert merged.tolist() == pytest.approx(whole.tolist(), abs=1e-5)
    assert whole[0].item() != pytest.approx(whole[1].item(), abs=1e-6)
