"""Attention that is spelled out becomes one operator."""

from foretell.advisors.rewrites.attention import fuse_attention
from foretell.graph import Graph, Node, graph_costs
from foretell.testing import chain, tiny_graph

HEADS = (2, 4, 16, 8)
SCORES = (2, 4, 16, 16)
SHAPES = {
    "q": HEADS, "k": HEADS, "v": HEADS, "kt": (2, 4, 8, 16), "s": SCORES, "b": (1, 4, 16, 16),
    "added": SCORES, "p": SCORES, "d": SCORES, "y": HEADS,
}  # fmt: skip


def attention(*between: Node, scores: str = "s", weights: str = "p", outputs: tuple[str, ...] = ("y",)) -> Graph:
    nodes = [
        Node("transpose", "Transpose", ("k",), ("kt",), {"perm": (0, 1, 3, 2)}),
        Node("scores", "MatMul", ("q", "kt"), ("s",)),
        *(node for node in between if node.op not in ("Dropout", "Identity")),
        Node("softmax", "Softmax", (scores,), ("p",)),
        *(node for node in between if node.op in ("Dropout", "Identity")),
        Node("values", "MatMul", (weights, "v"), ("y",)),
    ]
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    shapes = {name: shape for name, shape in SHAPES.items() if name in used}
    return chain(nodes, shapes, [name for name in ("q", "k", "v", "b") if name in shapes], list(outputs))


def test_a_product_a_softmax_and_a_product_are_one() -> None:
    graph = attention()
    fused = fuse_attention(graph)
    assert [node.op for node in fused.nodes] == ["Attention"]
    assert fused.nodes[0].inputs == ("q", "k", "v")
    before, after = (sum(cost.bytes_written for cost in graph_costs(one).nodes) for one in (graph, fused))
    assert after < before  # the scores are not written any more


def test_dropout_and_bias_are_part_of_it() -> None:
    biased = Node("bias", "Add", ("s", "b"), ("added",))
    fused = fuse_attention(attention(biased, Node("drop", "Dropout", ("p",), ("d",)), scores="added", weights="d"))
    assert [node.op for node in fused.nodes] == ["Attention"]
    assert fused.nodes[0].inputs == ("q", "k", "v", "b")


def test_a_window_s_two_masks_become_one() -> None:
    wide = (1, 2, 4, 16, 16)
    nodes = [
        Node("transpose", "Transpose", ("k",), ("kt",), {"perm": (0, 1, 3, 2)}),
        Node("scores", "MatMul", ("q", "kt"), ("s",)),
        Node("bias", "Add", ("s", "b"), ("added",)),
        Node("apart", "Reshape", ("added",), ("a5",)),
        Node("mask", "Add", ("a5", "m"), ("m5",)),
        Node("again", "Reshape", ("m5",), ("a4",)),
        Node("softmax", "Softmax", ("a4",), ("p",)),
        Node("values", "MatMul", ("p", "v"), ("y",)),
    ]
    shapes = SHAPES | {"a5": wide, "m5": wide, "a4": SCORES, "m": (1, 2, 1, 16, 16)}
    graph = chain(nodes, {n: s for n, s in shapes.items() if n != "d"}, ["q", "k", "v", "b", "m"], ["y"])
    fused = fuse_attention(graph)
    assert sorted(node.op for node in fused.nodes) == ["Add", "Attention", "Expand", "Reshape"]


def test_weights_that_leave_the_graph_are_kept() -> None:
    seen = attention(outputs=("y", "p"))
    assert fuse_attention(seen) is seen
    dropped = attention(Node("drop", "Dropout", ("p",), ("d",)), weights="d", outputs=("y", "p"))
    assert fuse_attention(dropped) is dropped
    graph = tiny_graph()
    assert fuse_attention(graph) is graph
