from dataclasses import replace

import numpy as np
import pytest

from lab.papers.graph_networks.arrays import SHARES
from lab.papers.graph_networks.forward import (
    Inputs,
    _pooled,
    attention_shares,
    flow_of,
    forward,
    graph_layer,
    log_targets,
    scale,
)
from lab.papers.graph_networks.recipes import BY_BOUND, RECIPES, stack
from lab.papers.graph_networks.weights import initial_encoder, initial_weights
from small.tiny_workloads import tiny_graphs, tiny_recipe

torch = pytest.importorskip("torch")

from lab.papers.graph_networks.tensors import TorchOperations, to_tensors

# three nodes that hear of 0 → 2, 1 → 2
EDGES = torch.tensor([[0, 1], [2, 2]])
X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])


def operations(recipe, seed=0):
    weights = initial_weights(recipe, seed)
    if recipe.embedding != "none":
        weights |= initial_encoder(recipe, seed)
    return TorchOperations(to_tensors(weights, "cpu"))


def inputs_of(graphs, recipe):
    return Inputs(*map(torch.from_numpy, vars(stack(graphs, recipe)).values()))


def outputs(graphs, recipe):
    ops = operations(recipe)
    with torch.no_grad():
        return log_targets(ops, recipe, forward(ops, recipe, inputs_of(graphs, recipe))).numpy()


def two_columns(block, **others):
    """A layer of two columns in and out, with the operations that know its weights."""
    recipe = tiny_recipe("dippm", block=block, width=2, **others)
    weights = initial_weights(recipe, 3)
    flow = flow_of(TorchOperations({}), Inputs(X, EDGES, None, None), "forward")
    return recipe, TorchOperations(to_tensors(weights, "cpu")), flow


@pytest.mark.parametrize("name", RECIPES)
def test_the_order_of_nodes_does_not_matter(name):
    recipe, graph = tiny_recipe(name), tiny_graphs(4)[3]
    stacked = stack([graph], recipe)
    order = np.random.default_rng(0).permutation(len(graph))
    place = np.argsort(order)
    moved = Inputs(
        torch.from_numpy(stacked.nodes[order]),
        torch.from_numpy(place[stacked.edges][:, ::-1].copy()),
        torch.from_numpy(stacked.graph_index),
        torch.from_numpy(stacked.whole),
    )
    ops = operations(recipe)
    with torch.no_grad():
        first, second = forward(ops, recipe, inputs_of([graph], recipe)), forward(ops, recipe, moved)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_graphs_of_a_stack_do_not_see_each_other(name):
    recipe, graphs = tiny_recipe(name), tiny_graphs(3)
    together = outputs(graphs, recipe)
    alone = np.concatenate([outputs([graph], recipe) for graph in graphs])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"mlp"}))
def test_edges_matter(name):
    recipe, graph = tiny_recipe(name), tiny_graphs(2)[0]
    full = inputs_of([graph], recipe)
    bare = Inputs(full.nodes, full.edges[:, :1], full.graph_index, full.whole)
    ops = operations(recipe)
    assert not torch.equal(forward(ops, recipe, full), forward(ops, recipe, bare))


def test_by_bound_a_node_weighs_what_it_takes():
    recipe, graph = tiny_recipe("nnlqp", **BY_BOUND), tiny_graphs(4)[3]
    ops, inputs = operations(recipe), inputs_of([graph], recipe)
    doubled = torch.cat([inputs.nodes[:, :-SHARES], 2 * inputs.nodes[:, -SHARES:]], 1)
    with torch.no_grad():
        pooled = _pooled(ops, recipe, inputs)
        # the shares are no feature here, so that they change weights alone
        ops.weights["nodes.scale"][-SHARES:] = 0
        first, second = (_pooled(ops, recipe, replace(inputs, nodes=nodes)) for nodes in (inputs.nodes, doubled))
    assert pooled.shape == (1, (1 + SHARES) * recipe.width)
    torch.testing.assert_close(second[:, : recipe.width], first[:, : recipe.width])
    torch.testing.assert_close(second[:, recipe.width :], 2 * first[:, recipe.width :])


def test_sage_averages_the_messages_of_neighbours():
    recipe, ops, flow = two_columns("sage", normalise=False)
    w, own, b = (ops.weight(f"block.1.0.{part}") for part in ("weight", "own.weight", "bias"))
    expected = torch.stack([x @ own + b for x in X])
    expected[2] += (X[0] + X[1]) / 2 @ w
    torch.testing.assert_close(graph_layer(ops, recipe, X, flow, "block.1.0"), expected)


def test_normalised_sage_gives_rows_of_length_1():
    recipe, ops, flow = two_columns("sage")
    lengths = graph_layer(ops, recipe, X, flow, "block.1.0").norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(3))


def test_gcn_weighs_edges_by_the_roots_of_both_degrees():
    recipe, ops, flow = two_columns("gcn")
    heard = torch.stack([X[0], X[1], X[2] / 3 + (X[0] + X[1]) / 3**0.5])
    expected = heard @ ops.weight("block.1.0.weight") + ops.weight("block.1.0.bias")
    torch.testing.assert_close(graph_layer(ops, recipe, X, flow, "block.1.0"), expected)


def test_gin_sums_the_messages_and_the_node_itself():
    recipe, ops, flow = two_columns("gin")
    heard = torch.stack([X[0], X[1], X[0] + X[1] + X[2]])
    first = torch.relu(heard @ ops.weight("block.1.0.first.weight") + ops.weight("block.1.0.first.bias"))
    expected = first @ ops.weight("block.1.0.weight") + ops.weight("block.1.0.bias")
    torch.testing.assert_close(graph_layer(ops, recipe, X, flow, "block.1.0"), expected)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_to_a_node_sums_to_1(heads):
    recipe, ops, flow = two_columns("gat", heads=heads)
    of_edge, of_self = attention_shares(ops, recipe, 50 * X, flow, "block.1.0")
    assert of_edge.shape == (2, heads)
    everything = of_self.clone().index_add_(0, flow.target, of_edge)
    torch.testing.assert_close(everything, torch.ones(3, heads))
    assert (of_self[:2] == 1).all()  # they hear nobody else


def test_messages_run_both_ways_where_they_should():
    ops, inputs = TorchOperations({}), Inputs(X, EDGES, None, None)
    assert flow_of(ops, inputs, "forward").reached.flatten().tolist() == [0, 0, 2]
    assert flow_of(ops, inputs, "backward").reached.flatten().tolist() == [1, 1, 0]
    assert flow_of(ops, inputs, "mutual").reached.flatten().tolist() == [1, 1, 2]


def test_logarithms_keep_signs_and_one_hots():
    weights = {"x.logged": [1.0, 1.0, 0.0], "x.shift": [0.0, 0.0, 1.0], "x.scale": [1.0, 2.0, 3.0]}
    ops = TorchOperations({name: torch.tensor(value) for name, value in weights.items()})
    scaled = scale(ops, torch.tensor([[0.0, 1.0, 5.0], [-7.0, 3.0, 1.0]]), "x")
    torch.testing.assert_close(scaled, torch.tensor([[0.0, 2.0, 12.0], [-3.0, 4.0, 0.0]]))


def test_zeros_in_place_of_an_embedding_leave_the_width():
    recipe = tiny_recipe("trappm", embedding="zeros")
    assert outputs(tiny_graphs(2), recipe).shape == (2, len(recipe.targets))


@pytest.mark.parametrize("name", RECIPES)
def test_nodes_in_sixteen_bits_predict_nearly_the_same(name):
    recipe, graphs = tiny_recipe(name), tiny_graphs(3)
    wide = operations(recipe)
    narrow = replace(wide, narrow_nodes=True)
    with torch.no_grad():
        first, second = (forward(ops, recipe, inputs_of(graphs, recipe)) for ops in (wide, narrow))
    assert second.dtype == torch.float32
    assert (first - second).abs().max() < 0.2 * first.abs().max()
    assert narrow.narrow(first).dtype == torch.bfloat16
