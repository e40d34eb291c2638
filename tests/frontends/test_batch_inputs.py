"""Whether inputs of fixed shapes have a batch."""

import pytest

from foretell.frontends.batch_inputs import refuse_false_batch, shared_batch
from foretell.frontends.batch_mixing import mixes_batch
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.batch import mark_batch_axes


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(8, 3, 224, 224)], 8),
        ([(8, 4), (), (1, 4), (8,)], 8),
        ([(1, 6, 4), (6, 4)], 1),  # one item beside a table
        ([(2708, 1433), (2, 10556)], None),
        ([(3, 4), (4, 5)], None),
        ([], 1),
        ([()], 1),
    ],
)
def test_the_first_axes_have_to_agree(shapes: list[tuple[int, ...]], expected: int | None) -> None:
    assert shared_batch(shapes) == expected


def picked(index: tuple[int, ...]) -> Graph:
    """Rows of the first axis, by an index that the model owns."""
    tensors = {
        "x": Tensor("x", (22, 6), "fp32", "input", 0),
        "index": Tensor("index", index, "int64", "buffer"),
        "y": Tensor("y", (*index, 6), "fp32"),
    }
    nodes = [Node("pick", "Gather", ("x", "index"), ("y",), {"axis": 0})]
    return mark_batch_axes(Graph.build("graph", nodes, tensors, ["x"], ["y"], batch_size=22))


def test_an_axis_that_is_read_across_is_no_batch() -> None:
    graph = refuse_false_batch(picked((70,)), has_batch=True)
    assert graph.batch_size == 1
    assert all(tensor.batch_axis is None for tensor in graph.tensors.values())
    assert "Gather reads across it" in graph.warnings[0]


@pytest.mark.parametrize("index", [(1,), (22,)])
def test_one_row_or_one_for_each_item_is_no_proof(index: tuple[int, ...]) -> None:
    assert mixes_batch(picked(index)) is None
    graph = picked((22,))
    assert refuse_false_batch(graph, has_batch=True) is graph
