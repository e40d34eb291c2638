"""frontends: images with their channels last → channels first, as PyTorch has them; the transposes between go.

A transpose to channels last is pushed down through whatever does not mind, until it meets its inverse, or something
that does mind. The graph's input is turned where a convolution reads it turned.
"""

from dataclasses import replace

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.operators import lookup

_REDUCING = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin")
_BY_AXIS = ("Concat", "Softmax", "LogSoftmax", "Split")
_MOST = 20_000  # steps: every node is passed once by each transpose


def settle_layouts(draft: Draft) -> None:
    """Turn the inputs, push transposes down, drop pairs."""
    for name in draft.inputs:
        _turn_input(draft, name)
    waiting = [n for n in draft.nodes.values() if _to_last(n)]
    for _ in range(_MOST):
        if not waiting:
            return
        node = waiting.pop()
        if draft.maker(node.outputs[0]) is node:
            waiting.extend(_push(draft, node))


def _last(rank: int) -> tuple[int, ...]:
    """The order that puts channels last."""
    return (0, *range(2, rank), 1)


def _first(rank: int) -> tuple[int, ...]:
    """The order that puts them first."""
    return (0, rank - 1, *range(1, rank - 1))


def _to_last(node: Node) -> bool:
    order = node.integers("perm") if node.op == "Transpose" else None
    return order is not None and len(order) > 2 and order == _last(len(order))


def _to_first(node: Node) -> bool:
    order = node.integers("perm") if node.op == "Transpose" else None
    return order is not None and len(order) > 2 and order == _first(len(order))


def _turn_input(draft: Draft, name: str) -> None:
    """An image that a convolution reads turned is one with channels first."""
    shape = draft.shape(name)
    if not 3 <= len(shape) <= 5 or name in draft.outputs or not _reaches_turn(draft, name):
        return
    turned = tuple(shape[a] for a in _first(len(shape)))
    draft.tensors[name] = replace(draft.tensors[name], shape=turned)
    readers = draft.readers(name)
    seen = draft.tensor(name, shape, "activation")
    draft.redirect(name, seen)
    draft.put("Transpose", (name,), (seen,), {"perm": _last(len(shape))}, like=readers[0])


def _reaches_turn(draft: Draft, name: str) -> bool:
    waiting, seen = [name], {name}
    while waiting and len(seen) < 64:
        current = waiting.pop()
        for reader in draft.readers(current):
            if _to_first(reader):
                return True
            target = reader.outputs[0]
            passes = lookup(reader.op, reader.domain).kind == "elementwise" or reader.op == "Pad"
            if passes and target not in seen and len(draft.shape(target)) == len(draft.shape(name)):
                seen.add(target)
                waiting.append(target)
    return False


def _push(draft: Draft, turn: Node) -> list[Node]:
    """Move a transpose behind its readers; returns the transposes that came of it."""
    source, seen = turn.inputs[0], turn.outputs[0]
    made: list[Node] = []
    for reader in draft.readers(seen):
        if _to_first(reader):
            _drop_pair(draft, source, reader)
        elif _flattens(draft, reader, seen):
            draft.change(reader, inputs=(source, *reader.inputs[1:]))
        else:
            made += _behind(draft, reader)
    if not draft.readers(seen) and seen not in draft.outputs:
        draft.remove([turn])
    return made


def _drop_pair(draft: Draft, source: str, back: Node) -> None:
    target = back.outputs[0]
    if target in draft.outputs:
        return
    draft.remove([back])
    draft.redirect(target, source)


def _flattens(draft: Draft, reader: Node, seen: str) -> bool:
    """All but the batch in one axis: which order its elements have is up to the weights behind it."""
    shape, target = draft.shape(seen), draft.shape(reader.outputs[0])
    return reader.op in ("Reshape", "Flatten") and len(target) == 2 and target[0] == shape[0] and len(shape) > 2


def _behind(draft: Draft, node: Node) -> list[Node]:
    """A node on channels-first operands, with the transpose behind it; nothing where it minds."""
    if len(node.outputs) != 1 or node.bodies:
        return []
    target, rank = node.outputs[0], len(draft.shape(node.inputs[0])) if node.inputs[0] else 0
    kind = lookup(node.op, node.domain).kind
    if node.op in _REDUCING:
        return _reduce_behind(draft, node)
    if len(draft.shape(target)) < 3:
        return []
    attributes: dict[str, Attribute] = dict(node.attributes)
    rank = len(draft.shape(target))
    if node.op in _BY_AXIS and node.op != "Split":
        attributes["axis"] = _last(rank)[node.integer("axis", -1) % rank]
    elif node.op == "Pad":
        pads = node.integers("pads")
        if pads is not None and len(pads) == 2 * rank:
            order = _first(rank)
            attributes["pads"] = (*(pads[a] for a in order), *(pads[rank + a] for a in order))
    elif kind != "elementwise" or node.op in ("Resize", "GridSample", "AffineGrid"):
        return []
    inputs = [_turned_operand(draft, name, rank, node) for name in node.inputs]
    if None in inputs:
        return []
    shape = draft.shape(target)
    result = draft.tensor(target, tuple(shape[a] for a in _first(rank)), "activation")
    draft.change(node, inputs=tuple(str(i or "") for i in inputs), outputs=(result,), attributes=attributes)
    return [draft.put("Transpose", (result,), (target,), {"perm": _last(rank)}, like=node)]


def _turned_operand(draft: Draft, name: str, rank: int, node: Node) -> str | None:
    """An operand with channels first; None where it cannot be."""
    if not name or not draft.shape(name) or draft.tensors[name].elements == 1:
        return name
    shape = draft.shape(name)
    if draft.is_weight(name):
        aligned = (1,) * (rank - len(shape)) + shape
        return draft.weight(name, tuple(aligned[a] for a in _first(rank))[1:] if aligned[0] == 1 else aligned)
    if len(shape) != rank:
        return None
    maker = draft.maker(name)
    if maker is not None and _to_last(maker):
        return maker.inputs[0]
    turned = draft.tensor(name, tuple(shape[a] for a in _first(rank)), "activation")
    draft.put("Transpose", (name,), (turned,), {"perm": _first(rank)}, like=node)
    return turned


def _reduce_behind(draft: Draft, node: Node) -> list[Node]:
    turn = draft.maker(node.inputs[0])
    axes = node.integers("axes")
    if turn is None or axes is None or any(node.inputs[1:]):
        return []
    rank = len(draft.shape(node.inputs[0]))
    plain = {a % rank for a in axes}
    moved = tuple(sorted(_last(rank)[a] for a in plain))
    target = node.outputs[0]
    if len(draft.shape(target)) == rank:
        shape = draft.shape(target)
        result = draft.tensor(target, tuple(shape[a] for a in _first(rank)), "activation")
        draft.change(node, inputs=(turn.inputs[0],), outputs=(result,), attributes={**node.attributes, "axes": moved})
        return [draft.put("Transpose", (result,), (target,), {"perm": _last(rank)}, like=node)]
    if plain == set(range(1, rank - 1)):  # all of space: batch and channels are left, in this order
        draft.change(node, inputs=(turn.inputs[0],), attributes={**node.attributes, "axes": moved})
    return []
