"""Advisors: rounds channel counts up to what fills the tiles of tensor cores.

Idea: tensor cores multiply blocks whose sides are multiples of 8 numbers of 16 bits; libraries pad what is smaller, and
fall back to slower kernels where rows are not aligned. A layer of 30 channels may cost more than one of 32. Every axis
of every tensor gets a name; operators say which axes must have the same size (a convolution's output channels and its
bias, both operands of an addition). What is tied together is rounded up together.

Limits: axes that meet the graph's inputs or outputs, or an operator without a rule here (a Concat, a Reshape that moves
channels, an attention), keep their size. The new channels are new weights: the model must be trained again.
"""

from collections.abc import Iterator
from dataclasses import replace

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.operators import lookup

MULTIPLE = 8  # numbers of 16 bits in 16 bytes, the least that tensor cores load at once
_MOST_GROWTH = 1.5  # a layer that would grow by more is not a layer with an unlucky count

Axis = tuple[str, int]
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "AdaptiveAveragePool"})
_IMAGES = frozenset({"Resize", "Upsample", "Pad"})


def fill_tiles(graph: Graph, multiple: int = MULTIPLE) -> Graph:
    """The graph with channel counts rounded up to a multiple; the same graph where none can or need be."""
    classes = _Classes()
    for name in (*graph.inputs, *graph.outputs):
        classes.pin_all(graph.tensors[name])
    for node in graph.nodes:
        if not _tie(classes, graph, node):
            for name in (*node.inputs, *node.outputs):
                if name:
                    classes.pin_all(graph.tensors[name])
    channels = {classes.find(axis) for node in graph.nodes for axis in _channel_axes(graph, node)}
    sizes: dict[Axis, int] = {}
    for axis in channels - classes.pinned():
        size = graph.tensors[axis[0]].shape[axis[1]]
        padded = -(-size // multiple) * multiple
        if size > 1 and size != padded <= size * _MOST_GROWTH:
            sizes[axis] = padded
    if not sizes:
        return graph
    tensors = {name: _resized(tensor, classes, sizes) for name, tensor in graph.tensors.items()}
    nodes = tuple(_regrouped(node, graph, tensors) for node in graph.nodes)
    return replace(graph, nodes=nodes, tensors=tensors)


class _Classes:
    """Axes that must have the same size (disjoint sets), and those that must keep it."""

    def __init__(self) -> None:
        self._parent: dict[Axis, Axis] = {}
        self._pinned: set[Axis] = set()

    def find(self, axis: Axis) -> Axis:
        while (parent := self._parent.get(axis, axis)) != axis:
            self._parent[axis] = axis = self._parent.get(parent, parent)
        return axis

    def tie(self, one: Axis, other: Axis) -> None:
        first, second = self.find(one), self.find(other)
        if first != second:
            self._parent[second] = first

    def pin(self, axis: Axis) -> None:
        self._pinned.add(axis)

    def pin_all(self, tensor: Tensor) -> None:
        for axis in range(len(tensor.shape)):
            self.pin((tensor.name, axis))

    def pinned(self) -> set[Axis]:
        return {self.find(axis) for axis in self._pinned}


def _channel_axes(graph: Graph, node: Node) -> Iterator[Axis]:
    """The axis of a convolution's or a linear layer's result that its weights make."""
    if node.op == "Conv":
        yield node.outputs[0], 1
    elif node.op in ("Gemm", "MatMul") and graph.tensors[node.inputs[1]].kind == "parameter":
        yield node.outputs[0], len(graph.tensors[node.outputs[0]].shape) - 1


def _tie(classes: _Classes, graph: Graph, node: Node) -> bool:
    """Tie the axes of a node's tensors; False where there is no rule."""
    shapes = {name: graph.tensors[name].shape for name in (*node.inputs, *node.outputs) if name}
    if node.bodies or any(node.outputs[1:]):
        return False
    source, result = node.inputs[0] if node.inputs else "", node.outputs[0]
    if node.op == "Conv":
        return _tie_convolution(classes, node, shapes)
    if node.op in ("Gemm", "MatMul"):
        return _tie_product(classes, graph, node, shapes)
    if node.op == "BatchNormalization":
        for name in node.inputs[1:]:
            classes.tie((source, 1), (name, 0))
        return _tie_same(classes, source, result, shapes)
    if node.op == "LayerNormalization" and len(node.inputs) > 1:
        last = len(shapes[source]) - 1
        for name in node.inputs[1:]:
            if name and len(shapes[name]) == 1:
                classes.tie((source, last), (name, 0))
            elif name:
                return False
        return _tie_same(classes, source, result, shapes)
    if node.op in _POOLS or node.op in _IMAGES:
        if len(shapes[source]) != len(shapes[result]) or shapes[source][:2] != shapes[result][:2]:
            return False
        classes.tie((source, 1), (result, 1))
        return True
    if node.op in ("Reshape", "Flatten", "Squeeze"):
        # only what drops trailing axes of one element, as after a global pool
        kept = shapes[result]
        if shapes[source] != kept + (1,) * (len(shapes[source]) - len(kept)):
            return False
        for axis in range(len(kept)):
            classes.tie((source, axis), (result, axis))
        return True
    if lookup(node.op, node.domain).kind == "elementwise":
        return _tie_broadcast(classes, node, shapes)
    return False


def _tie_same(classes: _Classes, source: str, result: str, shapes: dict[str, tuple[int, ...]]) -> bool:
    if shapes[source] != shapes[result]:
        return False
    for axis in range(len(shapes[source])):
        classes.tie((source, axis), (result, axis))
    return True


def _tie_convolution(classes: _Classes, node: Node, shapes: dict[str, tuple[int, ...]]) -> bool:
    source, weight, result, groups = node.inputs[0], node.inputs[1], node.outputs[0], node.integer("group", 1)
    classes.tie((result, 1), (weight, 0))
    if len(node.inputs) > 2 and node.inputs[2]:
        classes.tie((result, 1), (node.inputs[2], 0))
    if groups == 1:
        classes.tie((source, 1), (weight, 1))
    elif groups == shapes[source][1] == shapes[result][1]:
        classes.tie((source, 1), (result, 1))  # depthwise: `_regrouped` makes as many groups
    else:
        classes.pin((source, 1))
        classes.pin((result, 1))
    return True


def _tie_product(classes: _Classes, graph: Graph, node: Node, shapes: dict[str, tuple[int, ...]]) -> bool:
    source, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if graph.tensors[weight].kind != "parameter" or len(shapes[weight]) != 2 or node.integer("transA", 0):
        return False
    flipped = node.integer("transB", 0)
    last, made = len(shapes[source]) - 1, len(shapes[result]) - 1
    classes.tie((source, last), (weight, 1 if flipped else 0))
    classes.tie((result, made), (weight, 0 if flipped else 1))
    for axis in range(last):
        classes.tie((source, axis), (result, axis))
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = node.inputs[2]
        if len(shapes[bias]) != 1:
            return False
        classes.tie((result, made), (bias, 0))
    return True


def _tie_broadcast(classes: _Classes, node: Node, shapes: dict[str, tuple[int, ...]]) -> bool:
    """Axes align from the right; one of a single element is stretched and stays."""
    result = node.outputs[0]
    rank = len(shapes[result])
    for name in node.inputs:
        for axis, size in enumerate(shapes[name] if name else ()):
            aligned = axis + rank - len(shapes[name])
            if aligned < 0 or size not in (1, shapes[result][aligned]):
                return False
            if size == shapes[result][aligned]:
                classes.tie((result, aligned), (name, axis))
            else:
                classes.pin((name, axis))
    return True


def _resized(tensor: Tensor, classes: _Classes, sizes: dict[Axis, int]) -> Tensor:
    shape = tuple(sizes.get(classes.find((tensor.name, axis)), size) for axis, size in enumerate(tensor.shape))
    return tensor if shape == tensor.shape else replace(tensor, shape=shape)


def _regrouped(node: Node, graph: Graph, tensors: dict[str, Tensor]) -> Node:
    """A depthwise convolution has as many groups as channels."""
    groups = node.integer("group", 1)
    if node.op != "Conv" or groups == 1 or groups != graph.tensors[node.inputs[0]].shape[1]:
        return node
    attributes: dict[str, Attribute] = {**node.attributes, "group": tensors[node.inputs[0]].shape[1]}
    return replace(node, attributes=attributes)
