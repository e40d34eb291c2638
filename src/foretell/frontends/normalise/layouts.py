"""Frontends: changes images from channels-last (NHWC) to channels-first (NCHW), as in PyTorch, and drops transposes.

Idea: TensorFlow and JAX keep images channels-last; ONNX convolutions want channels-first, so converters put a transpose
before and after each. A transpose to NHWC is pushed down through every operator that works on either layout, until it
meets its inverse and both disappear, or until it meets an operator that needs NHWC. The input of the graph becomes NCHW
if it reaches a convolution through a transpose.

Limits: an operator that is neither element-wise nor listed below keeps its layout, and the transpose in front of it
stays. A flattened image has its elements in another order afterwards; that only permutes the weight that reads it, and
costs do not depend on it.
"""

from dataclasses import replace

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.operators import lookup

_REDUCING = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin")
_BY_AXIS = ("Concat", "Softmax", "LogSoftmax", "Split")
_MAX_STEPS = 20_000  # each transpose passes each node once; this only guards against an endless loop


def settle_layouts(draft: Draft) -> None:
    """Transpose the inputs, push transposes down, and drop pairs."""
    for name in draft.inputs:
        _transpose_input(draft, name)
    waiting = [n for n in draft.nodes.values() if _is_to_nhwc(n)]
    for _ in range(_MAX_STEPS):
        if not waiting:
            return
        node = waiting.pop()
        if draft.maker(node.outputs[0]) is node:
            waiting.extend(_push_down(draft, node))


def _nhwc_order(rank: int) -> tuple[int, ...]:
    """The permutation from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def _nchw_order(rank: int) -> tuple[int, ...]:
    """The permutation from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def _is_to_nhwc(node: Node) -> bool:
    order = node.integers("perm") if node.op == "Transpose" else None
    return order is not None and len(order) > 2 and order == _nhwc_order(len(order))


def _is_to_nchw(node: Node) -> bool:
    order = node.integers("perm") if node.op == "Transpose" else None
    return order is not None and len(order) > 2 and order == _nchw_order(len(order))


def _transpose_input(draft: Draft, name: str) -> None:
    """Make an input NCHW if it reaches a transpose to NCHW through element-wise operators."""
    shape = draft.shape(name)
    if not 3 <= len(shape) <= 5 or name in draft.outputs or not _reaches_transpose(draft, name):
        return
    nchw_shape = tuple(shape[a] for a in _nchw_order(len(shape)))
    draft.tensors[name] = replace(draft.tensors[name], shape=nchw_shape)
    readers = draft.readers(name)
    nhwc_tensor = draft.tensor(name, shape, "activation")
    draft.redirect(name, nhwc_tensor)
    draft.put("Transpose", (name,), (nhwc_tensor,), {"perm": _nhwc_order(len(shape))}, like=readers[0])


def _reaches_transpose(draft: Draft, name: str) -> bool:
    """Whether a tensor reaches a transpose to NCHW through element-wise operators and pads."""
    waiting, seen = [name], {name}
    while waiting and len(seen) < 64:
        current = waiting.pop()
        for reader in draft.readers(current):
            if _is_to_nchw(reader):
                return True
            target = reader.outputs[0]
            passes = lookup(reader.op, reader.domain).kind == "elementwise" or reader.op == "Pad"
            if passes and target not in seen and len(draft.shape(target)) == len(draft.shape(name)):
                seen.add(target)
                waiting.append(target)
    return False


def _push_down(draft: Draft, transpose: Node) -> list[Node]:
    """Move a transpose behind its readers; returns the transposes that result."""
    source, nhwc_tensor = transpose.inputs[0], transpose.outputs[0]
    moved: list[Node] = []
    for reader in draft.readers(nhwc_tensor):
        # the two transposes cancel: the reader of the second one can read the original
        if _is_to_nchw(reader):
            _drop_pair(draft, source, reader)
        elif _flattens(draft, reader, nhwc_tensor):
            draft.change(reader, inputs=(source, *reader.inputs[1:]))
        else:
            moved += _move_behind(draft, reader)
    if not draft.readers(nhwc_tensor) and nhwc_tensor not in draft.outputs:
        draft.remove([transpose])
    return moved


def _drop_pair(draft: Draft, source: str, back: Node) -> None:
    target = back.outputs[0]
    if target in draft.outputs:
        return
    draft.remove([back])
    draft.redirect(target, source)


def _flattens(draft: Draft, reader: Node, name: str) -> bool:
    """Whether a reader flattens everything but the batch: the order of elements then only permutes a later weight."""
    shape, target = draft.shape(name), draft.shape(reader.outputs[0])
    return reader.op in ("Reshape", "Flatten") and len(target) == 2 and target[0] == shape[0] and len(shape) > 2


def _move_behind(draft: Draft, node: Node) -> list[Node]:
    """Make a node work on NCHW operands and put the transpose behind it; returns nothing if it needs NHWC."""
    if len(node.outputs) != 1 or node.bodies:
        return []
    target, rank = node.outputs[0], len(draft.shape(node.inputs[0])) if node.inputs[0] else 0
    kind = lookup(node.op, node.domain).kind
    if node.op in _REDUCING:
        return _move_behind_reduction(draft, node)
    if len(draft.shape(target)) < 3:
        return []
    attributes: dict[str, Attribute] = dict(node.attributes)
    rank = len(draft.shape(target))
    # an axis or pads that were given for NHWC are translated to NCHW
    if node.op in _BY_AXIS and node.op != "Split":
        attributes["axis"] = _nhwc_order(rank)[node.integer("axis", -1) % rank]
    elif node.op == "Pad":
        pads = node.integers("pads")
        if pads is not None and len(pads) == 2 * rank:
            order = _nchw_order(rank)
            attributes["pads"] = (*(pads[a] for a in order), *(pads[rank + a] for a in order))
    elif kind != "elementwise" or node.op in ("Resize", "GridSample", "AffineGrid"):
        return []
    inputs = [_nchw_operand(draft, name, rank, node) for name in node.inputs]
    if None in inputs:
        return []
    shape = draft.shape(target)
    result = draft.tensor(target, tuple(shape[a] for a in _nchw_order(rank)), "activation")
    draft.change(node, inputs=tuple(str(i or "") for i in inputs), outputs=(result,), attributes=attributes)
    return [draft.put("Transpose", (result,), (target,), {"perm": _nhwc_order(rank)}, like=node)]


def _nchw_operand(draft: Draft, name: str, rank: int, node: Node) -> str | None:
    """The NCHW form of an operand; None if there is none."""
    if not name or not draft.shape(name) or draft.tensors[name].elements == 1:
        return name
    shape = draft.shape(name)
    # a weight is broadcast from the right: fill its shape up before its axes are permuted
    if draft.is_weight(name):
        aligned = (1,) * (rank - len(shape)) + shape
        return draft.weight(name, tuple(aligned[a] for a in _nchw_order(rank))[1:] if aligned[0] == 1 else aligned)
    if len(shape) != rank:
        return None
    maker = draft.maker(name)
    if maker is not None and _is_to_nhwc(maker):
        return maker.inputs[0]
    transposed = draft.tensor(name, tuple(shape[a] for a in _nchw_order(rank)), "activation")
    draft.put("Transpose", (name,), (transposed,), {"perm": _nchw_order(rank)}, like=node)
    return transposed


def _move_behind_reduction(draft: Draft, node: Node) -> list[Node]:
    """Move a transpose behind a reduction, or drop it if only batch and channels are left."""
    transpose = draft.maker(node.inputs[0])
    axes = node.integers("axes")
    if transpose is None or axes is None or any(node.inputs[1:]):
        return []
    rank = len(draft.shape(node.inputs[0]))
    reduced = {a % rank for a in axes}
    nchw_axes = tuple(sorted(_nhwc_order(rank)[a] for a in reduced))
    target = node.outputs[0]
    if len(draft.shape(target)) == rank:
        shape = draft.shape(target)
        result = draft.tensor(target, tuple(shape[a] for a in _nchw_order(rank)), "activation")
        draft.change(
            node, inputs=(transpose.inputs[0],), outputs=(result,), attributes={**node.attributes, "axes": nchw_axes}
        )
        return [draft.put("Transpose", (result,), (target,), {"perm": _nhwc_order(rank)}, like=node)]
    if reduced == set(range(1, rank - 1)):  # over all pixels: batch and channels are left, in the same order
        draft.change(node, inputs=(transpose.inputs[0],), attributes={**node.attributes, "axes": nchw_axes})
    return []
