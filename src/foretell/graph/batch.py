"""graph: which axis of every tensor grows with the batch size, found by following it through the operators."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from foretell.graph.graph import Graph
from foretell.graph.node import Node
from foretell.graph.ops import lookup
from foretell.graph.tensor import Tensor

_RESHAPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def mark_batch_axes(graph: Graph) -> Graph:
    """The same graph with ``batch_axis`` set on every tensor that depends on the batch.

    The axes of the inputs must be set; the rest follows. Tensors made from nothing (``zeros(batch, …)``) or by expanding a
    weight carry the batch where their size is the batch size and that size is not 1.
    """
    axes: dict[str, int | None] = {n: t.batch_axis for n, t in graph.tensors.items() if t.kind == "input"}
    for node in graph.nodes:
        for index, output in enumerate(node.outputs):
            if output:
                axes[output] = _follow(graph, node, index, axes)
        if node.op == "Concat":
            _demand(graph, node, axes)
    tensors = {}
    for name, tensor in graph.tensors.items():
        axis = axes.get(name)
        fits = axis is not None and axis < len(tensor.shape) and tensor.shape[axis] % graph.batch_size == 0
        tensors[name] = replace(tensor, batch_axis=axis if fits else None)
    return replace(graph, tensors=tensors)


def _follow(graph: Graph, node: Node, index: int, axes: Mapping[str, int | None]) -> int | None:
    out = graph.tensors[node.outputs[index]]
    kind = lookup(node.op, node.domain).kind
    carriers = [(i, graph.tensors[n], axis) for i, n in enumerate(node.inputs) if n and (axis := axes.get(n)) is not None]
    if kind == "free":
        return None
    if not carriers:
        return _made_for_batch(graph, node, out, kind)
    position, source, axis = carriers[0]
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(graph, node, index, out, position, source, axis)
    if node.op in _RESHAPING:
        return _reshaped_axis(source.shape, axis, out.shape, graph.batch_size)
    if kind == "reduction":
        return _reduced_axis(node, source, axis, out)
    if kind in ("elementwise", "control", "unknown", "movement", "generator") or node.op in ("Expand", "MatMul", "Einsum"):
        return _aligned_axis(graph, node, axes, out)
    return axis if len(out.shape) == len(source.shape) else _first_multiple(out, graph.batch_size)


def _made_for_batch(graph: Graph, node: Node, out: Tensor, kind: str) -> int | None:
    """A tensor of no batch-dependent source: the batch shows only as a size, told apart where it is not 1."""
    size = graph.batch_size
    if size == 1:
        return None
    if kind == "generator":
        return next((i for i, d in enumerate(out.shape) if d == size), None)
    if node.op in ("Expand", "Tile"):
        source = graph.tensors[node.inputs[0]].shape
        padded = (1,) * (len(out.shape) - len(source)) + source
        return next((i for i, (d, s) in enumerate(zip(out.shape, padded)) if d != s and d % size == 0), None)
    return None


def _aligned_axis(graph: Graph, node: Node, axes: Mapping[str, int | None], out: Tensor) -> int | None:
    """Broadcasting aligns axes from the right; of several candidates the one whose size is the output's wins."""
    found = []
    for name in node.inputs:
        axis = axes.get(name) if name else None
        if axis is not None:
            shape = graph.tensors[name].shape
            aligned = axis + len(out.shape) - len(shape)
            if 0 <= aligned < len(out.shape):
                found.append((shape[axis] == out.shape[aligned], -aligned))
    return -max(found)[1] if found else _first_multiple(out, graph.batch_size)


def _first_multiple(out: Tensor, size: int) -> int | None:
    return next((i for i, d in enumerate(out.shape) if d and d % size == 0), None)


def _reshaped_axis(shape: tuple[int, ...], axis: int, new_shape: tuple[int, ...], size: int) -> int | None:
    """The batch starts where the product of the axes before it is the same.

    >>> _reshaped_axis((4, 56, 56, 96), 0, (256, 7, 7, 96), 4), _reshaped_axis((12, 4, 64), 1, (12, 1, 4, 64), 4)
    (0, 2)
    """
    before = prod(shape[:axis])
    seen = 1
    for i, d in enumerate(new_shape):
        if seen == before and d % size == 0 and (d != 1 or shape[axis] == 1):
            return i
        if seen < before < seen * d and d % size == 0:
            return i  # merged with an axis outside it: their product still grows with the batch
        seen *= d
    return None


def _reduced_axis(node: Node, source: Tensor, axis: int, out: Tensor) -> int | None:
    if len(out.shape) == len(source.shape):
        return axis if out.shape[axis] == source.shape[axis] else None
    rank = len(source.shape)
    reduced = node.integers("axes") or ((node.integer("axis", 0),) if "axis" in node.attributes else tuple(range(rank)))
    gone = {a % rank for a in reduced}
    return None if axis in gone else axis - sum(a < axis for a in gone)


def _transposed(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    perm = node.integers("perm") or tuple(range(len(source.shape) - 1, -1, -1))
    return perm.index(axis)


def _selected(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    removed = node.integer("axis", 0) % len(source.shape)
    return None if axis == removed else axis - (removed < axis)


def _gathered(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    along = node.integer("axis", 0) % max(len(graph.tensors[node.inputs[0]].shape), 1)
    if position == 1:
        return along + axis
    rank = len(graph.tensors[node.inputs[1]].shape) if len(node.inputs) > 1 and node.inputs[1] else 0
    if axis == along:
        return _first_multiple(out, graph.batch_size)
    return axis if axis < along else axis + rank - 1


def _recurrent(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    if "hidden_size" not in node.attributes:  # PyTorch: output (steps, batch, …) or batch first; states (layers, batch, …)
        return axis if index == 0 else 1
    batch_first = node.integer("layout", 0)
    return {4: 0 if batch_first else 2, 3: 0 if batch_first else 1}.get(len(out.shape))


def _multiplied(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    if len(source.shape) != 2:
        return axis
    transposed = node.integer("transA", 0) if position == 0 else node.integer("transB", 0)
    return axis ^ 1 if transposed else axis


def _same_axis(graph: Graph, node: Node, index: int, out: Tensor, position: int, source: Tensor, axis: int) -> int | None:
    return axis if len(out.shape) == len(source.shape) else _first_multiple(out, graph.batch_size)


_RULES = {
    "Transpose": _transposed,
    "Select": _selected,
    "Gather": _gathered,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Gemm": _multiplied,
    "Concat": _same_axis,
    "CumSum": _same_axis,
    "Resize": _same_axis,
    "Pad": _same_axis,
}


def _demand(graph: Graph, node: Node, axes: dict[str, int | None]) -> None:
    """Pieces joined with a batch-dependent one must carry the batch too; tell the views that made them."""
    axis = axes.get(node.outputs[0])
    joined = node.integer("axis", 0) % max(len(graph.tensors[node.outputs[0]].shape), 1)
    if axis is None or axis == joined:
        return
    for name in node.inputs:
        wanted: int | None = axis
        while name and wanted is not None and axes.get(name) is None and graph.tensors[name].kind == "activation":
            axes[name] = wanted
            maker = graph.nodes[graph.producers[name]]
            if maker.op not in ("Identity", "Cast", "Contiguous", "Copy", *_RESHAPING) or not maker.inputs:
                break
            source = graph.tensors[maker.inputs[0]]
            wanted = _reshaped_axis(graph.tensors[name].shape, wanted, source.shape, graph.batch_size)
            name = maker.inputs[0]
