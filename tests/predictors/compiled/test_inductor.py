"""What TorchInductor calls a library for: convolutions of a point as products, some attentions taken apart."""

import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.compiled.inductor import is_channels_last, is_decomposed, is_padded, is_point, lower
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

H200 = Target(find_device("h200"))


def convolution(weight: tuple[int, ...] = (128, 96, 1, 1), dtype: str = "fp16", **attributes: object) -> Graph:
    side, into = 14, weight[1] * int(attributes.get("group", 1))
    tensors = [
        Tensor("x", (2, into, side, side), dtype, "input"),
        Tensor("w", weight, dtype, "parameter"),
        Tensor("y", (2, weight[0], side, side), dtype),
    ]
    node = Node("conv", "Conv", ("x", "w"), ("y",), {"strides": (1, 1), **attributes})
    return Graph.build("conv", [node], {t.name: t for t in tensors}, ["x"], ["y"], batch_size=2)


def attention(module: str, dtype: str = "fp16") -> Graph:
    tensors = [Tensor(name, (2, 4, 32, 16), dtype, "input") for name in "qkv"] + [Tensor("y", (2, 4, 32, 16), dtype)]
    node = Node("a", "Attention", ("q", "k", "v"), ("y",), module=module)
    return Graph.build("a", [node], {t.name: t for t in tensors}, ["q", "k", "v"], ["y"], batch_size=2)


def gemm(columns: int, dtype: str = "bf16", rows: int = 4096, *, bias: bool = False) -> Graph:
    tensors = [
        Tensor("x", (2, rows, 256), dtype, "input"), Tensor("w", (columns, 256), dtype, "parameter"),
        Tensor("b", (columns,), dtype, "parameter"), Tensor("y", (2, rows, columns), dtype),
    ]  # fmt: skip
    node = Node("fc", "Gemm", ("x", "w", "b")[: 2 + bias], ("y",), {"transB": 1})
    return Graph.build("fc", [node], {t.name: t for t in tensors}, ["x"], ["y"], batch_size=2)


def operators(graph: Graph) -> list[str]:
    return list(extract_units(Workload(graph, H200, "fp16")).operators)


def test_a_convolution_of_a_point_is_a_product_in_half_precision():
    assert operators(lower(convolution())) == ["MatMul"]
    left, right = (lower(convolution()).tensors[name].shape for name in lower(convolution()).nodes[2].inputs)
    assert (left, right) == ((2 * 14 * 14, 96), (96, 128))
    for other in (
        convolution((128, 96, 3, 3), pads=(1, 1, 1, 1)), convolution(strides=(2, 2)), convolution(dtype="fp32"),
        convolution((128, 1, 1, 1), group=128),
    ):  # fmt: skip
        assert not is_point(other, other.nodes[0])
        assert lower(other) is other


def test_channels_are_last_where_convolutions_gain_by_it():
    assert is_channels_last(convolution())
    assert not is_channels_last(convolution((128, 16, 3, 3), group=8)), "grouped convolutions lose"
    assert is_channels_last(convolution((128, 1, 3, 3), group=128)), "those of one channel do not"
    assert not is_channels_last(attention(""))
    graph, norms = convolution(), []
    for number in range(40):
        norms.append(
            Node(f"n{number}", "LayerNormalization", ("y" if not number else f"z{number}",), (f"z{number + 1}",))
        )
    tensors = {**graph.tensors, **{f"z{i}": Tensor(f"z{i}", (2, 128, 14, 14), "fp16") for i in range(1, 41)}}
    few = Graph.build("few", [*graph.nodes, *norms], tensors, ["x"], ["z40"], batch_size=2)
    assert not is_channels_last(few), "one convolution among hundreds of nodes"


@pytest.mark.parametrize(
    ("module", "apart"),
    [
        ("bert.encoder.layer.0.attention.self", True), ("encoder.block.3.layer.0.SelfAttention", True),
        ("transformer.layer.11.attention", True), ("layers.0.attention", True), ("encoder.layer.0.attention", False),
        ("blocks.0.attn", False), ("transformer.h.0.attn", False), ("model.decoder.layers.0.self_attn", False),
    ],
)  # fmt: skip
def test_attention_of_encoders_that_get_a_mask_is_decomposed(module, apart):
    graph = attention(module)
    assert is_decomposed(graph, graph.nodes[0]) is apart
    lowered = lower(graph)
    lowered.validate()
    assert operators(lowered).count("MatMul") == 2 * apart
    if apart:
        product = next(node for node in lowered.nodes if node.op == "MatMul")
        assert lowered.tensors[product.outputs[0]].shape == (2, 4, 32, 32)
        assert {lowered.tensors[name].dtype for name in product.inputs} == {"fp32"}


def test_large_products_of_odd_width_are_filled_up():
    odd = gemm(50257)
    assert is_padded(odd, odd.nodes[0])
    product = next(node for node in lower(odd).nodes if node.op == "MatMul")
    assert lower(odd).tensors[product.outputs[0]].shape == (8192, 50264)
    assert operators(lower(odd)).count("MatMul") == 1
    for plain in (gemm(50264), gemm(50257, "fp32"), gemm(1001, rows=1)):
        assert not is_padded(plain, plain.nodes[0])


def test_the_bias_of_a_product_in_single_precision_is_added_by_another_kernel():
    assert len(lower(gemm(64, "fp32", bias=True)).nodes[0].inputs) == 2
    assert lower(gemm(64, "fp16", bias=True)).nodes[0].inputs == ("x", "w", "b")
    assert lower(tiny_graph()).nodes == tiny_graph().nodes
