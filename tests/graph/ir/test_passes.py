"""Passes keep what a graph computes."""

from dataclasses import replace

import pytest

from foretell.errors import GraphError
from foretell.graph import Graph, Node, Tensor, graph_costs
from foretell.graph.ir.passes import autocast, fold_constants, normalise, remove_identities, run_passes
from foretell.testing import chain, tiny_graph


def test_identities_go_and_outputs_keep_their_names() -> None:
    nodes = [
        Node("i", "Identity", ("x",), ("a",)),
        Node("d", "Dropout", ("a",), ("b",)),
        Node("r", "Relu", ("b",), ("c",)),
        Node("last", "Identity", ("c",), ("y",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b", "c", "y"], (4,)), ["x"], ["y"])
    cleaned = normalise(graph)
    assert [n.op for n in cleaned.nodes] == ["Relu", "Identity"]
    assert cleaned.nodes[0].inputs == ("x",)
    assert set(cleaned.tensors) == {"x", "c", "y"}
    assert cleaned.outputs == ("y",)
    assert remove_identities(cleaned) is cleaned


def test_identities_that_change_something_stay() -> None:
    nodes = [Node("i", "Identity", ("x",), ("a",)), Node("r", "Relu", ("a",), ("y",))]
    graph = chain(nodes, {"x": (4, 2), "a": (8,), "y": (8,)}, ["x"], ["y"])
    assert remove_identities(graph) is graph


def test_constants_are_folded_and_inputs_are_not() -> None:
    nodes = [
        Node("t", "Transpose", ("w",), ("wt",), {"perm": (1, 0)}),
        Node("n", "Neg", ("wt",), ("wn",)),
        Node("m", "MatMul", ("x", "wn"), ("y",)),
    ]
    graph = Graph.build(
        "g", nodes,
        {"x": Tensor("x", (2, 4), kind="input"), "w": Tensor("w", (3, 4), kind="parameter"), "wt": Tensor("wt", (4, 3)),
         "wn": Tensor("wn", (4, 3)), "y": Tensor("y", (2, 3))}, ["x"], ["y"],
    )  # fmt: skip
    folded = run_passes(graph, (fold_constants,))
    assert [n.op for n in folded.nodes] == ["MatMul"]
    assert folded.tensors["wn"].kind == "constant"
    assert "wt" not in folded.tensors
    assert graph_costs(folded).total.macs == graph_costs(graph).total.macs
    assert folded.parameter_count == graph.parameter_count


def test_a_pass_that_breaks_a_graph_is_named() -> None:
    def clumsy(graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[1:])

    with pytest.raises(GraphError, match="The pass clumsy broke the graph"):
        run_passes(tiny_graph(), (clumsy,))


def dtypes(graph: Graph) -> dict[str, str]:
    return {name: tensor.dtype for name, tensor in graph.tensors.items()}


def test_autocast_multiplies_in_low_precision_and_keeps_weights() -> None:
    graph = tiny_graph()
    cast = autocast(graph, "bf16")
    cast.validate()
    result = dtypes(cast)
    assert result["conv.weight"] == result["x"] == "fp32"
    assert result["conv"] == result["relu"] == result["pool"] == result["y"] == "bf16"
    assert result["conv.weight@bf16"] == "bf16"
    assert graph_costs(cast).total.macs == graph_costs(graph).total.macs
    assert graph_costs(cast).total.tensor_core_macs == graph_costs(cast).total.macs
    assert cast.parameter_count == graph.parameter_count


def network(*nodes: Node, **shapes: tuple[int, ...]) -> Graph:
    return chain(nodes, shapes, ["x"], [nodes[-1].outputs[0]])


def test_autocast_promotes_as_torch_does() -> None:
    graph = network(
        Node("m", "MatMul", ("x", "w"), ("h",)),
        Node("p", "Add", ("h", "w_position"), ("a",)),  # fp32 weight: the sum is fp32
        Node("m2", "MatMul", ("h", "w"), ("h2",)),
        Node("s", "Softmax", ("h2",), ("b",)),  # always fp32
        Node("n", "BatchNormalization", ("h2", "w_scale"), ("n",)),  # follows its input
        Node("j", "Concat", ("n", "a"), ("y",), {"axis": 0}),
        x=(4, 4),
        w=(4, 4), h=(4, 4), a=(4, 4), w_position=(4, 4), h2=(4, 4), b=(4, 4), n=(4, 4), w_scale=(4,), y=(8, 4),
    )  # fmt: skip
    result = dtypes(autocast(graph, "bf16"))
    assert (result["h"], result["a"], result["b"], result["n"], result["y"]) == ("bf16", "fp32", "fp32", "bf16", "fp32")


def test_autocast_casts_weights_once_and_activations_each_time() -> None:
    graph = network(
        Node("a", "MatMul", ("x", "w"), ("a",)),
        Node("b", "MatMul", ("x", "w"), ("b",)),
        Node("e", "Exp", ("b",), ("e",)),  # wants fp32
        Node("c", "MatMul", ("b", "w"), ("c",)),  # takes the bf16 as it is
        **dict.fromkeys(["x", "w", "a", "b", "e", "c"], (4, 4)),
    )
    cast = autocast(graph, "bf16")
    cast.validate()
    casts = [n.inputs[0] for n in cast.nodes if n.op == "Cast"]
    assert sorted(casts) == ["b", "w", "x", "x"]
    last = cast.nodes[-1]
    assert cast.tensors[last.inputs[0]].dtype == cast.tensors[last.inputs[1]].dtype == "bf16"


def test_autocast_respects_casts_integers_and_doubles() -> None:
    tensors = {
        "x": Tensor("x", (4, 4), kind="input"),
        "i": Tensor("i", (4,), "int64", kind="input"),
        "w": Tensor("w", (4, 4), kind="parameter"),
        "h": Tensor("h", (4, 4)),
        "f": Tensor("f", (4, 4), "fp32"),
        "g": Tensor("g", (4, 4)),
    }
    nodes = [
        Node("m", "MatMul", ("x", "w"), ("h",)),
        Node("c", "Cast", ("h",), ("f",), {"to": "fp32"}),
        Node("g", "Gather", ("f", "i"), ("g",)),
    ]
    result = dtypes(autocast(Graph.build("g", nodes, tensors, ["x", "i"], ["g"]), "fp16"))
    assert (result["h"], result["f"], result["g"], result["i"]) == ("fp16", "fp32", "fp32", "int64")


def test_autocast_keeps_the_macs_of_recurrences() -> None:
    from foretell.testing import one_node

    graph = one_node("LSTM", [(7, 2, 5), (1, 2, 3), (1, 2, 3), (12, 5), (12, 3)], [(7, 2, 3)], weights=[3, 4])
    assert graph_costs(autocast(graph, "bf16")).total.macs == graph_costs(graph).total.macs == 14 * 96
