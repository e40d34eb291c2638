import numpy as np
import pytest

from lab.papers.graph_networks.recipes import stack
from small.tiny_workloads import tiny_graphs, tiny_recipe

torch = pytest.importorskip("torch")

from lab.papers.graph_networks import tensors as graph_tensors
from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations, to_arrays, to_tensors


def test_graphs_picked_on_the_device_are_those_stacked_in_memory():
    graphs, recipe = tiny_graphs(6), tiny_recipe("trappm")
    placed = DeviceGraphs.place(graphs, recipe, "cpu")
    numbers = np.array([4, 0, 3, 3])
    picked, stacked = placed.pick(numbers), stack([graphs[i] for i in numbers], recipe)
    for name, array in vars(stacked).items():
        np.testing.assert_array_equal(getattr(picked, name).numpy(), array)


def test_a_batch_is_cut_into_parts_that_fit(monkeypatch):
    monkeypatch.setitem(graph_tensors.MAX_NODES, "cpu", 10)
    graphs = tiny_graphs(7)
    placed = DeviceGraphs.place(graphs, tiny_recipe("dippm"), "cpu")
    numbers = np.array([6, 5, 4, 3, 2, 1, 0])
    parts = list(placed.parts(numbers))
    assert np.concatenate(parts).tolist() == numbers.tolist()
    assert len(parts) > 2
    assert all(placed.node_counts[part].sum() <= 10 for part in parts)
    monkeypatch.setitem(graph_tensors.MAX_NODES, "cpu", 1)
    assert [len(part) for part in placed.parts(numbers)] == [1] * 7


def test_weights_survive_the_way_to_a_device_and_back():
    weights = {"a.weight": np.ones((2, 3), np.float32), "a.shift": np.zeros(3, np.float32)}
    tensors = to_tensors(weights, "cpu")
    assert tensors["a.weight"].requires_grad
    assert not tensors["a.shift"].requires_grad
    assert all(np.array_equal(value, weights[name]) for name, value in to_arrays(tensors).items())


def test_statistics_of_a_batch_norm_move_only_while_fitting():
    parts = {"mean": torch.zeros(1), "variance": torch.ones(1), "gain": torch.ones(1), "bias": torch.zeros(1)}
    weights = {f"n.{name}": value for name, value in parts.items()}
    x = torch.tensor([[1.0], [3.0]])
    result = TorchOperations(weights).batch_norm(x, "n")
    torch.testing.assert_close(result, x, rtol=1e-4, atol=1e-4)
    assert parts["mean"].item() == 0
    moved = TorchOperations(weights, momentum=0.5).batch_norm(x, "n")
    assert parts["mean"].item() == 1
    assert moved.sum().item() == pytest.approx(0, abs=1e-5)


EDGES = torch.tensor([[0, 0, 2, 1], [1, 3, 3, 3]])


def test_sums_over_neighbours_and_their_gradient_are_those_of_gather_and_scatter():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    ops = TorchOperations({})
    routes = ops.routes(EDGES[0], EDGES[1], x)
    expected = torch.zeros(4, 3, dtype=torch.float64).index_add(0, EDGES[1], x[EDGES[0]])
    torch.testing.assert_close(ops.neighbours(x, routes), expected)
    assert torch.autograd.gradcheck(lambda x: ops.neighbours(x, routes), (x,))


def test_a_graph_without_edges_has_no_neighbours():
    ops, none = TorchOperations({}), torch.zeros(0, dtype=torch.int64)
    x = torch.ones(2, 3)
    assert ops.neighbours(x, ops.routes(none, none, x)).tolist() == [[0] * 3] * 2


def test_rows_get_the_length_1_with_the_gradient_of_a_quotient():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    ops = TorchOperations({})
    torch.testing.assert_close(ops.unit_rows(x), x / x.norm(dim=1, keepdim=True))
    assert torch.autograd.gradcheck(ops.unit_rows, (x,))


def test_a_row_of_zeros_stays_and_has_no_gradient():
    x = torch.zeros(1, 3, requires_grad=True)
    TorchOperations({}).unit_rows(x).sum().backward()
    assert x.grad.tolist() == [[0, 0, 0]]
