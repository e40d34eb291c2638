"""Kernels under TorchInductor: calls of libraries with their eager times, generated ones with their traffic."""

import numpy as np

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.compiled.inductor import lower
from foretell.predictors.compiled.kernels import COMPILED_COLUMNS, GENERATED, describe_compiled, generated
from foretell.records import Target, Workload
from foretell.testing import chain, tiny_graph

H200 = Target(find_device("h200"))
APART = ((0,), (1,), (2, 3), (4,))
FUSED = ((0,), (1, 2, 3), (4,))


def described(graph: Graph, parts, dtype: str = "fp32"):
    workload = Workload(graph, H200, dtype)
    lowered = lower(graph)
    units = extract_units(Workload(lowered, H200, dtype))
    return describe_compiled(workload, parts, lowered, units, 2 * units.bound_us)


def column(found, name: str) -> np.ndarray:
    return found.columns[:, COMPILED_COLUMNS.index(name)]


def test_libraries_keep_their_times_and_fusion_saves_traffic():
    apart, fused = described(tiny_graph(8), APART), described(tiny_graph(8), FUSED)
    for found in (apart, fused):
        assert found.operators[:2] == ("Conv", "Gemm")
        assert found.is_library.tolist() == [True, True] + [False] * (len(found) - 2)
        assert found.columns.shape == (len(found), len(COMPILED_COLUMNS))
        assert set(found.operators[2:]) == {GENERATED}
    assert column(apart, "launch").sum() - column(fused, "launch").sum() == 1
    traffic = [found.base_us[column(found, "traffic") > 0].sum() for found in (apart, fused)]
    assert traffic[0] > 1.5 * traffic[1]
    units = extract_units(Workload(tiny_graph(8), H200))
    wanted = 2 * units.bound_us[[units.operators.index("Conv"), units.operators.index("Gemm")]]
    assert np.allclose(fused.base_us[:2], wanted)


def test_every_tensor_moves_once():
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Add", ("a", "x"), ("b",)), Node("c", "Relu", ("b",), ("c",))]
    graph = chain(nodes, dict.fromkeys(("x", "a", "b", "c"), (4, 1000)), ["x"], ["c"], batch_size=4)
    size = 4 * 1000 * 4
    assert [each.bytes for each in generated(graph, [(0, 1, 2)], channels_last=False)] == [2 * size]
    one, two = generated(graph, [(0, 1), (2,)], channels_last=False)
    assert (one.bytes, two.bytes, one.nodes) == (2 * size, 2 * size, 2)
    assert [each.bytes for each in generated(graph, [(0,), (1,), (2,)], channels_last=False)] == [
        2 * size, 3 * size, 2 * size,
    ]  # fmt: skip


def test_kinds_of_kernels_are_told():
    graph = tiny_graph(8)
    (_, pooled) = generated(graph, APART, channels_last=False)
    assert not pooled.gathers
    assert pooled.nodes == 2
    with_copies = generated(graph, APART, channels_last=True)
    assert len(with_copies) == 4, "of the weights and of the image"
    assert with_copies[2].bytes == 2 * graph.tensors["conv.weight"].bytes
    assert with_copies[3].bytes == 2 * graph.tensors["x"].bytes


def convolution(weight: tuple[int, ...], group: int = 1, dtype: str = "fp16", *, bias: bool = False) -> Graph:
    tensors = [
        Tensor("x", (2, 128, 14, 14), dtype, "input"), Tensor("w", weight, dtype, "parameter"),
        Tensor("b", weight[:1], dtype, "parameter"), Tensor("y", (2, weight[0], 14, 14), dtype),
    ]  # fmt: skip
    attributes = {"strides": (1, 1), "group": group, "pads": (1, 1, 1, 1)}
    node = Node("conv", "Conv", ("x", "w", "b")[: 2 + bias], ("y",), attributes)
    return Graph.build("conv", [node], {t.name: t for t in tensors}, ["x"], ["y"], batch_size=2)


def test_convolutions_are_told_apart():
    dense, deep = described(convolution((96, 128, 3, 3)), [(0,)], "fp16"), convolution((128, 1, 3, 3), 128)
    assert column(dense, "convolution")[0] == 1
    assert column(dense, "convolution_compute")[0] < 0
    assert column(dense, "depthwise")[0] == 0
    found = described(deep, [(0,)], "fp16")
    assert (column(found, "depthwise")[0], column(found, "convolution_compute")[0]) == (1, 0)
    grouped = described(convolution((128, 16, 3, 3), 8), [(0,)], "fp16")
    assert (column(grouped, "plain_convolution")[0], column(grouped, "convolution")[0]) == (1, 0)


def test_a_bias_that_nothing_else_adds_is_a_kernel():
    plain, biased = (generated(convolution((96, 128, 3, 3), bias=each), [(0,)], channels_last=False) for each in (0, 1))
    assert (len(plain), len(biased)) == (0, 1)


def test_an_attention_that_is_taken_apart_has_its_copies_and_its_softmax():
    tensors = [Tensor(name, (2, 4, 32, 16), "fp16", "input") for name in "qkv"] + [Tensor("y", (2, 4, 32, 16), "fp16")]
    node = Node("a", "Attention", ("q", "k", "v"), ("y",), module="layer.0.attention.self")
    graph = Graph.build("a", [node], {t.name: t for t in tensors}, ["q", "k", "v"], ["y"], batch_size=2)
    found = described(graph, [(0,)], "fp16")
    assert found.operators[:2] == ("MatMul", "MatMul")
    assert column(found, "product_exact")[:2].tolist() == [1, 1]
    assert column(found, "launch").sum() == 5
    assert column(found, "traffic_reduced").sum() == 1


def test_other_products_attentions_and_norms():
    shapes = {"x": (2, 8, 64), "w": (64, 24), "y": (2, 8, 24)}
    graph = chain([Node("m", "MatMul", ("x", "w"), ("y",))], shapes, ["x"], ["y"], batch_size=2).with_dtype("fp16")
    found = described(graph, [(0,)], "fp16")
    assert column(found, "product")[0] == column(found, "product_small")[0] == 1
    norm = chain(
        [Node("g", "GroupNormalization", ("x",), ("y",))],
        {"x": (2, 8, 64), "y": (2, 8, 64)},
        ["x"],
        ["y"],
        batch_size=2,
    )
    assert [each.reduces for each in generated(norm, [(0,)], channels_last=False)] == [True, True, False, False]
