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


def column(table, name: str) -> np.ndarray:
    return table.columns[:, COMPILED_COLUMNS.index(name)]


def test_libraries_keep_their_times_and_fusion_saves_traffic():
    apart, fused = described(tiny_graph(8), APART), described(tiny_graph(8), FUSED)
    for kernels in (apart, fused):
        assert kernels.operators[:2] == ("Conv", "Gemm")
        assert kernels.is_library.tolist() == [True, True] + [False] * (len(kernels) - 2)
        assert kernels.columns.shape == (len(kernels), len(COMPILED_COLUMNS))
        assert set(kernels.operators[2:]) == {GENERATED}
    assert column(apart, "launch").sum() - column(fused, "launch").sum() == 1
    traffic = [
        compiled_kernels.base_us[column(compiled_kernels, "traffic") > 0].sum() for compiled_kernels in (apart, fused)
    ]
    assert traffic[0] > 1.5 * traffic[1]
    units = extract_units(Workload(tiny_graph(8), H200))
    expected = 2 * units.bound_us[[units.operators.index("Conv"), units.operators.index("Gemm")]]
    assert np.allclose(fused.base_us[:2], expected)


def test_what_inductor_writes_no_code_for_takes_as_long_as_in_eager_mode():
    tensors = [
        Tensor("x", (4, 1000), "fp32", "input"),
        Tensor("f", (4, 501), "complex64"),
        Tensor("g", (4, 501), "complex64"),
        Tensor("h", (4, 1000), "fp32"),
        Tensor("y", (4, 1000), "fp32"),
    ]
    nodes = [
        Node("to", "DFT", ("x",), ("f",)),
        Node("square", "Mul", ("f", "f"), ("g",)),  # complex: no generated code either
        Node("back", "DFT", ("g",), ("h",)),
        Node("last", "Relu", ("h",), ("y",)),
    ]
    graph = Graph.build("fft", nodes, {tensor.name: tensor for tensor in tensors}, ["x"], ["y"], batch_size=4)
    kernels = described(graph, ((0,), (1,), (2, 3)))
    assert kernels.operators == ("DFT", "Mul", "DFT", GENERATED, GENERATED)
    assert not kernels.columns[:3].any()  # so that their factor is 1
    assert np.allclose(kernels.base_us[:3], 2 * extract_units(Workload(graph, H200)).bound_us[:3])


def test_every_tensor_moves_once():
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Add", ("a", "x"), ("b",)), Node("c", "Relu", ("b",), ("c",))]
    graph = chain(nodes, dict.fromkeys(("x", "a", "b", "c"), (4, 1000)), ["x"], ["c"], batch_size=4)
    size = 4 * 1000 * 4
    assert [kernel.bytes for kernel in generated(graph, [(0, 1, 2)], channels_last=False)] == [2 * size]
    one, two = generated(graph, [(0, 1), (2,)], channels_last=False)
    assert (one.bytes, two.bytes, one.nodes) == (2 * size, 2 * size, 2)
    assert [kernel.bytes for kernel in generated(graph, [(0,), (1,), (2,)], channels_last=False)] == [
        2 * size, 3 * size, 2 * size,
    ]  # fmt: skip


def test_columns_tell_kinds_of_kernels_apart():
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


def test_columns_tell_kinds_of_convolutions_apart():
    dense, deep = described(convolution((96, 128, 3, 3)), [(0,)], "fp16"), convolution((128, 1, 3, 3), 128)
    assert column(dense, "convolution")[0] == 1
    assert column(dense, "convolution_compute")[0] < 0
    assert column(dense, "depthwise")[0] == 0
    result = described(deep, [(0,)], "fp16")
    assert (column(result, "depthwise")[0], column(result, "convolution_compute")[0]) == (1, 0)
    grouped = described(convolution((128, 16, 3, 3), 8), [(0,)], "fp16")
    assert (column(grouped, "plain_convolution")[0], column(grouped, "convolution")[0]) == (1, 0)


def test_a_bias_that_nothing_else_adds_is_a_kernel():
    plain, biased = (generated(convolution((96, 128, 3, 3), bias=bias), [(0,)], channels_last=False) for bias in (0, 1))
    assert (len(plain), len(biased)) == (0, 1)


def test_a_decomposed_attention_has_its_copies_and_its_softmax():
    tensors = [Tensor(name, (2, 4, 32, 16), "fp16", "input") for name in "qkv"] + [Tensor("y", (2, 4, 32, 16), "fp16")]
    node = Node("a", "Attention", ("q", "k", "v"), ("y",), module="layer.0.attention.self")
    graph = Graph.build("a", [node], {t.name: t for t in tensors}, ["q", "k", "v"], ["y"], batch_size=2)
    result = described(graph, [(0,)], "fp16")
    assert result.operators[:2] == ("MatMul", "MatMul")
    assert column(result, "product_exact")[:2].tolist() == [1, 1]
    assert column(result, "launch").sum() == 5
    assert column(result, "traffic_reduced").sum() == 1


def test_other_products_attentions_and_norms():
    shapes = {"x": (2, 8, 64), "w": (64, 24), "y": (2, 8, 24)}
    graph = chain([Node("m", "MatMul", ("x", "w"), ("y",))], shapes, ["x"], ["y"], batch_size=2).with_dtype("fp16")
    result = described(graph, [(0,)], "fp16")
    assert column(result, "product")[0] == column(result, "product_small")[0] == 1
    norm = chain(
        [Node("g", "GroupNormalization", ("x",), ("y",))],
        {"x": (2, 8, 64), "y": (2, 8, 64)},
        ["x"],
        ["y"],
        batch_size=2,
    )
    assert [kernel.reduces for kernel in generated(norm, [(0,)], channels_last=False)] == [True, True, False, False]
