"""How much is moved between writing a tensor and reading it."""

import pytest

from foretell.features.reuse import Reuse
from foretell.graph import Graph, Node, Tensor

MIB = 2**20
RUNNING = (0, 2)  # the view between launches nothing


def _chain() -> Graph:
    """A product, a view of it, and a function of the view."""
    tensors = [Tensor("x", (1024, 256), "fp32", "input"), Tensor("w", (256, 256), "fp32", "parameter")]
    tensors += [Tensor(name, (1024, 256), "fp32") for name in ("h", "v", "y")]
    nodes = (
        Node("product", "MatMul", ("x", "w"), ("h",)),
        Node("view", "Reshape", ("h",), ("v",)),
        Node("function", "Relu", ("v",), ("y",)),
    )
    return Graph("chain", nodes, {tensor.name: tensor for tensor in tensors}, ("x",), ("y",))


def test_an_input_was_written_a_whole_run_ago():
    assert Reuse(_chain(), RUNNING, 1024 * MIB).describe((0,)) == pytest.approx((30.0, 30.0))


def test_a_view_is_as_old_as_what_it_views():
    reuse = Reuse(_chain(), RUNNING, 1024 * MIB)
    reuse.run((0,), 3 * MIB)
    assert reuse.describe((2,))[0] == 18.0
    reuse.run((), 64 * MIB)
    assert reuse.describe((2,))[0] == 26.0


def test_distances_are_whole_and_bounded():
    assert Reuse(_chain(), RUNNING, 2**50).describe((0,))[0] == 32.0
    assert Reuse(_chain(), RUNNING, 1).describe((0,))[0] == 18.0
