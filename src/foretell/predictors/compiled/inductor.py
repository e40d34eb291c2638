"""Predictors: a graph as TorchInductor runs it on a GPU: which products it calls a library for, with which operands.

Four rewrites change the products that a library computes. (1) With channels last and in half precision, a 1×1
convolution becomes a matrix product. (2) Some attentions are decomposed into two products and a softmax in single
precision: transformers gives its encoders a mask while it is traced, and PyTorch has no fused kernel for that. (3) The
bias of a product in single precision is fused with what follows. (4) A large product in half precision with odd sizes
is padded so that tensor cores can run it.

Some operators Inductor generates no code for: it calls the kernels of eager mode (`is_fallback`).

Source: the passes of ``torch/_inductor`` (``decide_layout_opt``, ``pad_mm``, ``make_fallback``). Limits: inference
only, and the rules of the PyTorch version that was measured.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor

CONVOLUTIONS = ("Conv", "ConvTranspose", "FusedConv")
_FEW_CONVOLUTIONS = (
    300  # Inductor's limit of nodes for each convolution; it counts parameters, and operators after decomposition
)
_PIECES = {
    "LayerNormalization": 9, "BatchNormalization": 12, "GroupNormalization": 12, "Gelu": 6, "HardSwish": 6,
    "Softmax": 5, "Attention": 4, "MatMul": 4, "Gemm": 3,
}  # fmt: skip
_SMALL = 64
# time of a convolution with channels last over that without: `torch._inductor.graph.GraphLowering.decide_layout_opt`
_SLOWER = {"grouped": 1.358, "small": 0.783, "narrowing": 0.725, "other": 0.823}
_MASKED_WHEN_TRACED = re.compile(
    r"(attention\.self|SelfAttention|albert_layers\.\d+\.attention|transformer\.layer\.\d+\.attention"
    r"|(^|\.)layers\.\d+\.attention)$"
)
# operators without a lowering of their own: `torch/_inductor/lowering.py`; a sort of a short row has one, and is rare
_FALLBACKS = frozenset(
    ("DFT", "STFT", "TopK", "Sort", "NonZero", "Unique", "Det", "Inverse", "EmbeddingBag", "Multinomial", "RoiAlign")
)
_EXACT = "fp32"
_ALIGNED = 8
_WORTH_PADDING = 1 << 28


def is_channels_last(graph: Graph) -> bool:
    """Whether Inductor lays images out with channels last: its own rule for inference."""
    convolutions = [node for node in graph.nodes if node.op in CONVOLUTIONS and len(node.inputs) > 1]
    pieces = sum(_PIECES.get(node.op, 1) for node in graph.nodes)
    inputs = sum(tensor.kind != "activation" for tensor in graph.tensors.values())
    if not convolutions or pieces + inputs >= _FEW_CONVOLUTIONS * len(convolutions):
        return False
    macs_by_kind = dict.fromkeys(_SLOWER, 0)
    for node in convolutions:
        weight = graph.tensors[node.inputs[1]].shape
        macs_by_kind[_kind(node, weight)] += graph.tensors[node.outputs[0]].elements * math.prod(weight[1:])
    return sum(_SLOWER[kind] * macs for kind, macs in macs_by_kind.items()) <= sum(macs_by_kind.values())


def _kind(node: Node, weight: tuple[int, ...]) -> str:
    if node.integer("group", 1) > 1 and weight[1] > 1:
        return "grouped"
    if max(weight[:2]) <= _SMALL:
        return "small"
    return "narrowing" if weight[0] * 2 <= weight[1] and weight[2:3] > (1,) else "other"


def is_fallback(graph: Graph, node: Node) -> bool:
    """Whether Inductor calls the kernels of eager mode for a node: it writes none, or none for complex numbers."""
    return node.op in _FALLBACKS or any(
        graph.tensors[name].dtype.startswith("complex") for name in (*node.inputs, *node.outputs) if name
    )


def is_decomposed(graph: Graph, node: Node) -> bool:
    """Whether an attention is decomposed into two products in single precision and a softmax."""
    if node.op != "Attention" or len(node.inputs) < 3 or not _MASKED_WHEN_TRACED.search(node.module):
        return False
    query, key, value = (graph.tensors[name].shape for name in node.inputs[:3])
    return len(query) == len(key) == len(value) == 4 and query[:2] == key[:2] == value[:2]


def lower(graph: Graph) -> Graph:
    """The graph with the products that Inductor calls in place of what it replaces; the rest is unchanged."""
    channels_last = is_channels_last(graph)
    nodes, tensors, changed = list[Node](), dict(graph.tensors), False
    for node in graph.nodes:
        if is_decomposed(graph, node):
            nodes += _Rewriting(graph, node, tensors).attention()
        elif channels_last and is_point(graph, node):
            nodes += _Rewriting(graph, node, tensors).product()
        elif node.op == "Gemm" and len(node.inputs) > 2 and graph.tensors[node.inputs[0]].dtype == _EXACT:
            nodes.append(replace(node, inputs=node.inputs[:2]))  # the bias is added by the kernel that follows
            changed = True
        elif is_padded(graph, node):
            nodes += _Rewriting(graph, node, tensors).padded()
        else:
            nodes.append(node)
    changed |= len(nodes) != len(graph.nodes)
    return replace(graph, nodes=tuple(nodes), tensors=tensors) if changed else graph


def is_point(graph: Graph, node: Node) -> bool:
    """Whether a convolution is a matrix product: its kernel and strides are 1, without padding or groups."""
    if node.op != "Conv":
        return False
    image = graph.tensors[node.inputs[0]]
    if image.dtype == _EXACT or len(image.shape) != 4 or node.integer("group", 1) != 1:
        return False
    sizes = (*graph.tensors[node.inputs[1]].shape[2:], *(node.integers("strides") or ()))
    return set(sizes) == {1} and not any(node.integers("pads") or ())


def is_padded(graph: Graph, node: Node) -> bool:
    """Whether Inductor pads a large product in half precision so that tensor cores can run it."""
    if node.op != "Gemm" or len(node.inputs) < 2:
        return False
    weight, result = graph.tensors[node.inputs[1]], graph.tensors[node.outputs[0]]
    is_odd = any(size % _ALIGNED for size in weight.shape) and weight.dtype != _EXACT
    return is_odd and len(weight.shape) == 2 and result.elements * min(weight.shape) >= _WORTH_PADDING


class _Rewriting:
    """The nodes that replace one node; the tensors between them are added to ``tensors``."""

    def __init__(self, graph: Graph, node: Node, tensors: dict[str, Tensor]) -> None:
        self.node = node
        self.inputs = [graph.tensors[name] for name in node.inputs if name]
        self.result = graph.tensors[node.outputs[0]]
        self.tensors = tensors

    def product(self) -> Iterator[Node]:
        """A 1×1 convolution as a matrix product."""
        image, weight = self.inputs[:2]
        rows, in_width, out_width = image.elements // image.shape[1], image.shape[1], self.result.shape[1]
        left = self._tensor("left", (rows, in_width), image.dtype)
        right = self._tensor("right", (in_width, out_width), weight.dtype)
        made = self._tensor("made", (rows, out_width), self.result.dtype)
        yield self._node("Reshape", (image.name,), left)
        yield self._node("Reshape", (weight.name,), right)
        yield self._node("MatMul", (left, right), made)
        yield self._node("Reshape", (made,), self.result.name)

    def padded(self) -> Iterator[Node]:
        """A product with padded operands; the padding copies are separate nodes."""
        left, weight = self.inputs[:2]
        in_width = left.shape[-1]
        out_width = weight.elements // in_width
        rows, wide, deep = left.elements // in_width, _round_up(out_width), _round_up(in_width)
        flat, filled = (
            self._tensor("flat", (rows, in_width), left.dtype),
            self._tensor("left", (rows, deep), left.dtype),
        )
        right = self._tensor("right", (deep, wide), weight.dtype)
        made = self._tensor("made", (rows, wide), self.result.dtype)
        yield self._node("Reshape", (left.name,), flat)
        yield self._node("Pad", (flat,), filled)
        yield self._node("Pad", (weight.name,), right)
        yield self._node("MatMul", (filled, right), made)
        cut = self._tensor("cut", (rows, out_width), self.result.dtype)
        yield self._node("Slice", (made,), cut)
        yield self._node("Reshape", (cut,), self.result.name)

    def attention(self) -> Iterator[Node]:
        """An attention as PyTorch's own decomposition of it."""
        query, key, value = self.inputs[:3]
        turned = self._tensor("turned", (*key.shape[:2], key.shape[3], key.shape[2]), _EXACT)
        scores = (*query.shape[:3], key.shape[2])
        scored, shares = self._tensor("scored", scores, _EXACT), self._tensor("shares", scores, _EXACT)
        exact = [self._tensor(f"exact{i}", tensor.shape, _EXACT) for i, tensor in enumerate((query, key, value))]
        made = self._tensor("made", (*query.shape[:3], value.shape[3]), _EXACT)
        for name, tensor in zip(exact, (query, key, value), strict=True):
            yield self._node("Cast", (tensor.name,), name)
        yield self._node("Transpose", (exact[1],), turned, perm=(0, 1, 3, 2))
        yield self._node("MatMul", (exact[0], turned), scored)
        yield self._node("Softmax", (scored,), shares)
        yield self._node("MatMul", (shares, exact[2]), made)
        yield self._node("Cast", (made,), self.result.name)

    def _tensor(self, suffix: str, shape: tuple[int, ...], dtype: str) -> str:
        name = f"{self.result.name}.{suffix}"
        self.tensors[name] = Tensor(name, shape, dtype)
        return name

    def _node(self, op: str, inputs: tuple[str, ...], output: str, **attributes: tuple[int, ...]) -> Node:
        return Node(f"{self.node.name}.{output}", op, inputs, (output,), attributes, module=self.node.module)


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
