# ruff: noqa: E501 - a table of cases reads best one case a line
"""Multiply-accumulates and operations against numbers computed by hand."""

from dataclasses import replace
from typing import Any

import pytest

from foretell.errors import GraphError
from foretell.graph import Cost, Graph, Node, Tensor, graph_costs
from foretell.graph.cost.arithmetic import EinsumPair, einsum_pairs, first_layer_macs, mixture, time_steps
from foretell.graph.ir.node import Attribute
from foretell.testing import one_node
from foretell.testing.tiny import Shape


def cost_of(op: str, inputs: list[Shape | None], output: Shape, **options: Any) -> Cost:
    return graph_costs(one_node(op, inputs, [output], **options)).nodes[0]


# operator, inputs, output, weights, attributes, MACs
CONTRACTIONS: list[tuple[str, list[Shape | None], Shape, tuple[int, ...], dict[str, Attribute], int]] = [
    ("Conv", [(2, 3, 8, 8), (16, 3, 3, 3)], (2, 16, 6, 6), (1,), {}, 2 * 16 * 36 * 27),
    ("Conv", [(2, 8, 8, 8), (16, 2, 3, 3)], (2, 16, 6, 6), (1,), {"group": 4}, 2 * 16 * 36 * 18),
    ("Conv", [(1, 8, 9, 9), (8, 1, 3, 3)], (1, 8, 5, 5), (1,), {"group": 8, "dilations": (2, 2)}, 8 * 25 * 9),
    ("Conv", [(2, 4, 20), (8, 4, 5)], (2, 8, 16), (1,), {}, 2 * 8 * 16 * 20),
    ("Conv", [(1, 2, 5, 6, 7), (4, 2, 3, 3, 3)], (1, 4, 3, 4, 5), (1,), {}, 4 * 60 * 54),
    ("ConvTranspose", [(1, 8, 5, 5), (8, 4, 3, 3)], (1, 4, 7, 7), (1,), {}, 8 * 25 * 4 * 9),
    ("ConvTranspose", [(1, 8, 5, 5), (8, 2, 3, 3)], (1, 4, 11, 11), (1,), {"group": 2, "strides": (2, 2)}, 8 * 25 * 2 * 9),
    ("QLinearConv", [(1, 3, 8, 8), (), (), (4, 3, 3, 3), (), (), (), ()], (1, 4, 6, 6), (3,), {}, 4 * 36 * 27),
    ("DeformConv", [(1, 4, 8, 8), (4, 4, 3, 3), (1, 18, 6, 6)], (1, 4, 6, 6), (1,), {}, 4 * 36 * 36),
    ("Gemm", [(5, 7), (7, 3), (3,)], (5, 3), (1, 2), {}, 5 * 7 * 3),
    ("Gemm", [(7, 5), (3, 7)], (5, 3), (1,), {"transA": 1, "transB": 1}, 5 * 7 * 3),
    ("Gemm", [(2, 9, 7), (3, 7), (3,)], (2, 9, 3), (1, 2), {"transB": 1}, 18 * 7 * 3),
    ("MatMul", [(4, 6), (6, 5)], (4, 5), (), {}, 4 * 6 * 5),
    ("MatMul", [(2, 1, 4, 6), (3, 6, 5)], (2, 3, 4, 5), (), {}, 6 * 4 * 6 * 5),
    ("MatMul", [(6,), (6, 5)], (5,), (), {}, 30),
    ("MatMul", [(2, 4, 6), (6,)], (2, 4), (), {}, 48),
    ("MatMulInteger", [(4, 6), (6, 5)], (4, 5), (), {}, 120),
    ("Bilinear", [(2, 4), (2, 5), (3, 4, 5)], (2, 3), (2,), {}, 2 * 3 * 4 * 5),
    ("Bilinear", [(2, 7, 4), (2, 7, 5), (3, 4, 5)], (2, 7, 3), (2,), {}, 2 * 7 * 3 * 4 * 5),
    ("Einsum", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), (), {"equation": "bij,bjk->bik"}, 2 * 3 * 4 * 5),
    ("Einsum", [(2, 3, 4), (4, 5)], (2, 3, 5), (), {"equation": "...j,jk->...k"}, 2 * 3 * 4 * 5),
    ("Einsum", [(7, 2, 3), (2, 3)], (7, 2), (), {"equation": "...j,...j->..."}, 7 * 2 * 3),
    ("Einsum", [(3, 4), (4, 5)], (3, 5), (), {"equation": "ij, jk"}, 3 * 4 * 5),
    # left to right: a·i·j, then a·j·k
    ("Einsum", [(2, 3), (3, 4), (4, 5)], (2, 5), (), {"equation": "ai,ij,jk->ak"}, 2 * 3 * 4 + 2 * 4 * 5),
    # the last two first, because that is less: i·j·k, then a·i·k
    ("Einsum", [(90, 3), (3, 40), (40, 2)], (90, 2), (), {"equation": "ai,ij,jk->ak"}, 3 * 40 * 2 + 90 * 3 * 2),
    ("Einsum", [(3, 4)], (4, 3), (), {"equation": "ij->ji"}, 0),
    # recurrence, ONNX: W (directions, gates·hidden, input), R (directions, gates·hidden, hidden)
    ("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], (7, 1, 2, 3), (1, 2), {"hidden_size": 3}, 14 * (60 + 36)),
    ("GRU", [(7, 2, 5), (2, 9, 5), (2, 9, 3)], (7, 2, 2, 3), (1, 2), {"hidden_size": 3}, 14 * 2 * (45 + 27)),
    ("RNN", [(7, 2, 5), (1, 3, 5), (1, 3, 3)], (7, 1, 2, 3), (1, 2), {"hidden_size": 3}, 14 * (15 + 9)),
    # recurrence, PyTorch: the sequence, the states, then each layer's matrices and biases
    ("LSTM", [(2, 7, 5), (2, 2, 3), (2, 2, 3), (12, 5), (12, 3), (12,), (12,), (12, 3), (12, 3), (12,), (12,)], (2, 7, 3), tuple(range(3, 11)), {"layers": 2, "batch_first": 1}, 14 * (60 + 36 + 36 + 36)),
    ("GRU", [(7, 2, 5), (2, 2, 3), (9, 5), (9, 3), (9, 5), (9, 3)], (7, 2, 6), (2, 3, 4, 5), {"layers": 1, "directions": 2}, 14 * 2 * (45 + 27)),
    ("RNNCell", [(2, 5), (2, 3), (3, 5), (3, 3), (3,), (3,)], (2, 3), (2, 3, 4, 5), {}, 2 * (15 + 9)),
    # attention: batch · heads · queries · keys · (size + value size)
    ("Attention", [(2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 6)], (2, 4, 9, 6), (), {}, 2 * 4 * 9 * 11 * 14),
    ("Attention", [(2, 9, 32), (2, 11, 16), (2, 11, 16)], (2, 9, 32), (), {"q_num_heads": 4, "kv_num_heads": 2}, 2 * 4 * 9 * 11 * 16),
    ("Attention", [(2, 8, 9, 4), (2, 2, 9, 4), (2, 2, 9, 4)], (2, 8, 9, 4), (), {"enable_gqa": 1}, 2 * 8 * 81 * 8),
    ("Attention", [(1, 4, 1, 8), (1, 4, 1, 8), (1, 4, 1, 8), None, (1, 4, 30, 8), (1, 4, 30, 8)], (1, 4, 1, 8), (), {}, 4 * 31 * 16),
    ("MultiHeadAttention", [(2, 9, 32), (2, 11, 32), (2, 11, 32)], (2, 9, 32), (), {"num_heads": 4}, 2 * 4 * 9 * 11 * 16),
    ("MultiHeadAttention", [(2, 9, 4, 3, 8)], (2, 9, 32), (), {"num_heads": 4}, 2 * 4 * 81 * 16),
    ("MultiHeadAttention", [(2, 9, 32), (2, 11, 4, 2, 8)], (2, 9, 32), (), {"num_heads": 4}, 2 * 4 * 99 * 16),
    ("MultiHeadAttention", [(1, 1, 32), (1, 1, 32), (1, 1, 32), None, None, None, (1, 4, 5, 8), (1, 4, 5, 8)], (1, 1, 32), (), {"num_heads": 4}, 4 * 6 * 16),
    ("GroupQueryAttention", [(1, 3, 32), (1, 3, 16), (1, 3, 16), (1, 2, 20, 8), (1, 2, 20, 8)], (1, 3, 32), (), {"num_heads": 4, "kv_num_heads": 2}, 4 * 3 * 23 * 16),
    ("GroupQueryAttention", [(1, 3, 64), None, None], (1, 3, 32), (), {"num_heads": 4, "kv_num_heads": 2}, 4 * 9 * 16),
    ("ContribAttention", [(2, 9, 16), (16, 48)], (2, 9, 16), (1,), {"num_heads": 4}, 18 * 16 * 48 + 2 * 18 * 9 * 16),
    ("ContribAttention", [(2, 1, 16), (16, 48), None, None, (2, 2, 4, 7, 4)], (2, 1, 16), (1,), {"num_heads": 4}, 2 * 16 * 48 + 2 * 2 * 8 * 16),
    ("LinearAttention", [(2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 8)], (2, 4, 9, 8), (), {}, 2 * 2 * 4 * 9 * 64),
    # a mixture: top-k experts of three matrices each
    ("MoE", [(10, 8), (4, 16, 8), (4, 16, 8), (4, 8, 16)], (10, 8), (1, 2, 3), {"experts": 4, "top_k": 2}, 10 * 2 * 3 * 128),
    ("MoE", [(10, 8), (10, 4), (4, 8, 16), (4, 16), (4, 16, 8)], (10, 8), (2, 3, 4), {"k": 2}, 10 * 2 * 2 * 128),
    # one direction after the other; a layer without its matrices; an absent bias
    ("RNN", [(7, 2, 5), (1, 2, 3), (3, 5), (3, 3), (3,), None], (7, 2, 3), (2, 3, 4), {}, 14 * (15 + 9)),
    ("RNN", [(7, 2, 5), (1, 3, 5), (1, 3, 3), (1, 6)], (7, 1, 2, 3), (1, 2, 3), {"hidden_size": 3}, 14 * (15 + 9)),
    ("Gemm", [(7,), (7, 3)], (3,), (1,), {"transA": 1}, 7 * 3),
    ("Gemm", [(2, 7, 5), (7, 3)], (2, 5, 3), (1,), {"transA": 1}, 10 * 7 * 3),
    # sizes: heads in the third axis from the end, whatever is before; without heads there is one
    ("Attention", [(3, 2, 4, 9, 8), (3, 2, 4, 11, 8), (3, 2, 4, 11, 6)], (3, 2, 4, 9, 6), (), {}, 6 * 4 * 9 * 11 * 14),
    ("Attention", [(4, 9, 8), (4, 11, 8), (4, 11, 8)], (4, 9, 8), (), {}, 4 * 9 * 11 * 16),
    ("Attention", [(9, 8), (11, 8), (11, 8)], (9, 8), (), {}, 9 * 11 * 16),
    ("Attention", [(1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8), (2, 32), (1, 4, 30, 8)], (1, 4, 2, 8), (), {}, 4 * 2 * 32 * 16),
    ("Attention", [(1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8), (2, 2), (7, 9)], (1, 4, 2, 8), (), {}, 4 * 2 * 2 * 16),
    ("Attention", [(2, 9, 32), (2, 11, 32)], (2, 9, 32), (), {"q_num_heads": 4}, 2 * 4 * 9 * 11 * 16),
    ("Attention", [(2, 9, 32), (2, 11, 16), (2, 11, 8)], (2, 9, 16), (), {"q_num_heads": 4, "kv_num_heads": 2}, 2 * 4 * 9 * 11 * (8 + 4)),
    ("MultiHeadAttention", [(2, 9, 2, 3, 8)], (2, 9, 16), (), {"num_heads": 2}, 2 * 2 * 81 * 16),
    ("MultiHeadAttention", [(1, 1, 32), (1, 1, 32), (1, 1, 32), None, None, None, (1, 4, 5, 8)], (1, 1, 32), (), {"num_heads": 4}, 4 * 6 * 16),
    ("MultiHeadAttention", [(2, 9, 32), (2, 11, 4, 2, 6)], (2, 9, 32), (), {"num_heads": 4}, 2 * 4 * 99 * (8 + 6)),
    ("GroupQueryAttention", [(1, 3, 32), (1, 3, 16), (1, 3, 16), (1, 2, 20, 8)], (1, 3, 32), (), {"num_heads": 4, "kv_num_heads": 2}, 4 * 3 * 23 * 16),
    ("ContribAttention", [(2, 1, 16), (16, 48), None, None, (4, 7)], (2, 1, 16), (1,), {"num_heads": 4}, 2 * 16 * 48 + 2 * 2 * 1 * 16),
    ("ContribAttention", [(2, 9, 16), (16, 48), None, (2,)], (2, 9, 16), (1,), {"num_heads": 4}, 18 * 16 * 48 + 2 * 18 * 9 * 16),
    ("PackedAttention", [(9, 16), (16, 48), (48,), (1, 9), (2, 2, 4, 7, 4)], (9, 16), (1,), {"num_heads": 4}, 9 * 16 * 48 + 2 * 9 * 9 * 16),
    ("LinearAttention", [(2, 4, 9, 8), (2, 4, 9, 8), (2, 4, 9, 6)], (2, 4, 9, 6), (), {}, 2 * 2 * 4 * 9 * 48),
    ("MoE", [(10, 8), (4, 16, 8)], (10, 8), (1,), {}, 10 * 128),  # experts are counted off the weights, one a token
    ("MoE", [(2, 5, 8), None, (4, 16, 8)], (2, 5, 8), (2,), {"k": 3}, 10 * 3 * 128),
    # an ellipsis on one side, none at all, letters that meet twice, and axes of one that are stretched
    ("Einsum", [(7, 2, 3), (3, 4)], (7, 2, 4), (), {"equation": "...ij,jk->...ik"}, 7 * 2 * 3 * 4),
    ("Einsum", [(6, 7, 3), (3, 4)], (6, 7, 4), (), {"equation": "...j,jk"}, 6 * 7 * 3 * 4),
    ("Einsum", [(6, 3), (6, 3), (6, 5)], (5,), (), {"equation": "bi,bi,bj"}, 6 * 3 + 6 * 5),
    ("Einsum", [(1, 3), (4, 3)], (4,), (), {"equation": "bi,bi->b"}, 4 * 3),
    ("Einsum", [(4, 3), (1, 3)], (4,), (), {"equation": "bi,bi->b"}, 4 * 3),
    ("Einsum", [(2, 3), (3, 4), (4, 5), (5, 6)], (2, 6), (), {"equation": "ai,ij,jk,kl->al"}, 24 + 40 + 60),
]  # fmt: skip
CONTRIB = {"MultiHeadAttention", "GroupQueryAttention", "ContribAttention", "PackedAttention"}


@pytest.mark.parametrize(("op", "inputs", "output", "weights", "attributes", "macs"), CONTRACTIONS)
def test_multiply_accumulates(
    op: str,
    inputs: list[Shape | None],
    output: Shape,
    weights: tuple[int, ...],
    attributes: dict[str, Attribute],
    macs: int,
) -> None:
    domain = "com.microsoft" if op in CONTRIB else ""
    cost = cost_of(op, inputs, output, weights=weights, domain=domain, **attributes)
    assert cost.macs == macs
    assert cost.flops >= 2 * macs


def test_an_einsum_is_a_batch_of_matrix_products() -> None:
    node = one_node("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], equation="bij,bjk->bik").nodes[0]
    assert einsum_pairs(node, [(2, 3, 4), (2, 4, 5)]) == [EinsumPair(m=3, n=5, k=4, many=2, macs=120, copied=0)]


def test_an_operand_whose_indices_of_one_axis_lie_apart_is_copied() -> None:
    shapes = [(3, 4, 5), (4, 6)]
    node = one_node("Einsum", shapes, [(3, 5, 6)], equation="ikj,kn->ijn").nodes[0]
    assert einsum_pairs(node, shapes) == [EinsumPair(m=15, n=6, k=4, many=1, macs=360, copied=1)]


def test_a_recurrence_without_weights_multiplies_nothing() -> None:
    assert cost_of("GRU", [(7, 2, 5)], (7, 2, 3)).macs == 0


def test_a_mixture_without_stacked_weights_has_one_expert() -> None:
    graph = one_node("MoE", [(10, 8), (16, 8)], [(10, 8)])
    assert mixture(graph.nodes[0], [graph.tensors["in0"], graph.tensors["in1"]]) == (1, 1)


@pytest.mark.parametrize("outputs", [[(2, 3), (4, 5)], [(4, 5), (2, 3)]])
def test_element_wise_work_goes_by_the_largest_output(outputs: list[Shape]) -> None:
    assert graph_costs(one_node("Relu", [(4, 5)], outputs)).total.flops == 20


@pytest.mark.parametrize("kind", ["activation", "constant"])
def test_recurrent_weights_count_whatever_they_are(kind: str) -> None:
    """Autocast turns weights into activations; they are multiplied all the same."""
    graph = one_node("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], [(7, 1, 2, 3)], weights=(1, 2), hidden_size=3)
    tensors = {
        n: replace(t, kind="input" if kind == "activation" else kind) if n in ("in1", "in2") else t
        for n, t in graph.tensors.items()
    }
    assert graph_costs(replace(graph, tensors=tensors)).total.macs == 14 * 96


def test_first_layer_of_a_recurrence() -> None:
    torch_form = one_node(
        "GRU", [(7, 2, 5), (4, 2, 3), (9, 5), (9, 3), (9, 5), (9, 3), (9, 6), (9, 3), (9, 6), (9, 3)], [(7, 2, 6)],
        weights=range(2, 10), layers=2, directions=2,
    )  # fmt: skip
    assert first_layer_macs(torch_form, torch_form.nodes[0]) == 14 * (45 + 45)
    onnx_form = one_node("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], [(7, 1, 2, 3)], weights=(1, 2), hidden_size=3)
    assert first_layer_macs(onnx_form, onnx_form.nodes[0]) == 14 * 60


@pytest.mark.parametrize(
    ("op", "inputs", "output", "attributes", "flops"),
    [
        ("Add", [(2, 3), (3,)], (2, 3), {}, 6),
        ("Relu", [(2, 3)], (2, 3), {}, 6),
        ("Sigmoid", [(2, 3)], (2, 3), {}, 24),
        ("Gelu", [(2, 3)], (2, 3), {}, 48),
        ("Conv", [(1, 1, 4, 4), (2, 1, 3, 3), (2,)], (1, 2, 2, 2), {}, 2 * 8 * 9 + 8),
        ("MaxPool", [(1, 2, 6, 6)], (1, 2, 3, 3), {"kernel_shape": (3, 3)}, 18 * 9),
        ("AveragePool", [(1, 2, 6, 6)], (1, 2, 3, 3), {"kernel_shape": (2, 2)}, 18 * 4),
        ("AdaptiveAveragePool", [(1, 2, 6, 6)], (1, 2, 3, 3), {}, 72),
        ("GlobalAveragePool", [(1, 2, 6, 6)], (1, 2, 1, 1), {}, 72),
        ("BatchNormalization", [(2, 3, 4, 4), (3,), (3,), (3,), (3,)], (2, 3, 4, 4), {}, 2 * 96),
        ("LayerNormalization", [(2, 5, 8), (8,), (8,)], (2, 5, 8), {}, 8 * 80),
        ("RMSNormalization", [(2, 5, 8), (8,)], (2, 5, 8), {}, 5 * 80),
        ("Softmax", [(2, 8)], (2, 8), {}, 7 * 16),
        ("LRN", [(1, 4, 2, 2)], (1, 4, 2, 2), {"size": 3}, 16 * 10),
        ("ReduceSum", [(4, 8)], (4,), {}, 32),
        ("ReduceL2", [(4, 8)], (4,), {}, 64),
        ("TopK", [(2, 16)], (2, 4), {}, 32 * 4),
        ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "nearest"}, 0),
        ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "linear"}, 7 * 16),
        ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "cubic"}, 31 * 16),
        ("Det", [(2, 4, 4)], (2,), {}, 32 * 4),
        ("DFT", [(1, 16, 1)], (1, 16, 2), {}, 5 * 32 * 4),
        ("NonMaxSuppression", [(1, 10, 4), (1, 3, 10)], (5, 3), {}, 8 * 100 * 3),
        ("Transpose", [(2, 3)], (3, 2), {"perm": (1, 0)}, 0),
        ("Concat", [(2, 3), (2, 3)], (2, 6), {"axis": 1}, 0),
        ("Attention", [(2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 6)], (2, 4, 9, 6), {}, 2 * 4 * 99 * (2 * 14 + 7)),
        (
            "ContribAttention",
            [(2, 9, 16), (16, 48)],
            (2, 9, 16),
            {"num_heads": 4},
            2 * (18 * 16 * 48 + 2 * 18 * 9 * 16) + 7 * 18 * 9 * 4,
        ),
        (
            "PackedAttention",
            [(9, 16), (16, 48)],
            (9, 16),
            {"num_heads": 2},
            2 * (9 * 16 * 48 + 2 * 81 * 16) + 7 * 81 * 2,
        ),
        ("LinearAttention", [(2, 4, 9, 8)] * 3, (2, 4, 9, 8), {}, 2 * 2 * 2 * 4 * 9 * 64),
        ("LSTM", [(7, 2, 5), (1, 12, 5), (1, 12, 3)], (7, 1, 2, 3), {"hidden_size": 3}, 2 * 14 * (60 + 36)),
        # a bias is added once to each number of the result
        ("Gemm", [(5, 7), (7, 3), (3,)], (5, 3), {}, 2 * 105 + 15),
        ("Gemm", [(5, 7), (7, 3)], (5, 3), {}, 2 * 105),
        ("ConvTranspose", [(1, 2, 3, 3), (2, 4, 1, 1), (4,)], (1, 4, 3, 3), {}, 2 * 18 * 4 + 36),
        ("FusedConv", [(1, 2, 3, 3), (4, 2, 1, 1), (4,)], (1, 4, 3, 3), {}, 2 * 36 * 2 + 36),
        ("Bilinear", [(2, 4), (2, 5), (3, 4, 5)], (2, 3), {}, 2 * 2 * 3 * 4 * 5),
        ("RoiAlign", [(1, 2, 6, 6), (3, 4), (3,)], (3, 2, 2, 2), {}, 24 * 12),
        ("RoiAlign", [(1, 2, 6, 6), (3, 4), (3,)], (3, 2, 2, 2), {"kernel_shape": (4, 4)}, 24 * 16),
        ("Sort", [(4, 1)], (4, 1), {}, 4),
        ("Sort", [()], (), {}, 1),
        ("Sort", [(2, 3, 8)], (2, 3, 8), {}, 48 * 3),
        ("ReduceSum", [(3, 2), (50,)], (3,), {}, 50),
        ("Resize", [(1, 1, 4)], (1, 1, 8), {"mode": "linear"}, 3 * 8),
        ("Resize", [(4, 4)], (8, 8), {"mode": "linear"}, 3 * 64),
        ("Resize", [(1, 1, 2, 2, 2)], (1, 1, 4, 4, 4), {"mode": "linear"}, 15 * 64),
        ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {}, 0),
        ("DFT", [(1, 16, 2)], (1, 8, 2), {}, 5 * 32 * 4),
        ("DFT", [(9,)], (9,), {}, 5 * 9),
        ("STFT", [(2, 8)], (2, 3, 5, 2), {}, 5 * 60 * 3),
        ("Inverse", [(2, 3, 3)], (2, 3, 3), {}, 18 * 3),
        ("NonMaxSuppression", [(2, 10, 4)], (5, 3), {}, 8 * 100),
        ("NonMaxSuppression", [(4,), (3,)], (5, 3), {}, 8 * 3),
        ("LRN", [(1, 4, 2, 2)], (1, 4, 2, 2), {}, 16 * 14),
        ("SelectiveScan", [(2, 6, 4), (2, 6, 4), (4, 16)], (2, 6, 4), {}, 48 * (9 * 16 + 2)),
        ("SelectiveScan", [(2, 6, 4), (2, 6, 4)], (2, 6, 4), {}, 48 * 11),
    ],
)
def test_floating_point_operations(
    op: str, inputs: list[Shape], output: Shape, attributes: dict[str, Attribute], flops: int
) -> None:
    assert cost_of(op, inputs, output, **attributes).flops == flops


@pytest.mark.parametrize(
    ("op", "inputs"), [("Conv", [(1, 3, 4, 4)]), ("Gemm", [()]), ("Attention", [(2, 3)]), ("Einsum", [(2, 3), (3, 4)])]
)
def test_a_cost_that_cannot_be_computed_is_an_error(op: str, inputs: list[Shape]) -> None:
    with pytest.raises(GraphError, match="The cost of node"):
        cost_of(op, inputs, (1, 1), equation="abcde,fg->h")


def test_the_largest_output_counts() -> None:
    graph = one_node("Mystery", [(4,)], [(4,), (9,), (2,)])
    assert graph_costs(graph).nodes[0].flops == 9


def packed_recurrence(op: str, states: int) -> Graph:
    """Five items of different lengths in one row, and how many of them there are at each step."""
    hidden = 3 * {"LSTM": 4, "GRU": 3}[op]
    tensors = [
        Tensor("x", (12, 5), kind="input"),
        Tensor("sizes", (4,), "int64", "input"),
        *(Tensor(f"state{number}", (2, 5, 3), kind="input") for number in range(states)),
        Tensor("w1", (hidden, 5), kind="parameter"),
        Tensor("w2", (hidden, 3), kind="parameter"),
        Tensor("w3", (hidden,), kind="parameter"),
        Tensor("y", (12, 3)),
    ]
    names = tuple(tensor.name for tensor in tensors)
    inputs = [name for name in names if not name.startswith(("w", "y"))]
    node = Node("r", op, names[:-1], ("y",), {"layers": 1})
    return Graph.build("packed", [node], {tensor.name: tensor for tensor in tensors}, inputs, ["y"])


@pytest.mark.parametrize(("op", "states"), [("LSTM", 2), ("GRU", 1)])
def test_a_packed_sequence_has_its_batch_sizes_before_the_states(op: str, states: int) -> None:
    graph = packed_recurrence(op, states)
    gates = {"LSTM": 4, "GRU": 3}[op]
    assert graph_costs(graph).nodes[0].macs == 12 * gates * 3 * (5 + 3)
    assert first_layer_macs(graph, graph.nodes[0]) == 12 * gates * 3 * 5


def test_the_first_layer_of_one_layer_is_its_first_matrix() -> None:
    graph = one_node("RNN", [(7, 2, 5), (1, 2, 3), (3, 5), (3, 3), (3,), (3,)], [(7, 2, 3)], weights=range(2, 6))
    assert first_layer_macs(graph, graph.nodes[0]) == 14 * 15
    deep = one_node(
        "RNN", [(7, 2, 5), (3, 2, 3), (3, 5), (3, 3), (3, 3), (3, 3), (3, 3), (3, 3)], [(7, 2, 3)],
        weights=range(2, 8), layers=3,
    )  # fmt: skip
    assert first_layer_macs(deep, deep.nodes[0]) == 14 * 15
    both = one_node("LSTM", [(7, 2, 5), (2, 12, 5), (2, 12, 3)], [(7, 2, 2, 3)], weights=(1, 2), hidden_size=3)
    assert first_layer_macs(both, both.nodes[0]) == 14 * 2 * 60


@pytest.mark.parametrize("op", ["RNNCell", "GRUCell"])
def test_a_cell_runs_once_whatever_the_batch(op: str) -> None:
    """The first axis of its input is the batch, not time: 64 molecules were predicted to take a hundred times as long."""
    cell, layer = (one_node(name, [(64, 32), (64, 32), (96, 32), (96, 32)], [(64, 32)]) for name in (op, "GRU"))
    assert time_steps(cell.nodes[0], cell.tensors["in0"]) == 1
    assert time_steps(layer.nodes[0], layer.tensors["in0"]) == 64
