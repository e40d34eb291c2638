import numpy as np
import pytest

from foretell.records import Workload
from foretell.testing import tiny_graph
from lab.papers.graph_networks.arrays import ATTRIBUTES, extract_graph_arrays
from lab.papers.trappm.unlabelled import Variant, unlabelled
from small.tiny_workloads import H200, tiny_graphs

GRAPH = extract_graph_arrays(Workload(tiny_graph(batch_size=2, channels=8), H200))


def test_a_variant_without_changes_is_the_graph():
    same = Variant().of(GRAPH)
    for name in ("operators", "attributes", "input_shapes", "output_shapes", "costs", "edges"):
        np.testing.assert_array_equal(getattr(same, name), getattr(GRAPH, name))


def test_a_larger_batch_is_what_the_same_graph_at_that_batch_has():
    real = extract_graph_arrays(Workload(tiny_graph(batch_size=8, channels=8), H200))
    made = Variant(batch=4).of(GRAPH)
    np.testing.assert_array_equal(made.output_shapes, real.output_shapes)
    np.testing.assert_allclose(made.costs[:, 0], real.costs[:, 0])
    assert made.whole_of(("batch",)).tolist() == [8]


def test_width_and_side_scale_channels_and_images():
    made = Variant(width=2, side=0.5).of(GRAPH)
    conv, real = made.output_shapes[0], GRAPH.output_shapes[0]
    assert conv[:4].tolist() == [real[0], 2 * real[1], real[2] / 2, real[3] / 2]
    channels = ATTRIBUTES.index("channels")
    assert made.attributes[0, channels] == 2 * GRAPH.attributes[0, channels]
    assert made.costs[0, 0] == pytest.approx(GRAPH.costs[0, 0])  # four times the channels' pairs, a quarter of the area


def test_a_shorter_graph_is_the_beginning_with_its_edges():
    made = Variant(depth=0.6).of(next(graph for graph in [GRAPH] if len(graph) == 5))
    assert len(made) == 5, "graphs of up to eight nodes stay whole"
    longer = max(tiny_graphs(8), key=len)
    assert Variant(depth=0.5).of(longer).edges.max() < len(Variant(depth=0.5).of(longer))


def test_as_many_as_asked_for_the_known_ones_first_and_the_same_again():
    graphs = tiny_graphs(4)
    made, again = unlabelled(graphs, 10, 1), unlabelled(graphs, 10, 1)
    assert len(made) == 10
    assert made[:4] == graphs
    assert all(np.array_equal(one.costs, other.costs) for one, other in zip(made, again))
    assert len(unlabelled(graphs, 2, 1)) == 2
