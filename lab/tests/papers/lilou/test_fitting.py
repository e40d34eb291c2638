"""GAT layers over stacked graphs, and the loop that LILOU's networks share."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foretell.errors import DataError

torch = pytest.importorskip("torch")

from lab.papers.graph_networks.forward import Inputs, flow_of, graph_layer
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations
from lab.papers.lilou.features import DTYPE_CODES, OPERATOR_CODES
from lab.papers.lilou.fitting import Gat, LoneNodes, NodeRows, Scale, Schedule, fit, one_cycle


def stack(nodes: Any, edges: list[tuple[int, int]], graphs: list[int]) -> Inputs:
    index = torch.tensor(graphs)
    ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    return Inputs(nodes, ends, index, torch.zeros(int(index.max()) + 1, 1))


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)  # with some weights every activation is cut off, and nothing differs


def test_a_layer_on_a_node_alone_is_linear_and_larger_graphs_are_normed() -> None:
    gat = Gat(width=4, layers=1, direction="forward")
    weights = gat.draw(3, "cpu")
    x = torch.rand(5, 3)
    alone = gat.embed(weights, x, stack(x, [], [0, 1, 2, 3, 4]))
    assert torch.allclose(alone, torch.relu(x @ weights["gat.0.weight"]), atol=1e-6)
    together = gat.embed(weights, x, stack(x, [], [0, 0, 0, 0, 1]))
    assert torch.allclose(together[:4], alone[:4] / 2, atol=1e-6)
    assert torch.allclose(together[4], alone[4], atol=1e-6)


def test_attention_that_is_left_out_changes_nothing() -> None:
    gat = Gat(width=8, layers=3, direction="mutual")
    weights, x = gat.draw(3, "cpu"), torch.rand(6, 3)
    inputs = stack(x, [], [0, 1, 2, 2, 3, 4])  # a graph of two nodes that do not hear each other, too
    ops, recipe = TorchOperations(weights), Recipe(block="gat", width=8, heads=1)
    norm = torch.tensor([1, 1, 2, 2, 1, 1]).unsqueeze(1) ** -0.5
    slow = x
    for number in range(3):
        slow = torch.relu(graph_layer(ops, recipe, slow, flow_of(ops, inputs, "mutual"), f"gat.{number}") * norm)
    quick = gat.embed(weights, x, inputs)
    assert torch.allclose(quick, slow, rtol=0, atol=1e-7)
    slow_gradient, quick_gradient = (torch.autograd.grad(y.sum(), weights["gat.0.weight"])[0] for y in (slow, quick))
    assert torch.allclose(quick_gradient, slow_gradient, atol=1e-6)


def test_a_product_with_codes_is_that_with_one_hot_rows() -> None:
    operators, dtypes, numbers = torch.tensor([3, 0, 3]), torch.tensor([1, 2, 0]), torch.rand(3, 5)
    one_hot = [torch.nn.functional.one_hot(operators, OPERATOR_CODES), torch.nn.functional.one_hot(dtypes, DTYPE_CODES)]
    weight = torch.rand(OPERATOR_CODES + DTYPE_CODES + 5, 4)
    expected = torch.cat([*one_hot, numbers], 1) @ weight
    assert torch.allclose(NodeRows(operators, dtypes, numbers) @ weight, expected, atol=1e-6)


def test_nodes_alone_are_picked_as_graphs_are() -> None:
    ones, none = np.ones(5, np.int64), np.zeros(5, np.int64)
    placed = (torch.rand(5, 3), torch.zeros(2, 0, dtype=torch.long), torch.rand(5, 2), None, ones, none)
    numbers = np.array([4, 1, 1])
    one, other = (kind(*placed).pick(numbers) for kind in (LoneNodes, DeviceGraphs))
    for name in ("nodes", "edges", "graph_index", "whole"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(("direction", "heard"), [("forward", [1]), ("mutual", [0, 1])])
def test_messages_go_to_readers_or_both_ways(direction: str, heard: list[int]) -> None:
    gat = Gat(width=4, layers=1, direction=direction)
    weights = gat.draw(3, "cpu")
    x = torch.rand(2, 3)
    apart, joined = (gat.embed(weights, x, stack(x, edges, [0, 0])) for edges in ([], [(0, 1)]))
    assert [place for place in range(2) if not torch.allclose(apart[place], joined[place], atol=1e-6)] == heard


def test_what_is_not_published_gives_the_node_and_all_layers() -> None:
    gat = Gat(width=4, layers=2, direction="mutual", published=False)
    x = torch.rand(3, 3)
    embedded = gat.embed(gat.draw(3, "cpu"), x, stack(x, [(0, 1), (1, 2)], [0, 0, 0]))
    assert embedded.shape == (3, gat.out_width) == (3, 12)


def test_a_constant_column_has_no_influence() -> None:
    values = np.array([[1.0, 7.0], [3.0, 7.0]], np.float32)
    scaled = Scale.of(values).scaled(values)
    assert scaled.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_the_rate_rises_and_falls() -> None:
    rates = [one_cycle(1e-2, done) for done in np.linspace(0, 1, 21)]
    assert max(rates) == pytest.approx(1e-2)
    assert rates.index(max(rates)) == 6
    assert rates[-1] < rates[0] < 1e-3


def towards(goal: float) -> tuple[Any, Callable[[Any], Any]]:
    value = torch.zeros(1, requires_grad=True)
    return value, lambda numbers: ((value - goal) ** 2).sum() * len(numbers)


def test_the_best_epoch_is_kept() -> None:
    value, loss = towards(1.0)
    seen: list[float] = []

    def score() -> float:
        seen.append(value.item())
        return -abs(value.item() - 0.5)  # the goal of the loss is beyond what is best

    history = fit([value], np.arange(4), loss, score, Schedule(rate=0.2, batch=2, epochs=12))
    assert len(history) == 12
    assert value.item() == min(seen, key=lambda number: abs(number - 0.5))
    assert value.item() != seen[-1]


def test_seconds_end_a_fit_and_its_rate() -> None:
    value, loss = towards(1.0)
    history = fit([value], np.arange(4), loss, lambda: value.item(), Schedule(0.1, 2, 10**9, seconds=0.1))
    assert 0 < len(history) < 10**9
    assert history[-1]["seconds"] < 5
    none = fit([value], np.arange(4), loss, lambda: value.item(), Schedule(0.1, 2, 5, seconds=0.0))
    assert len(none) == 1


def test_a_loss_that_is_never_finite_is_an_error() -> None:
    value, _ = towards(1.0)
    with pytest.raises(DataError, match="rate below"):
        fit([value], np.arange(2), lambda _: value.sum() * math.nan, lambda: 0.0, Schedule(0.1, 2, 2))
