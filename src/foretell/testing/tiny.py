"""Testing: tiny graphs and models for tests and examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.tensor import TensorKind

Shape = tuple[int, ...]


def tiny_graph(batch_size: int = 2, channels: int = 8) -> Graph:
    """A convolution, an activation, a global pool and a classifier."""
    tensors = [
        Tensor("x", (batch_size, 3, 16, 16), kind="input", batch_axis=0),
        Tensor("conv.weight", (channels, 3, 3, 3), kind="parameter"),
        Tensor("fc.weight", (4, channels), kind="parameter"),
        Tensor("conv", (batch_size, channels, 14, 14)),
        Tensor("relu", (batch_size, channels, 14, 14)),
        Tensor("pool", (batch_size, channels, 1, 1)),
        Tensor("flat", (batch_size, channels)),
        Tensor("y", (batch_size, 4)),
    ]
    nodes = [
        Node("conv", "Conv", ("x", "conv.weight"), ("conv",), {"strides": (1, 1)}, module="conv"),
        Node("relu", "Relu", ("conv",), ("relu",), module="act"),
        Node("pool", "GlobalAveragePool", ("relu",), ("pool",), module="pool"),
        Node("flat", "Reshape", ("pool",), ("flat",)),
        Node("fc", "Gemm", ("flat", "fc.weight"), ("y",), {"transB": 1}, module="fc"),
    ]
    return mark_batch_axes(
        Graph.build("tiny", nodes, {t.name: t for t in tensors}, ["x"], ["y"], batch_size=batch_size)
    )


def tiny_onnx(batch: int | str = "batch", size: int = 16) -> Any:
    """The same network as an ONNX model. Its weights are declared, but their data is absent."""
    # imported here, so that tests of the graph alone need no onnx
    from onnx import TensorProto, helper

    def weight(name: str, *shape: int) -> Any:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", "absent.data"
        return tensor

    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["c"], name="/conv/Conv", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"], name="/act/Relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["p"], ["f"], name="/Flatten"),
        helper.make_node("Gemm", ["f", "fc.weight"], ["y"], name="/fc/Gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
        [weight("conv.weight", 8, 3, 3, 3), weight("fc.weight", 4, 8)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def one_node(
    op: str,
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape],
    *,
    weights: Sequence[int] = (),
    dtype: str = "fp32",
    domain: str = "",
    bodies: tuple[Graph, ...] = (),
    **attributes: Attribute,
) -> Graph:
    """A graph of one node. ``weights`` are the positions of the inputs that are parameters; None is an absent input.

    >>> one_node("Gemm", [(2, 3), (3, 4)], [(2, 4)], weights=[1]).parameter_count
    12
    """
    names = [f"in{i}" if shape is not None else "" for i, shape in enumerate(inputs)]
    tensors: dict[str, Tensor] = {}
    for position, shape in enumerate(inputs):
        if shape is not None:
            kind: TensorKind = "parameter" if position in weights else "input"
            tensors[names[position]] = Tensor(names[position], shape, dtype, kind)
    results = {f"out{i}": Tensor(f"out{i}", shape, dtype) for i, shape in enumerate(outputs)}
    node = Node("node", op, tuple(names), tuple(results), dict(attributes), domain, bodies=bodies)
    graph_inputs = [name for name, tensor in tensors.items() if tensor.kind == "input"]
    return Graph.build("one", [node], tensors | results, graph_inputs, results)


def chain(
    nodes: Sequence[Node],
    shapes: Mapping[str, Shape],
    inputs: Sequence[str],
    outputs: Sequence[str],
    batch_size: int = 1,
) -> Graph:
    """A graph of the given nodes and shapes, all fp32. Tensors whose names start with ``w`` are parameters."""
    tensors = {}
    for name, shape in shapes.items():
        kind: TensorKind = "input" if name in inputs else "parameter" if name.startswith("w") else "activation"
        tensors[name] = Tensor(name, shape, kind=kind)
    return Graph.build("chain", nodes, tensors, inputs, outputs, batch_size=batch_size)
