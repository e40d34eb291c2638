import pytest

from foretell.graph import Node
from foretell.testing import chain, one_node, tiny_graph, tiny_onnx


def test_the_tiny_graph_follows_its_arguments():
    graph = tiny_graph(batch_size=5, channels=16)
    assert graph.batch_size == 5
    assert graph.parameter_count == 16 * 3 * 3 * 3 + 4 * 16
    assert graph.tensors["y"].shape == (5, 4)
    assert graph.tensors["y"].batch_axis == 0


def test_the_onnx_model_declares_the_weights_of_the_graph_and_holds_none():
    onnx = pytest.importorskip("onnx")
    model = tiny_onnx(batch=3, size=20)
    weights = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    graph = tiny_graph()
    assert weights == {name: graph.tensors[name].shape for name in ("conv.weight", "fc.weight")}
    assert all(weight.data_location == onnx.TensorProto.EXTERNAL for weight in model.graph.initializer)
    assert [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim] == [3, 3, 20, 20]


def test_one_node_distinguishes_weights_inputs_and_absent_inputs():
    graph = one_node("Resize", [(2, 3), None, (4,)], [(2, 6)], weights=[2], dtype="fp16")
    assert tuple(graph.inputs) == ("in0",)
    assert graph.nodes[0].inputs == ("in0", "", "in2")
    assert graph.parameter_count == 4
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"fp16"}


def test_names_of_a_chain_that_start_with_w_are_parameters():
    shapes = {"x": (2, 3), "w1": (3, 4), "h": (2, 4), "y": (2, 4)}
    nodes = [Node("a", "MatMul", ("x", "w1"), ("h",)), Node("b", "Relu", ("h",), ("y",))]
    graph = chain(nodes, shapes, ["x"], ["y"], batch_size=2)
    kinds = {name: tensor.kind for name, tensor in graph.tensors.items()}
    assert (kinds["x"], kinds["w1"]) == ("input", "parameter")
    assert graph.parameter_count == 12
    assert graph.batch_size == 2
