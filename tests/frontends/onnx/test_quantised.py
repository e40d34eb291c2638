"""Quantised ONNX models are read as engines fuse them; what is used otherwise stays."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import foretell
from foretell.graph import Graph
from foretell.workflows.inspect import inspect
from foretell.workflows.workload import load_graph

SCALE = [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(0), "z")]


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    initializers = [*SCALE, *(numpy_helper.from_array(value, name) for name, value in constants.items())]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8, 6, 6])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, made, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


WEIGHTS = {
    "w": np.ones((8, 8, 3, 3), np.int8), "ws": np.ones(8, np.float32), "wz": np.zeros(8, np.int8),
    "b": np.ones(8, np.int32), "bs": np.ones(8, np.float32), "bz": np.zeros(8, np.int32),
}  # fmt: skip


def wrapped(x: str, y: str, *, relu: bool = True) -> list[onnx.NodeProto]:
    """A convolution in the QDQ form, from x to y."""
    end = f"{y}_r" if relu else f"{y}_c"
    return [
        node("QuantizeLinear", f"{x} s z", f"{y}_q"), node("DequantizeLinear", f"{y}_q s z", f"{y}_d"),
        node("DequantizeLinear", "w ws wz", f"{y}_w", axis=0), node("DequantizeLinear", "b bs bz", f"{y}_b", axis=0),
        node("Conv", f"{y}_d {y}_w {y}_b", f"{y}_c", pads=[1, 1, 1, 1]),
        *([node("Relu", f"{y}_c", f"{y}_r")] if relu else []),
        node("QuantizeLinear", f"{end} s z", f"{y}_o"), node("DequantizeLinear", f"{y}_o s z", y),
    ]  # fmt: skip


def operators(graph: Graph) -> list[str]:
    return [one.op for one in graph.nodes]


@pytest.mark.parametrize("relu", [True, False])
def test_a_convolution_takes_in_what_surrounds_it(relu: bool) -> None:
    graph = load_graph(model(wrapped("x", "y", relu=relu), WEIGHTS))
    assert operators(graph) == ["QuantizeLinear", "Conv", "DequantizeLinear"]
    conv = graph.nodes[1]
    assert [graph.tensors[name].dtype for name in conv.inputs] == ["int8", "int8", "int32"]
    assert graph.tensors[conv.outputs[0]].dtype == "int8"
    assert any("as engines fuse them" in warning for warning in graph.warnings)
    # half precision changes nothing about 8 bits
    assert graph.with_dtype("fp16").tensors[conv.outputs[0]].dtype == "int8"


def test_as_written_keeps_every_node() -> None:
    proto = model(wrapped("x", "y"), WEIGHTS)
    written = inspect(proto, as_written=True)
    assert operators(written.graph).count("DequantizeLinear") == 4
    assert written.total.macs == inspect(proto).total.macs
    assert written.total.parameters == inspect(proto).total.parameters


def test_a_chain_and_its_sum_stay_in_8_bits() -> None:
    nodes = [
        *wrapped("x", "a"), *wrapped("a", "b_"), node("Add", "a b_", "sum"), node("QuantizeLinear", "sum s z", "sum_q"),
        node("DequantizeLinear", "sum_q s z", "sum_d"), node("MaxPool", "sum_d", "pool", kernel_shape=[2, 2]),
        node("QuantizeLinear", "pool s z", "pool_q"), node("DequantizeLinear", "pool_q s z", "y"),
    ]  # fmt: skip
    graph = load_graph(model(nodes, WEIGHTS))
    by_name = {one.name: one for one in graph.nodes}
    assert [graph.tensors[name].dtype for name in by_name["sum"].inputs] == ["int8", "int8"]
    assert graph.tensors[by_name["pool"].outputs[0]].dtype == "int8"
    # the second convolution quantises what the first one has dequantised: that is left as it is written
    assert operators(graph).count("Conv") == 2


def test_a_result_that_is_used_in_floating_point_stays_so() -> None:
    nodes = [*wrapped("x", "a", relu=False), node("Sigmoid", "a_c", "y")]
    graph = load_graph(model(nodes, WEIGHTS, ("y", "a")))
    conv = next(one for one in graph.nodes if one.op == "Conv")
    assert graph.tensors[conv.inputs[0]].dtype == "int8"
    assert graph.tensors[conv.outputs[0]].dtype == "fp32"
    assert "QuantizeLinear" in operators(graph)[1:]


def test_weights_alone_are_read_as_they_are_stored() -> None:
    dequantise = node("DequantizeLinear", "w ws wz", "wd", axis=1)
    nodes = [node("Reshape", "x shape", "flat"), dequantise, node("MatMul", "flat wd", "y")]
    constants = {"shape": np.array([2, 288]), "w": np.ones((288, 16), np.int8), "ws": np.ones(16, np.float32),
                 "wz": np.zeros(16, np.int8)}  # fmt: skip
    graph = load_graph(model(nodes, constants))
    product = next(one for one in graph.nodes if one.op == "MatMul")
    assert [graph.tensors[name].dtype for name in product.inputs] == ["fp32", "int8"]
    assert "DequantizeLinear" not in operators(graph)


def test_a_model_without_quantisation_is_left_alone() -> None:
    graph = load_graph(model([node("Relu", "x", "y")], {}))
    assert operators(graph) == ["Relu"]
    assert not graph.warnings


def test_nodes_that_share_a_name_are_not_confused() -> None:
    nodes = wrapped("x", "y")
    for one in nodes:
        one.name = "same"
    graph = load_graph(model(nodes, WEIGHTS))
    assert operators(graph) == ["QuantizeLinear", "Conv", "DequantizeLinear"]


def test_what_cannot_be_fused_is_read_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Graph) -> Graph:
        raise KeyError("no such tensor")

    monkeypatch.setattr("foretell.frontends.onnx.file.fuse_quantised", fail)
    graph = load_graph(model(wrapped("x", "y"), WEIGHTS))
    assert operators(graph).count("DequantizeLinear") == 4
    assert "read as written" in graph.warnings[-1]


def test_fp8_stays_fp8_whatever_the_rest_is_cast_to() -> None:
    """It was counted as a product of fp32: four times the bytes of its weights, and other units."""
    small = TensorProto.FLOAT8E4M3FN
    weights = [helper.make_tensor(n, small, dims, bytes(size), raw=True) for n, dims, size in
               (("w", [6, 6], 36), ("z8", [], 1))]  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z8", "q"), node("DequantizeLinear", "q s z8", "d"),
        node("DequantizeLinear", "w s", "v"), node("MatMul", "d v", "y"),
    ]  # fmt: skip
    proto = model(nodes, {})
    proto.graph.initializer.extend(weights)
    for dtype in ("fp32", "fp16"):
        graph = load_graph(proto).with_dtype(dtype)
        assert operators(graph) == ["QuantizeLinear", "MatMul"]
        assert [graph.tensors[name].dtype for name in graph.nodes[1].inputs] == ["fp8", "fp8"]
        assert (graph.tensors["x"].dtype, graph.tensors["y"].dtype) == (dtype, dtype)
    answer = foretell.predict(proto)
    assert any("No operator was measured in fp8" in warning for warning in answer.warnings)
