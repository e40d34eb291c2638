"""Frontends: reads quantised ONNX models as engines run them: QuantizeLinear and DequantizeLinear join other nodes.

A model in the QDQ form wraps every operator: its inputs are dequantised, it computes in floating point, and its result
is quantised again. ONNX Runtime and TensorRT run that as one operator on 8-bit numbers (int8 or fp8). So here:

- a product or convolution whose activation and weights are dequantised reads the 8-bit tensors themselves; a bias is
  read as it is stored, and where its result goes into one QuantizeLinear, directly or through a Relu or Clip, these
  are part of it (a saturating cast is a Relu);
- one whose weights alone are dequantised reads the stored weights (4 or 8 bits) and computes in floating point;
- a pooling, an addition, a concatenation and what else moves numbers does so in 8 bits where it lies between
  DequantizeLinear and one QuantizeLinear.

What is left of QuantizeLinear and DequantizeLinear runs by itself, as at the edges of a network. Limits: types decide,
not the values of scales; bodies of If and Loop are left alone.
"""

from collections import Counter
from dataclasses import replace

from foretell.graph import Graph, Node

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_BETWEEN = frozenset({"Relu", "Clip"})
_MOVED = frozenset(
    {
        "Add", "Mul", "AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool", "Concat", "Reshape", "Transpose",
        "Flatten", "Squeeze", "Unsqueeze", "Slice", "Pad", "Resize", "Upsample", "Relu", "Clip", "LeakyRelu", "Sigmoid",
        "Softmax", "HardSwish", "HardSigmoid", "Identity",
    }
)  # fmt: skip
_SMALL = frozenset({"int8", "uint8", "fp8", "int4", "uint4", "fp4", "int2", "uint2"})
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def fuse_quantised(graph: Graph) -> Graph:
    """The graph as engines fuse it, with a sentence that says so; the graph itself where nothing is quantised."""
    if not any(node.op == _DEQUANTIZE for node in graph.nodes):
        return graph
    fusion = _Fusion(graph)
    nodes = fusion.nodes()
    if not fusion.fused:
        return graph
    touched = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*graph.inputs, *graph.outputs}
    gone = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)} - touched
    kept = {name: tensor for name, tensor in graph.tensors.items() if name not in gone}
    note = (
        f"{fusion.fused} quantised operators are read as engines fuse them; "
        "--as-written counts each QuantizeLinear and DequantizeLinear."
    )
    fused = Graph.build(
        graph.name, nodes, kept, graph.inputs, graph.outputs, batch_size=graph.batch_size,
        warnings=(*graph.warnings, note), metadata=graph.metadata, held=graph.held,
    )  # fmt: skip
    # what a file stores in fp8 stays so when the rest is cast, as int8 does, though fp8 is a dtype of floats
    small = {name for name, tensor in kept.items() if tensor.dtype in _SMALL and tensor.is_float}
    return replace(fused, fixed=(graph.fixed & kept.keys()) | small)


class _Fusion:
    """One pass over a graph: which nodes become others, and which are gone."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fused = 0
        self.readers = Counter(name for node in graph.nodes for name in node.inputs if name)
        self.readers.update(graph.outputs)
        self.reader_of = {name: node for node in graph.nodes for name in node.inputs if name}
        # what is dequantised, by the name of the result: from 8 bits and fewer, or a bias from 32
        self.source = {
            node.outputs[0]: node.inputs[0]
            for node in graph.nodes
            if node.op == _DEQUANTIZE and node.inputs[0] and graph.tensors[node.inputs[0]].dtype in (*_SMALL, "int32")
        }

    def nodes(self) -> list[Node]:
        """The nodes that run. A node is known by its first output: names of nodes need not differ in a file."""
        gone: set[str] = set()
        made = []
        for node in self.graph.nodes:
            if node.outputs and node.outputs[0] in gone:
                continue
            changed, absorbed = self._fuse(node)
            gone |= absorbed
            made.append(changed)
        read = {name for node in made for name in node.inputs} | set(self.graph.outputs)
        return [node for node in made if node.op != _DEQUANTIZE or node.outputs[0] in read]

    def _fuse(self, node: Node) -> tuple[Node, set[str]]:
        """A node as it runs, and the first outputs of those that it takes over."""
        if node.bodies or not node.outputs:
            return node, set()
        if node.op in _PRODUCTS and len(node.inputs) > 1:
            return self._product(node)
        if node.op in _MOVED and self._is_moved(node):
            end, absorbed = self._quantised_end(node, ())
            if end is not None:
                self.fused += 1
                inputs = tuple(self.source.get(name, name) for name in node.inputs)
                return replace(node, inputs=inputs, outputs=(end, *node.outputs[1:])), absorbed
        return node, set()

    def _product(self, node: Node) -> tuple[Node, set[str]]:
        x, weight = node.inputs[:2]
        if weight not in self.source:
            return node, set()
        if x not in self.source:
            # weights alone: only where they are stored so, not where an activation is dequantised
            stored = self.source[weight]
            if self.graph.tensors[stored].kind == "activation":
                return node, set()
            self.fused += 1
            return replace(node, inputs=(x, stored, *node.inputs[2:])), set()
        self.fused += 1
        node = replace(node, inputs=tuple(self.source.get(name, name) for name in node.inputs))
        end, absorbed = self._quantised_end(node, _BETWEEN)
        return (node, set()) if end is None else (replace(node, outputs=(end, *node.outputs[1:])), absorbed)

    def _is_moved(self, node: Node) -> bool:
        """Whether all its tensors of floating point are dequantised, and there is one."""
        floats = [name for name in node.inputs if name and self.graph.tensors[name].is_float]
        return bool(floats) and all(
            name in self.source and self.graph.tensors[self.source[name]].dtype in _SMALL for name in floats
        )

    def _quantised_end(self, node: Node, between: frozenset[str] | tuple[str, ...]) -> tuple[str | None, set[str]]:
        """Where a result ends that is quantised and not used otherwise, and the nodes on the way."""
        name, absorbed = node.outputs[0], set[str]()
        for _ in range(3):
            if self.readers[name] != 1 or name in self.graph.outputs:
                return None, set()
            reader = self.reader_of[name]
            absorbed.add(reader.outputs[0])
            if reader.op == _QUANTIZE and reader.inputs[0] == name:
                return reader.outputs[0], absorbed
            if reader.op not in between:
                return None, set()
            name = reader.outputs[0]
        return None, set()
