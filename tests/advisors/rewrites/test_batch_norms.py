"""Batch norms that are folded into the layer before them."""

from foretell.advisors.rewrites.batch_norms import fold_batch_norms
from foretell.graph import Graph, Node
from foretell.testing import chain, tiny_graph

SHAPES = {
    "x": (2, 3, 8, 8), "w": (4, 3, 3, 3), "c": (2, 4, 6, 6), "w_scale": (4,), "w_bias": (4,), "w_mean": (4,),
    "w_var": (4,), "n": (2, 4, 6, 6), "r": (2, 4, 6, 6),
}  # fmt: skip
NORM = ("c", "w_scale", "w_bias", "w_mean", "w_var")


def network(*, outputs: tuple[str, ...] = ("r",), layer: str = "Conv") -> Graph:
    nodes = [
        Node("conv", layer, ("x", "w"), ("c",)),
        Node("norm", "BatchNormalization", NORM, ("n",)),
        Node("relu", "Relu", ("n",), ("r",)),
    ]
    return chain(nodes, SHAPES, ["x"], list(outputs))


def test_the_convolution_gets_the_bias_and_makes_the_result() -> None:
    folded = fold_batch_norms(network())
    assert [(node.op, node.inputs, node.outputs) for node in folded.nodes] == [
        ("Conv", ("x", "w", "w_bias"), ("n",)),
        ("Relu", ("n",), ("r",)),
    ]
    # what the batch norm alone needed takes no memory any more
    assert set(folded.tensors) == {"x", "w", "w_bias", "n", "r"}


def test_a_result_that_is_read_twice_or_leaves_keeps_its_batch_norm() -> None:
    leaving = network(outputs=("r", "c"))
    assert fold_batch_norms(leaving) is leaving
    nodes = [*network().nodes, Node("other", "Relu", ("c",), ("o",))]
    read_twice = chain(nodes, SHAPES | {"o": (2, 4, 6, 6)}, ["x"], ["r", "o"])
    assert fold_batch_norms(read_twice) is read_twice


def test_only_layers_with_weights_take_a_batch_norm_over() -> None:
    pooled = network(layer="Add")
    assert fold_batch_norms(pooled) is pooled
    graph = tiny_graph()
    assert fold_batch_norms(graph) is graph
