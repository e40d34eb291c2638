"""How much is moved between writing a tensor and reading it."""

import numpy as np
import pytest

from foretell.features.reuse import reuse_columns
from foretell.graph import Graph, Node, Tensor

MIB = 2**20


def _chain() -> Graph:
    """A product, a view of it, which launches nothing, and a function of the view."""
    tensors = [Tensor("x", (1024, 256), "fp32", "input"), Tensor("w", (256, 256), "fp32", "parameter")]
    tensors += [Tensor(name, (1024, 256), "fp32") for name in ("h", "v", "y")]
    nodes = (
        Node("product", "MatMul", ("x", "w"), ("h",)),
        Node("view", "Reshape", ("h",), ("v",)),
        Node("function", "Relu", ("v",), ("y",)),
    )
    return Graph("chain", nodes, {tensor.name: tensor for tensor in tensors}, ("x",), ("y",))


def _rows(*moved: float, units: tuple[tuple[int, ...], ...] = ((0,), (2,))) -> list[list[float]]:
    return reuse_columns(_chain(), units, np.array(moved)).tolist()


def test_an_input_was_written_a_whole_run_ago():
    assert _rows(1023 * MIB, MIB)[0] == pytest.approx([30.0, 30.0])


def test_a_view_is_as_old_as_what_it_views():
    assert _rows(3 * MIB, MIB)[1][0] == 18.0
    assert _rows(3 * MIB, 64 * MIB, MIB, units=((0,), (), (2,)))[2][0] == 26.0


def test_a_tensor_that_is_written_later_was_written_in_the_run_before():
    assert _rows(MIB, 2**30, units=((2,), (0,)))[0][0] == 30.0


def test_the_largest_input_decides():
    nodes = (
        Node("old", "Exp", ("x",), ("a",)),
        Node("new", "Exp", ("s",), ("b",)),
        Node("n", "Add", ("a", "b"), ("y",)),
    )
    sizes = {"x": 1024, "a": 1024, "s": 8, "b": 8, "y": 1024}
    tensors = {
        name: Tensor(name, (size,), kind="input" if name in "xs" else "activation") for name, size in sizes.items()
    }
    graph = Graph("sum", nodes, tensors, ("x", "s"), ("y",))
    rows = reuse_columns(graph, ((0,), (1,), (2,)), np.array([MIB, 2.0**28, MIB]))
    assert rows[2, 0] == 28.0, "the small operand was written a moment ago"


def test_distances_are_whole_and_bounded():
    assert _rows(2.0**50, 0.0)[0][0] == 32.0
    assert _rows(1.0, 0.0)[0][0] == 18.0


def test_a_graph_without_units_has_no_rows():
    assert reuse_columns(_chain(), (), np.zeros(0)).shape == (0, 2)
