from dataclasses import replace

import numpy as np
import pytest

from foretell.graph import Node
from foretell.records import Workload
from foretell.testing import chain
from lab.papers.graph_networks.arrays import extract_graph_arrays
from lab.papers.graph_networks.merging import can_merge, rows_of
from lab.papers.graph_networks.recipes import BY_BOUND, RECIPES
from small.tiny_workloads import H200, tiny_graphs, tiny_recipe

torch = pytest.importorskip("torch")

from lab.papers.graph_networks.forward import forward
from lab.papers.graph_networks.scales import sample_scales
from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations, to_tensors
from lab.papers.graph_networks.weights import initial_encoder, initial_weights


def ladder(steps=12, **others):
    """A chain of equal blocks, each an activation beside a square that meet in a sum."""
    nodes, before = [], "x"
    for number in range(steps):
        a, b, c = (f"{letter}{number}" for letter in "abc")
        nodes += [
            Node(a, "Relu", (before,), (a,)), Node(b, "Mul", (before, before), (b,)), Node(c, "Add", (a, b), (c,))
        ]  # fmt: skip
        before = c
    shapes = {name: (4, 8) for node in nodes for name in (*node.inputs, *node.outputs)}
    return extract_graph_arrays(Workload(chain(nodes, shapes, ["x"], [before], batch_size=4), H200, **others))


@pytest.mark.parametrize(("name", "others"), [*((name, {}) for name in RECIPES), ("nnlqp", BY_BOUND)])
def test_a_network_cannot_tell_merged_graphs_from_whole_ones(name, others):
    recipe = replace(tiny_recipe(name, **others), blocks=2, layers=1)
    graphs = [ladder(), *tiny_graphs(5), ladder(7)]
    weights = initial_weights(recipe, 1) | initial_encoder(recipe, 1)
    samples = [(graph, dict.fromkeys(recipe.targets, 1.0 + place)) for place, graph in enumerate(graphs)]
    weights |= sample_scales(samples, recipe)
    ops = TorchOperations(to_tensors(weights, "cpu"))
    placed = [DeviceGraphs.place(graphs, recipe, "cpu", merged=merged) for merged in (False, True)]
    assert len(placed[1].nodes) < len(placed[0].nodes) or name == "mlp"
    with torch.no_grad():
        whole, merged = (forward(ops, recipe, side.pick(np.array([5, 0, 6, 1]))) for side in placed)
    torch.testing.assert_close(merged, whole, rtol=1e-5, atol=1e-5)


def test_equal_blocks_far_from_the_start_are_one_and_count_as_all():
    recipe = tiny_recipe("dippm", blocks=1, layers=2)
    rows = rows_of([ladder(12)], recipe, merged=True)
    # nothing is before the first block; two steps back from the second is the first, but not for its sum
    assert sorted(rows.counts.tolist()) == [1] * 5 + [10, 10, 11]
    assert rows.counts.sum() == 36


def test_a_deeper_network_merges_less():
    counts = [len(rows_of([ladder(12)], tiny_recipe("dippm", blocks=n), merged=True).nodes) for n in (1, 2, 3)]
    assert counts == sorted(set(counts))


def test_nodes_of_two_graphs_and_of_two_dtypes_stay_apart():
    recipe = tiny_recipe("dippm")
    one, two = (len(rows_of(graphs, recipe, merged=True).nodes) for graphs in ([ladder()], [ladder(), ladder()]))
    assert two == 2 * one
    assert not np.array_equal(ladder().classed_nodes, ladder(dtype="fp16").classed_nodes)


def test_what_norms_over_all_nodes_is_not_merged():
    trained = tiny_recipe("trappm", embedding="trained")
    assert not can_merge(trained)
    assert rows_of([ladder()], trained, merged=True).counts is None
