"""Frontends: finds a node that reads across the axis that was taken for the batch, so that it cannot be the batch.

Items of a batch never see each other. A graph network picks rows of its nodes by an index of edges; a recurrent layer
walks along the axis of time; an attention, a product or a convolution sums over tokens, channels or pixels. Where one
of these is the first axis of an input of fixed shape, nobody has said what it is, and it must not be scaled.

A rule reads one node and the batch axes of its operands. Only the batch by itself is looked at, not an axis that it was
merged into: mixtures of experts count the tokens of all items together. Limits: a plain reduction is no proof, because
auxiliary losses are means over a batch; but some output has to keep the batch.
"""

from collections.abc import Callable, Mapping

from foretell.graph import Graph, Node, Tensor
from foretell.graph.cost.arithmetic import einsum_indices
from foretell.graph.ir.operators import lookup

Operands = list[Tensor | None]


def mixes_batch(graph: Graph) -> str | None:
    """The operator that reads across the axis taken for the batch, so that it cannot be one; or None."""
    if graph.batch_size == 1:
        return None
    for node in graph.nodes:
        operands: Operands = [graph.tensors[name] if name else None for name in node.inputs]
        rule = _RULES.get(node.op) or _BY_KIND.get(lookup(node.op, node.domain).kind)
        if rule is not None and operands and rule(node, operands, graph):
            return node.op
        inside = next((op for body in node.bodies if (op := mixes_batch(body))), None)
        if inside is not None:
            return inside
    return None


def keeps_batch(graph: Graph) -> bool:
    """Whether some output has the batch; outputs of one number, such as a loss, say nothing."""
    outputs = [graph.tensors[name] for name in graph.outputs if graph.tensors[name].elements > 1]
    return not outputs or any(tensor.batch_axis is not None for tensor in outputs)


def _axis(tensor: Tensor | None, graph: Graph) -> int | None:
    """The axis of a tensor that is the batch and nothing else; None where it is merged with another one."""
    axis = None if tensor is None else tensor.batch_axis
    return axis if tensor is not None and axis is not None and tensor.shape[axis] == graph.batch_size else None


def _picks(node: Node, operands: Operands, graph: Graph) -> bool:
    """A gather along the batch, by an index without a batch: ``x[arange(batch), last]`` has one row for each item."""
    source, index = operands[0], operands[1] if len(operands) > 1 else None
    axis = _axis(source, graph)
    if source is None or index is None or axis is None or index.batch_axis is not None:
        return False
    out = graph.tensors[node.outputs[0]]
    if node.op == "Gather":
        along: int | None = node.integer("axis", 0) % len(source.shape)
    else:  # of PyTorch's ``x[index]`` only the shape of the result shows the axis
        along = 0 if len(operands) == 2 and out.shape == (*index.shape, *source.shape[1:]) else None
    return along == axis and index.elements not in (1, graph.batch_size)


def _multiplies(node: Node, operands: Operands, graph: Graph) -> bool:
    """A product that sums over the batch, or one that pairs all rows of one input with each other."""
    first, second = operands[0], operands[1] if len(operands) > 1 else None
    if first is None or second is None or len(first.shape) < 2 or len(second.shape) < 2:
        return False
    left, right = _axis(first, graph), _axis(second, graph)
    turned_left, turned_right = (node.op == "Gemm" and bool(node.integer(f"trans{side}", 0)) for side in "AB")
    summed_left = len(first.shape) - (2 if turned_left else 1)
    summed_right = len(second.shape) - (1 if turned_right else 2)
    if left == summed_left or right == summed_right:
        return True
    rows, columns = 2 * len(first.shape) - 3 - summed_left, 2 * len(second.shape) - 3 - summed_right
    is_square = left == rows and right == columns
    return is_square and _origins(graph, first.name) == _origins(graph, second.name)


def _origins(graph: Graph, name: str) -> set[str]:
    """The inputs that a tensor comes from: image and text of a contrastive model meet, but are not the same."""
    found, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current and current not in found:
            found.add(current)
            if current in graph.producers:
                waiting.extend(graph.nodes[graph.producers[current]].inputs)
    return found & set(graph.inputs)


def _contracts(node: Node, operands: Operands, graph: Graph) -> bool:
    """An einsum whose result lacks the letter of the batch, or has one for each of two operands of the same input."""
    tensors = [tensor for tensor in operands if tensor is not None]
    letters, result = einsum_indices(node, [tensor.shape for tensor in tensors])
    batch = {names[axis]: t for names, t in zip(letters, tensors) if (axis := _axis(t, graph)) is not None}
    if not batch.keys() <= set(result):
        return True
    origins = [_origins(graph, tensor.name) for tensor in batch.values()]
    return len(origins) > 1 and origins.count(origins[0]) > 1


def _convolves(_node: Node, operands: Operands, graph: Graph) -> bool:
    """A convolution along the batch, or over it as channels: of an image without a batch, the first axis is that."""
    source, weight = operands[0], operands[1] if len(operands) > 1 else None
    axis = _axis(source, graph)
    unbatched = source is not None and weight is not None and 0 < len(source.shape) < len(weight.shape)
    return axis is not None and (axis > 0 or unbatched)


def _pools(_node: Node, operands: Operands, graph: Graph) -> bool:
    axis = _axis(operands[0], graph)
    return axis is not None and operands[0] is not None and axis >= 2


def _attends(_node: Node, operands: Operands, graph: Graph) -> bool:
    """Tokens attend to each other: the last axes of query and key are tokens and features."""
    return any(
        (axis := _axis(tensor, graph)) is not None and tensor is not None and axis >= max(len(tensor.shape) - 2, 1)
        for tensor in operands[:2]
    )


def _steps(node: Node, operands: Operands, graph: Graph) -> bool:
    """A recurrent layer walks along its axis of time; a packed sequence has its batch sizes beside it."""
    sequence, beside = operands[0], operands[1] if len(operands) > 1 else None
    axis = _axis(sequence, graph)
    if sequence is None or axis is None or node.op.endswith("Cell") or (beside is not None and beside.dtype == "int64"):
        return False
    return axis == (1 if len(sequence.shape) > 2 and node.integer("batch_first", node.integer("layout", 0)) else 0)


def _scans(node: Node, operands: Operands, graph: Graph) -> bool:
    """Inputs of a Scan that are walked through have one axis less inside."""
    body = node.bodies[0] if node.bodies else None
    if body is None:
        return False
    inside: Mapping[str, Tensor] = body.tensors
    pairs = zip(operands, body.inputs)
    return any(
        _axis(tensor, graph) == 0 and tensor is not None and len(inside[name].shape) < len(tensor.shape)
        for tensor, name in pairs
    )


def _along_axis(default: int) -> Callable[[Node, Operands, Graph], bool]:
    """Whether the axis that a node names is the batch."""

    def rule(node: Node, operands: Operands, graph: Graph) -> bool:
        source = operands[0]
        axis = _axis(source, graph)
        named = node.integers("axis") or (default,)  # CumSum of ONNX has it as a tensor of one number
        return source is not None and axis is not None and named[0] % len(source.shape) == axis

    return rule


def _normalises(node: Node, operands: Operands, graph: Graph) -> bool:
    """A layer norm over the batch: PyTorch gives the shape that is normalised, ONNX the first axis of it."""
    source = operands[0]
    axis = _axis(source, graph)
    if source is None or axis is None:
        return False
    rank, shape = len(source.shape), node.integers("shape")
    return axis >= (rank - len(shape) if shape else node.integer("axis", -1) % rank)


_RULES: dict[str, Callable[[Node, Operands, Graph], bool]] = {
    "Gather": _picks,
    "GatherND": _picks,
    "MatMul": _multiplies,
    "Gemm": _multiplies,
    "Einsum": _contracts,
    "Conv": _convolves,
    "ConvTranspose": _convolves,
    "Scan": _scans,
    "Softmax": _along_axis(-1),
    "LogSoftmax": _along_axis(-1),
    "CumSum": _along_axis(-1),
    "CumProd": _along_axis(-1),
    "TopK": _along_axis(-1),
    "LayerNormalization": _normalises,
    "RMSNormalization": _normalises,
}
_BY_KIND = {"attention": _attends, "recurrent": _steps, "pooling": _pools}
