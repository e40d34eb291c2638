"""Graph: finds the axis of every tensor that grows with the batch size.

A model is converted at one batch size and predicted at many. To change the batch size, one must know which axis of
every tensor belongs to the batch (`Graph.with_batch` scales those axes).

Idea: the front-end marks the batch axis of the inputs. The nodes are then visited in the order in which they run. For
each output a rule of its operator says where the batch axis of the input went: a Transpose permutes it, a Reshape moves
it to where the product of the axes before it is the same, a Gemm puts it into the rows, an Einsum keeps its letter.
Operators without a rule keep the axis if the rank stays the same. Element-wise operators align axes from the right, as
broadcasting does.

Two cases have no input to follow. A tensor made from nothing (``zeros(batch, …)``) and an expanded weight show the
batch only as a size. Front-ends therefore trace with a batch of 11, a size that hardly any layer has by itself: there,
a multiple of 11 is taken for the batch. And an operand that must agree with its neighbours (a piece of a Concat, the
first state of an LSTM) is given their axis afterwards, together with the views it came from.

Limits: a tensor has one batch axis at most. An axis that merges the batch with a dimension in front of it counts as the
batch axis. With batch size 1 nothing can be recognised by its size. An axis that the batch size does not divide is not
marked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod

from foretell.frozen import dataclass
from foretell.graph.cost.arithmetic import einsum_indices
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import Tensor

# operators that keep the order of elements: the batch axis can be followed through them backwards, too
_ORDER_PRESERVING = frozenset({"Identity", "Cast", "Contiguous", "Copy", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def mark_batch_axes(graph: Graph) -> Graph:
    """Return the graph with ``batch_axis`` set on every tensor that depends on the batch.

    The axes of the inputs must be set already; see the module's docstring for how the others are found.
    """
    axes: dict[str, int | None] = {n: t.batch_axis for n, t in graph.tensors.items() if t.kind == "input"}
    for node in graph.nodes:
        for index, output in enumerate(node.outputs):
            if output:
                axes[output] = _output_axis(graph, node, index, axes)
        for name, required in _required_axes(graph, node, axes):
            _set_backwards(graph, name, required, axes)
    tensors = {}
    for name, tensor in graph.tensors.items():
        axis = axes.get(name)
        fits = axis is not None and axis < len(tensor.shape) and tensor.shape[axis] % graph.batch_size == 0
        batch_axis = axis if fits else None
        tensors[name] = tensor if batch_axis == tensor.batch_axis else replace(tensor, batch_axis=batch_axis)
    return replace(graph, tensors=tensors)


def without_batch(graph: Graph, warning: str) -> Graph:
    """The graph as one item: no axis is the batch, and a warning says so."""
    tensors = {n: t if t.batch_axis is None else replace(t, batch_axis=None) for n, t in graph.tensors.items()}
    nodes = tuple(
        replace(node, bodies=tuple(without_batch(body, "") for body in node.bodies)) if node.bodies else node
        for node in graph.nodes
    )
    warnings = (*graph.warnings, warning) if warning else graph.warnings
    return replace(graph, tensors=tensors, nodes=nodes, batch_size=1, warnings=warnings)


@dataclass(frozen=True, slots=True)
class _Step:
    """One node to follow the batch through: an output, the first input that carries the batch, and its axis there."""

    graph: Graph
    node: Node
    index: int
    out: Tensor
    position: int
    source: Tensor
    axis: int

    @property
    def same_axis(self) -> int | None:
        """The axis of the input, where the rank stays; else the first axis that the batch size divides."""
        if len(self.out.shape) == len(self.source.shape):
            return self.axis
        return _first_multiple(self.out, self.graph.batch_size)


def _output_axis(graph: Graph, node: Node, index: int, axes: Mapping[str, int | None]) -> int | None:
    """The batch axis of one output of a node: by the rule of its operator, or by that of its kind."""
    out = graph.tensors[node.outputs[index]]
    kind = lookup(node.op, node.domain).kind
    if kind == "free":
        return None
    # the first input that carries the batch decides
    position = next((i for i, name in enumerate(node.inputs) if name and axes.get(name) is not None), None)
    axis = axes[node.inputs[position]] if position is not None else None
    if position is None or axis is None:
        return _axis_by_size(graph, node, out, kind)
    step = _Step(graph, node, index, out, position, graph.tensors[node.inputs[position]], axis)
    rule = _RULES.get(node.op)
    if rule is not None:
        return rule(step)
    if kind == "reduction":
        return _reduced(step)
    if kind in ("elementwise", "control", "unknown", "movement", "generator") or node.op in ("Expand", "MatMul"):
        return _aligned_axis(graph, node, axes, out)
    return step.same_axis


def _axis_by_size(graph: Graph, node: Node, out: Tensor, kind: str) -> int | None:
    """The batch axis of a tensor that comes from no batch-dependent input: only its size can show the batch."""
    size = graph.batch_size
    if size == 1:
        return None
    if kind == "generator":
        # hardly any layer has a multiple of 11 by itself, so it comes from the batch; a multiple of 8 could be anything
        distinctive = all(size % factor for factor in (2, 3, 5, 7))
        return next((i for i, d in enumerate(out.shape) if d == size or (distinctive and d and d % size == 0)), None)
    if node.op in ("Expand", "Tile"):
        source = graph.tensors[node.inputs[0]].shape
        # the batch is where the expanded tensor has become larger than its source
        padded = (1,) * (len(out.shape) - len(source)) + source
        return next((i for i, (d, s) in enumerate(zip(out.shape, padded)) if d != s and d % size == 0), None)
    return None


def _aligned_axis(graph: Graph, node: Node, axes: Mapping[str, int | None], out: Tensor) -> int | None:
    """The batch axis of a broadcast result: axes align from the right, and the size must be that of the output."""
    candidates = []
    for name in node.inputs:
        axis = axes.get(name) if name else None
        if axis is not None:
            shape = graph.tensors[name].shape
            aligned = axis + len(out.shape) - len(shape)
            if 0 <= aligned < len(out.shape) and shape[axis] == out.shape[aligned]:
                candidates.append(aligned)
    return min(candidates) if candidates else _first_multiple(out, graph.batch_size)


def _first_multiple(out: Tensor, size: int) -> int | None:
    return next((i for i, d in enumerate(out.shape) if d and d % size == 0), None)


def _reshaped_axis(shape: tuple[int, ...], axis: int, new_shape: tuple[int, ...], size: int) -> int | None:
    """The batch axis after a reshape: the one that starts where the product of the axes before it is the same.

    >>> _reshaped_axis((4, 56, 56, 96), 0, (256, 7, 7, 96), 4), _reshaped_axis((12, 4, 64), 1, (12, 1, 4, 64), 4)
    (0, 2)

    An axis that is the product of the batch with an axis in front of it is split into both again.

    >>> _reshaped_axis((176, 64), 0, (16, 11, 64), 11)
    1
    """
    before = prod(shape[:axis])
    behind = before * shape[axis]
    seen = 1
    for i, d in enumerate(new_shape):
        if seen == before and d % size == 0 and (d != 1 or shape[axis] == 1):
            return i
        if seen < before < seen * d and d % size == 0:
            return i  # merged with an axis outside it: their product still grows with the batch
        if size > 1 and before < seen and seen * d <= behind and d % size == 0:
            return i
        seen *= d
    return None


def _reshaped(step: _Step) -> int | None:
    return _reshaped_axis(step.source.shape, step.axis, step.out.shape, step.graph.batch_size)


def _reduced(step: _Step) -> int | None:
    rank, node = len(step.source.shape), step.node
    if len(step.out.shape) == rank:  # keepdims: the batch axis survives unless it was reduced to 1
        return step.axis if step.out.shape[step.axis] == step.source.shape[step.axis] else None
    default_axes = (node.integer("axis", 0),) if "axis" in node.attributes else tuple(range(rank))
    removed = {a % rank for a in node.integers("axes") or default_axes}
    return None if step.axis in removed else step.axis - sum(a < step.axis for a in removed)


def _transposed(step: _Step) -> int | None:
    perm = step.node.integers("perm") or tuple(range(len(step.source.shape) - 1, -1, -1))
    return perm.index(step.axis)


def _selected(step: _Step) -> int | None:
    removed = step.node.integer("axis", 0) % len(step.source.shape)
    return None if step.axis == removed else step.axis - (removed < step.axis)


def _gathered(step: _Step) -> int | None:
    """Gather: the axes of the indices replace the axis that is indexed."""
    graph, node = step.graph, step.node
    along = node.integer("axis", 0) % max(len(graph.tensors[node.inputs[0]].shape), 1)
    if step.position == 1:
        return along + step.axis
    rank = len(graph.tensors[node.inputs[1]].shape) if len(node.inputs) > 1 and node.inputs[1] else 0
    if step.axis == along:
        return _first_multiple(step.out, graph.batch_size)
    return step.axis if step.axis < along else step.axis + rank - 1


def _recurrent(step: _Step) -> int | None:
    """The batch axis of a recurrent layer's output or state.

    PyTorch: the output is (steps, batch, …) or batch first, the states are (layers, batch, …). ONNX, which has the
    attribute ``hidden_size``, adds an axis of directions.
    """
    if "hidden_size" not in step.node.attributes:
        return step.axis if step.index == 0 else 1
    batch_first = step.node.integer("layout", 0)
    return {4: 0 if batch_first else 2, 3: 0 if batch_first else 1}.get(len(step.out.shape))


def _multiplied(step: _Step) -> int | None:
    if len(step.source.shape) != 2:
        return step.axis
    transposed = step.node.integer("transA" if step.position == 0 else "transB", 0)
    return step.axis ^ 1 if transposed else step.axis  # of a matrix: 0 becomes 1, 1 becomes 0


def _contracted(step: _Step) -> int | None:
    """Einsum: the axis that has the batch's index letter in the result, if any has it."""
    shapes = [step.graph.tensors[name].shape for name in step.node.inputs]
    operands, result = einsum_indices(step.node, shapes)
    letter = operands[step.position][step.axis]
    return result.index(letter) if letter in result else None


def _same_axis(step: _Step) -> int | None:
    return step.same_axis


def _joined(step: _Step) -> int | None:
    """PyTorch's ``stack`` is a Concat along a new axis, behind which the others move."""
    new = step.node.integer("axis", 0) % max(len(step.out.shape), 1)
    if (*step.out.shape[:new], *step.out.shape[new + 1 :]) != step.source.shape:
        return step.same_axis
    return step.axis + (new <= step.axis)


_RULES: dict[str, Callable[[_Step], int | None]] = {
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Transpose": _transposed,
    "Select": _selected,
    "Gather": _gathered,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Gemm": _multiplied,
    "Einsum": _contracted,
    "Concat": _joined,
    "CumSum": _same_axis,
    "CumProd": _same_axis,
    "Resize": _same_axis,
    "Pad": _same_axis,
}


def _required_axes(graph: Graph, node: Node, axes: Mapping[str, int | None]) -> Iterator[tuple[str, int]]:
    """Inputs that must carry the batch because others do: the other pieces of a Concat, the first states of an LSTM."""
    if node.op == "Concat":
        # pieces that are joined along the batch axis itself need not carry the batch
        axis = axes.get(node.outputs[0])
        if axis is not None and axis != node.integer("axis", 0) % max(len(graph.tensors[node.outputs[0]].shape), 1):
            yield from ((name, axis) for name in node.inputs)
    elif _RULES.get(node.op) is _recurrent and axes.get(node.inputs[0]) is not None:
        first, states = (5, 2) if "hidden_size" in node.attributes else (1, 2 if node.op == "LSTM" else 1)
        initial_states = [name for name in node.inputs[first : first + states] if name]
        yield from ((name, 1) for name in initial_states if len(graph.tensors[name].shape) == 3)


def _set_backwards(graph: Graph, name: str, axis: int, axes: dict[str, int | None]) -> None:
    """Set the batch axis of a tensor that has none yet, and of the tensors that it was reshaped or copied from."""
    current: int | None = axis
    while name and current is not None and axes.get(name) is None and graph.tensors[name].kind == "activation":
        axes[name] = current
        producer = graph.nodes[graph.producers[name]]
        if producer.op not in _ORDER_PRESERVING or not producer.inputs:
            break
        source = graph.tensors[producer.inputs[0]]
        current = _reshaped_axis(graph.tensors[name].shape, current, source.shape, graph.batch_size)
        name = producer.inputs[0]
