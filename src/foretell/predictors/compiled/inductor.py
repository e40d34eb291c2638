"""Features: a graph as TorchInductor runs it on a GPU: which products it calls a library for, and on what operands.

Where it lays images out with channels last, a convolution of one point is a product of matrices. An attention of some
models is taken apart: transformers gives its encoders a mask while it is traced, and PyTorch then has no kernel for it.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor

CONVOLUTIONS = ("Conv", "ConvTranspose", "FusedConv")
_FEW_CONVOLUTIONS = 300  # nodes a convolution, as Inductor counts them: parameters too, operators in their pieces
_PIECES = {
    "LayerNormalization": 9, "BatchNormalization": 12, "GroupNormalization": 12, "Gelu": 6, "HardSwish": 6,
    "Softmax": 5, "Attention": 4, "MatMul": 4, "Gemm": 3,
}  # fmt: skip
_SMALL = 64
# how much longer convolutions take with channels last: `torch._inductor.graph.GraphLowering.decide_layout_opt`
_SLOWER = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "other": 0.823}
_MASKED_WHEN_TRACED = re.compile(
    r"(attention\.self|SelfAttention|albert_layers\.\d+\.attention|transformer\.layer\.\d+\.attention"
    r"|(^|\.)layers\.\d+\.attention)$"
)
_EXACT = "fp32"
_ALIGNED = 8
_WORTH_PADDING = 1 << 28


def is_channels_last(graph: Graph) -> bool:
    """Whether Inductor lays images out with channels last; its own rule for inference."""
    nodes = [node for node in graph.nodes if node.op in CONVOLUTIONS and len(node.inputs) > 1]
    pieces = sum(_PIECES.get(node.op, 1) for node in graph.nodes)
    given = sum(tensor.kind != "activation" for tensor in graph.tensors.values())
    if not nodes or pieces + given >= _FEW_CONVOLUTIONS * len(nodes):
        return False
    work = dict.fromkeys(_SLOWER, 0)
    for node in nodes:
        weight = graph.tensors[node.inputs[1]].shape
        work[_kind(node, weight)] += graph.tensors[node.outputs[0]].elements * math.prod(weight[1:])
    return sum(_SLOWER[kind] * macs for kind, macs in work.items()) <= sum(work.values())


def _kind(node: Node, weight: tuple[int, ...]) -> str:
    if node.integer("group", 1) > 1 and weight[1] > 1:
        return "grouped"
    if max(weight[:2]) <= _SMALL:
        return "small"
    return "narrowing" if weight[0] * 2 <= weight[1] and weight[2:3] > (1,) else "other"


def is_taken_apart(graph: Graph, node: Node) -> bool:
    """Whether an attention becomes two products in single precision and a softmax."""
    if node.op != "Attention" or len(node.inputs) < 3 or not _MASKED_WHEN_TRACED.search(node.module):
        return False
    query, key, value = (graph.tensors[name].shape for name in node.inputs[:3])
    return len(query) == len(key) == len(value) == 4 and query[:2] == key[:2] == value[:2]


def lower(graph: Graph) -> Graph:
    """The graph with the products that Inductor calls in place of what it replaces; all else is as it was."""
    channels_last = is_channels_last(graph)
    nodes, tensors, changed = list[Node](), dict(graph.tensors), False
    for node in graph.nodes:
        if is_taken_apart(graph, node):
            nodes += _Rewriting(graph, node, tensors).attention()
        elif channels_last and is_point(graph, node):
            nodes += _Rewriting(graph, node, tensors).product()
        elif node.op == "Gemm" and len(node.inputs) > 2 and graph.tensors[node.inputs[0]].dtype == _EXACT:
            nodes.append(replace(node, inputs=node.inputs[:2]))  # the sum is fused with what follows
            changed = True
        elif is_padded(graph, node):
            nodes += _Rewriting(graph, node, tensors).padded()
        else:
            nodes.append(node)
    changed |= len(nodes) != len(graph.nodes)
    return replace(graph, nodes=tuple(nodes), tensors=tensors) if changed else graph


def is_point(graph: Graph, node: Node) -> bool:
    """Whether a convolution looks at one point of an image at a time."""
    if node.op != "Conv":
        return False
    image = graph.tensors[node.inputs[0]]
    if image.dtype == _EXACT or len(image.shape) != 4 or node.integer("group", 1) != 1:
        return False
    ones = (*graph.tensors[node.inputs[1]].shape[2:], *(node.integers("strides") or ()))
    return set(ones) == {1} and not any(node.integers("pads") or ())


def is_padded(graph: Graph, node: Node) -> bool:
    """Whether a large product in half precision is given columns so that tensor cores take it."""
    if node.op != "Gemm" or len(node.inputs) < 2:
        return False
    weight, result = graph.tensors[node.inputs[1]], graph.tensors[node.outputs[0]]
    odd = any(size % _ALIGNED for size in weight.shape) and weight.dtype != _EXACT
    return odd and len(weight.shape) == 2 and result.elements * min(weight.shape) >= _WORTH_PADDING


class _Rewriting:
    """Nodes that stand for one node; the tensors between them are added to ``tensors``."""

    def __init__(self, graph: Graph, node: Node, tensors: dict[str, Tensor]) -> None:
        self.node = node
        self.given = [graph.tensors[name] for name in node.inputs if name]
        self.result = graph.tensors[node.outputs[0]]
        self.tensors = tensors

    def product(self) -> Iterator[Node]:
        """A convolution of one point as a product."""
        image, weight = self.given[:2]
        rows, into, out_of = image.elements // image.shape[1], image.shape[1], self.result.shape[1]
        left = self._tensor("left", (rows, into), image.dtype)
        right = self._tensor("right", (into, out_of), weight.dtype)
        made = self._tensor("made", (rows, out_of), self.result.dtype)
        yield self._node("Reshape", (image.name,), left)
        yield self._node("Reshape", (weight.name,), right)
        yield self._node("MatMul", (left, right), made)
        yield self._node("Reshape", (made,), self.result.name)

    def padded(self) -> Iterator[Node]:
        """A product whose operands are filled up; the copies of the operands are no product."""
        left, weight = self.given[:2]
        into = left.shape[-1]
        out_of = weight.elements // into
        rows, wide, deep = left.elements // into, _filled(out_of), _filled(into)
        flat, filled = self._tensor("flat", (rows, into), left.dtype), self._tensor("left", (rows, deep), left.dtype)
        right = self._tensor("right", (deep, wide), weight.dtype)
        made = self._tensor("made", (rows, wide), self.result.dtype)
        yield self._node("Reshape", (left.name,), flat)
        yield self._node("Pad", (flat,), filled)
        yield self._node("Pad", (weight.name,), right)
        yield self._node("MatMul", (filled, right), made)
        cut = self._tensor("cut", (rows, out_of), self.result.dtype)
        yield self._node("Slice", (made,), cut)
        yield self._node("Reshape", (cut,), self.result.name)

    def attention(self) -> Iterator[Node]:
        """An attention as PyTorch's own composition of it."""
        query, key, value = self.given[:3]
        turned = self._tensor("turned", (*key.shape[:2], key.shape[3], key.shape[2]), _EXACT)
        scores = (*query.shape[:3], key.shape[2])
        scored, shares = self._tensor("scored", scores, _EXACT), self._tensor("shares", scores, _EXACT)
        exact = [self._tensor(f"exact{i}", each.shape, _EXACT) for i, each in enumerate((query, key, value))]
        made = self._tensor("made", (*query.shape[:3], value.shape[3]), _EXACT)
        for name, each in zip(exact, (query, key, value), strict=True):
            yield self._node("Cast", (each.name,), name)
        yield self._node("Transpose", (exact[1],), turned, perm=(0, 1, 3, 2))
        yield self._node("MatMul", (exact[0], turned), scored)
        yield self._node("Softmax", (scored,), shares)
        yield self._node("MatMul", (shares, exact[2]), made)
        yield self._node("Cast", (made,), self.result.name)

    def _tensor(self, what: str, shape: tuple[int, ...], dtype: str) -> str:
        name = f"{self.result.name}.{what}"
        self.tensors[name] = Tensor(name, shape, dtype)
        return name

    def _node(self, op: str, inputs: tuple[str, ...], output: str, **attributes: tuple[int, ...]) -> Node:
        return Node(f"{self.node.name}.{output}", op, inputs, (output,), attributes, module=self.node.module)


def _filled(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
