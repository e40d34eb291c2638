"""What exporters split is tied together again."""

from dataclasses import replace

from foretell.graph import Graph, Node, graph_costs, run_groups
from foretell.graph.ir.patterns import tie_patterns
from foretell.testing import chain

S = (2, 8, 8)


def groups(
    nodes: list[Node], outputs: list[str], extra: dict[str, tuple[int, ...]] | None = None
) -> dict[str, tuple[int, ...]]:
    names = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    made = {o for node in nodes for o in node.outputs}
    shapes = dict.fromkeys(sorted(names), S) | (extra or {})
    inputs = sorted(n for n in names - made if not n.startswith("w"))
    tied = tie_patterns(chain(nodes, shapes, inputs, outputs))
    return {g.op: g.nodes for g in run_groups(graph_costs(tied)) if len(g.nodes) > 1}


def attention(mask: bool = True) -> list[Node]:
    return [
        Node("qk", "MatMul", ("q", "k"), ("s",)),
        Node("scale", "Div", ("s", "root"), ("t",)),
        Node("mask", "Add", ("t", "m"), ("u",)) if mask else Node("mask", "Identity", ("t",), ("u",)),
        Node("soft", "Softmax", ("u",), ("p",)),
        Node("pv", "MatMul", ("p", "v"), ("o",)),
    ]


def test_attention() -> None:
    assert groups(attention(), ["o"]) == {"Attention": (0, 1, 2, 3, 4)}


def test_attention_whose_scores_are_read_elsewhere_is_not_one_kernel() -> None:
    nodes = [*attention(), Node("spy", "Relu", ("p",), ("r",))]
    assert groups(nodes, ["o", "r"]) == {}
    assert groups(attention(), ["o", "p"]) == {}


def test_a_softmax_alone() -> None:
    assert groups([Node("soft", "Softmax", ("x",), ("p",))], ["p"]) == {}


def test_gelu() -> None:
    nodes = [
        Node("div", "Div", ("x", "root"), ("a",)),
        Node("erf", "Erf", ("a",), ("b",)),
        Node("add", "Add", ("b", "one"), ("c",)),
        Node("mul", "Mul", ("x", "c"), ("d",)),
        Node("half", "Mul", ("d", "c2"), ("y",)),
    ]
    assert groups(nodes, ["y"]) == {"Gelu": (0, 1, 2, 3, 4)}


def test_silu() -> None:
    nodes = [Node("s", "Sigmoid", ("x",), ("g",)), Node("m", "Mul", ("x", "g"), ("y",))]
    assert groups(nodes, ["y"]) == {"Silu": (0, 1)}
    assert groups([nodes[0], Node("m", "Mul", ("z", "g"), ("y",))], ["y"]) == {}


def test_layer_norm_and_rms_norm() -> None:
    centred = [
        Node("mean", "ReduceMean", ("x",), ("m",)),
        Node("sub", "Sub", ("x", "m"), ("c",)),
        Node("pow", "Pow", ("c", "two"), ("q",)),
        Node("var", "ReduceMean", ("q",), ("v",)),
        Node("eps", "Add", ("v", "e"), ("f",)),
        Node("root", "Sqrt", ("f",), ("r",)),
        Node("div", "Div", ("c", "r"), ("n",)),
        Node("gain", "Mul", ("n", "w1"), ("g",)),
        Node("bias", "Add", ("g", "w2"), ("y",)),
    ]
    assert groups(centred, ["y"]) == {"LayerNormalization": tuple(range(9))}
    plain = [replace(centred[2], inputs=("x", "two")), *centred[3:6], replace(centred[6], inputs=("x", "r"))]
    assert groups(plain, ["n"]) == {"RMSNormalization": tuple(range(5))}


def test_linear_with_bias() -> None:
    nodes = [Node("m", "MatMul", ("x", "w1"), ("h",)), Node("b", "Add", ("h", "w2"), ("y",))]
    assert groups(nodes, ["y"], {"w1": (8, 8), "w2": (8,)}) == {"Gemm": (0, 1)}
    assert groups(nodes, ["y"], {"w1": (8, 8)}) == {}  # not a bias: as large as the result


def test_graphs_that_carry_origins_are_left_alone() -> None:
    nodes = [replace(n, origin="o") for n in attention()]
    shapes = dict.fromkeys(["q", "k", "v", "m", "root", "s", "t", "u", "p", "o"], S)
    graph: Graph = chain(nodes, shapes, ["q", "k", "v", "m", "root"], ["o"])
    assert tie_patterns(graph) is graph
