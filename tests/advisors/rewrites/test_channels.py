"""Channel counts that are rounded up."""

import pytest

from foretell.advisors.rewrites.channels import fill_tiles
from foretell.graph import Graph, Node, graph_costs
from foretell.testing import chain


def network(channels: int, *, groups: int = 1, joined: bool = False) -> Graph:
    nodes = [
        Node("first", "Conv", ("x", "w1"), ("a",), origin="conv2d"),  # as PyTorch's exporter notes it
        Node("norm", "BatchNormalization", ("a", "w_s", "w_b", "w_m", "w_v"), ("n",)),
        Node("relu", "Relu", ("n",), ("r",)),
        Node("second", "Conv", ("r", "w2"), ("b",), {"group": groups}),
        Node("add", "Add", ("b", "r"), ("c",)),
    ]
    depth = channels // groups
    image = (2, channels, 8, 8)
    shapes = {
        "x": (2, 3, 8, 8), "w1": (channels, 3, 1, 1), "w2": (channels, depth, 1, 1), "a": image, "n": image, "r": image,
        "b": image, "c": image, "p": (2, channels, 1, 1), "f": (2, channels), "w3": (10, channels), "y": (2, 10),
    }  # fmt: skip
    shapes |= dict.fromkeys(("w_s", "w_b", "w_m", "w_v"), (channels,))
    if joined:
        nodes.append(Node("join", "Concat", ("c", "c"), ("j",), {"axis": 1}))
        kept = {name: shape for name, shape in shapes.items() if name not in ("p", "f", "w3", "y")}
        return chain(nodes, kept | {"j": (2, 2 * channels, 8, 8)}, ["x"], ["j"])
    nodes += [
        Node("pool", "GlobalAveragePool", ("c",), ("p",)),
        Node("flat", "Reshape", ("p",), ("f",)),
        Node("head", "Gemm", ("f", "w3"), ("y",), {"transB": 1}),
    ]
    return chain(nodes, shapes, ["x"], ["y"])


@pytest.mark.parametrize("groups", [1, 30])
def test_all_that_is_tied_together_grows_together(groups: int) -> None:
    graph = fill_tiles(network(30, groups=groups))
    graph.validate()
    assert {name: graph.tensors[name].shape for name in ("w1", "w_s", "r", "c", "f", "w3", "y")} == {
        "w1": (32, 3, 1, 1), "w_s": (32,), "r": (2, 32, 8, 8), "c": (2, 32, 8, 8), "f": (2, 32), "w3": (10, 32),
        "y": (2, 10),
    }  # fmt: skip
    second = next(node for node in graph.nodes if node.name == "second")
    assert (second.integer("group", 1), graph.tensors["w2"].shape[1]) == ((32, 1) if groups > 1 else (1, 32))
    assert graph_costs(graph).total.macs > graph_costs(network(30, groups=groups)).total.macs


@pytest.mark.parametrize("graph", [network(32), network(2), network(30, joined=True), network(30, groups=2)])
def test_full_tiles_tiny_layers_and_what_has_no_rule_stay(graph: Graph) -> None:
    assert fill_tiles(graph) is graph


def test_a_depthwise_convolution_carries_channels_to_the_next() -> None:
    nodes = [
        Node("first", "Conv", ("x", "w1"), ("a",)),
        Node("depthwise", "Conv", ("a", "w2"), ("b",), {"group": 30}),
        Node("last", "Conv", ("b", "w3"), ("y",)),
    ]
    image = (2, 30, 8, 8)
    shapes = {"x": (2, 3, 8, 8), "w1": (30, 3, 1, 1), "a": image, "w2": (30, 1, 1, 1), "b": image}
    shapes |= {"w3": (16, 30, 1, 1), "y": (2, 16, 8, 8)}
    graph = fill_tiles(chain(nodes, shapes, ["x"], ["y"]))
    assert [graph.tensors[name].shape[1] for name in ("a", "b", "w3")] == [32, 32, 32]
    assert graph.tensors["w2"].shape == (32, 1, 1, 1)
    assert graph.nodes[1].integer("group", 1) == 32
    seen = chain(nodes, shapes, ["x"], ["y", "a"])  # an output keeps its channels, and so does what is tied to it
    assert fill_tiles(seen) is seen
