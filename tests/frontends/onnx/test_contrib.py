"""Operators of ONNX Runtime's optimiser: known, with shapes and costs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from foretell.errors import UnsupportedOperatorError
from foretell.frontends.onnx.contrib import _BLOCKED, _CONTRIB
from foretell.graph import Graph, graph_costs
from foretell.graph.ir.operators import OPERATORS
from foretell.workflows.workload import load_graph


def single(
    op: str,
    inputs: dict[str, tuple[int, ...]],
    outputs: int = 1,
    domain: str = "com.microsoft",
    weights: tuple[str, ...] = (),
    **attributes: object,
) -> Graph:
    names = list(inputs)
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attributes)
    after = helper.make_node("Relu", [f"y{outputs - 1}"], ["z"])
    kinds = {n: TensorProto.INT64 if n.endswith("ids") else TensorProto.FLOAT for n in names}
    declared = [helper.make_tensor_value_info(n, kinds[n], inputs[n]) for n in names if n not in weights]
    stored = [numpy_helper.from_array(np.ones(inputs[n], np.float32), n) for n in weights]
    graph = helper.make_graph([node, after], "g", declared, [onnx.ValueInfoProto(name="z")], stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return load_graph(helper.make_model(graph, opset_imports=opsets, ir_version=8), batch_size=inputs[names[0]][0])


def shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [graph.tensors[o].shape for o in graph.nodes[0].outputs]


def test_every_name_leads_to_an_operator_with_a_cost() -> None:
    assert set(_CONTRIB.values()) | set(_BLOCKED.values()) <= set(OPERATORS)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op: str) -> None:
    assert shapes(single(op, {"x": (2, 3, 4)})) == [(2, 3, 4)]


def test_products() -> None:
    graph = single("FusedMatMul", {"a": (2, 4, 3), "b": (2, 5, 4)}, transA=1, transB=1)
    assert shapes(graph) == [(2, 3, 5)]
    assert graph_costs(graph).total.macs == 2 * 3 * 5 * 4


def test_attention() -> None:
    graph = single("Attention", {"x": (2, 6, 8), "w": (8, 24), "b": (24,)}, weights=("w", "b"), num_heads=2)
    assert shapes(graph) == [(2, 6, 8)]
    assert graph_costs(graph).total.macs == 2 * 6 * 8 * 24 + 2 * (2 * 2 * 6 * 6 * 4)
    graph = single("MultiHeadAttention", {"q": (2, 6, 8), "k": (2, 9, 8), "v": (2, 9, 8)}, num_heads=2)
    assert shapes(graph) == [(2, 6, 8)]
    assert graph_costs(graph).total.macs == 2 * (2 * 2 * 6 * 9 * 4)


def test_normalisations_return_their_sum() -> None:
    graph = single("SkipLayerNormalization", {"x": (2, 3, 4), "s": (2, 3, 4), "g": (4,)}, outputs=4, weights=("g",))
    assert shapes(graph)[3] == (2, 3, 4)
    graph = single(
        "EmbedLayerNormalization",
        {"ids": (2, 5), "t_ids": (2, 5), "w": (9, 4), "p": (7, 4), "s": (2, 4), "g": (4,), "b": (4,)},
        weights=("w", "p", "s", "g", "b"),
    )
    assert shapes(graph) == [(2, 5, 4)]
    assert graph.parameter_count == 36 + 28 + 8 + 8


def test_blocked_channels() -> None:
    graph = single(
        "Conv",
        {"x": (1, 3, 8, 8), "w": (16, 3, 3, 3)},
        domain="com.microsoft.nchwc",
        weights=("w",),
        pads=[1, 1, 1, 1],
        activation="Relu",
    )
    assert shapes(graph) == [(1, 16, 8, 8)]
    assert graph_costs(graph).total.macs == 16 * 64 * 27
    graph = single("ReorderOutput", {"x": (1, 16, 8, 8)}, domain="com.microsoft.nchwc", channels=12, channels_last=1)
    assert shapes(graph) == [(1, 8, 8, 12)]


def test_an_operator_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="BeamSearch"):
        single("BeamSearch", {"x": (1, 4)})
    with pytest.raises(UnsupportedOperatorError, match="nchwc"):
        single("Frob", {"x": (1, 4)}, domain="com.microsoft.nchwc")
