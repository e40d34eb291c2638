"""Frontends: joins the nodes of a batch, layer or RMS normalisation into one operator.

Idea: every norm divides by a standard deviation, so the search starts at each square root. If everything under the root
comes from weights, it is a batch norm at inference, and the chain of element-wise nodes with weights around it is
joined. Otherwise the mean under the root shows what is normalised, and the smallest closed set of nodes around the root
is joined (`find_region`).

Limits: the values of weights are unknown, so ε is not checked. Which weight is the mean is known from the framework's
marks, or from its being subtracted.
"""

from collections.abc import Callable, Iterable

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node
from foretell.graph.ir.operators import lookup

_AFFINE = ("Mul", "Add", "Sub", "Div")
_NORM_OPERATORS = frozenset(
    {"Mul", "Add", "Sub", "Div", "Neg", "Reciprocal", "Sqrt", "Pow", "ReduceMean", "Reshape", "Squeeze", "Unsqueeze"}
    | {"Max", "Relu", "Clip", "Cast", "Identity", "Abs"}
)
_MAX_NODES = 24  # of one norm


def join_norms(draft: Draft) -> None:
    """Look for a norm around every square root. If it depends on weights alone, it belongs to a batch norm."""
    for node in draft.current_nodes():
        if node.op != "Sqrt" or draft.maker(node.outputs[0]) is not node:
            continue
        leaves = _leaves(draft, node.inputs[0])
        if leaves is None:
            _join_layer_norm(draft, node)
        else:
            _join_batch_norm(draft, node)


def _leaves(draft: Draft, name: str) -> list[str] | None:
    """The weights, apart from scalars, that a value is computed from; None if it depends on anything else."""
    leaves: dict[str, None] = {}
    waiting, steps = [name], 0
    while waiting:
        current = waiting.pop()
        if draft.is_weight(current):
            if draft.tensors[current].elements > 1:
                leaves[current] = None
            continue
        maker = draft.maker(current)
        steps += 1
        if maker is None or steps > _MAX_NODES or lookup(maker.op, maker.domain).kind not in ("elementwise", "view"):
            return None
        waiting.extend(i for i in maker.inputs if i)
    return list(leaves)


# ── batch normalisation: (x − mean) / sqrt(var + ε) · γ + β, where everything but x is a weight ───────────────────────


def _join_batch_norm(draft: Draft, root: Node) -> None:
    """Collect the chain of nodes that apply mean, variance, γ and β to x, in whatever order a converter wrote them."""
    variance = _leaves(draft, root.inputs[0])
    middle = _first_product(draft, root.outputs[0])
    if middle is None or not variance or len(variance) != 1:
        return
    node, source = middle
    chain, before = [node], draft.made_by(source, "Sub")
    if before is not None and draft.only_reader(source) is node and _known(draft, before.inputs[1]):
        chain.insert(0, before)
        source = before.inputs[0]
    while (after := draft.only_reader(chain[-1].outputs[0])) is not None and after.op in _AFFINE:
        other_inputs = [i for i in after.inputs if i != chain[-1].outputs[0]]
        if len(other_inputs) != 1 or not _known(draft, other_inputs[0]):
            break
        chain.append(after)
    operands = [i for n in chain for i in n.inputs if _known(draft, i)]
    weights = list(dict.fromkeys(leaf for i in operands for leaf in _leaves(draft, i) or ()))
    _put_batch_norm(draft, chain, source, weights, variance[0])


def _known(draft: Draft, name: str) -> bool:
    return _leaves(draft, name) is not None


def _first_product(draft: Draft, name: str) -> tuple[Node, str] | None:
    """The first product of a constant value (computed from weights alone) and one that is not, and the latter."""
    waiting, steps = [name], 0
    while waiting and steps < _MAX_NODES:
        steps += 1
        current = waiting.pop(0)
        for reader in draft.readers(current):
            if reader.op in ("Mul", "Div"):
                factors = [i for i in reader.inputs if i != current]
                if len(factors) == 1 and not _known(draft, factors[0]):
                    return reader, factors[0]
            if lookup(reader.op, reader.domain).kind in ("elementwise", "view") and _known(draft, reader.outputs[0]):
                waiting.append(reader.outputs[0])
    return None


def _put_batch_norm(draft: Draft, chain: list[Node], source: str, weights: list[str], variance: str) -> None:
    """Replace a chain by a BatchNormalization, if its weights have one element for each channel."""
    shape, size = draft.shape(source), draft.tensors[variance].elements
    output = chain[-1].outputs[0]
    rank = len(shape)
    operand = draft.shape(variance)
    last = len(operand) == 1 or operand[-1] == size
    axis = rank - 1 if last else 1
    fits = rank >= 2 and draft.shape(output) == shape and shape[axis] == size
    if not fits or not 1 <= len(weights) <= 4 or any(draft.tensors[w].elements != size for w in weights):
        return
    # of the weights, the framework marks running statistics as buffers; without marks the subtracted one is the mean
    rest = [w for w in weights if w != variance]
    untrained = [w for w in rest if draft.tensors[w].kind == "buffer"]
    mean = untrained[0] if untrained else _subtracted(draft, chain, rest)
    trained = [w for w in rest if w != mean]
    statistics = [draft.weight(w, (size,), "buffer") if w else "" for w in (mean, variance)]
    learned = [draft.weight(w, (size,)) for w in trained]
    parts = (*learned, *([""] * (2 - len(learned))), *statistics)
    if axis == 1:
        draft.replace(chain, "BatchNormalization", (source, *parts), output)
        return
    # channels-last: put the norm between transposes, which layouts.py removes later
    order = (0, rank - 1, *range(1, rank - 1))
    back = (0, *range(2, rank), 1)
    channels_first = draft.tensor(source, tuple(shape[a] for a in order), "activation")
    normed = draft.tensor(source, tuple(shape[a] for a in order), "activation")
    draft.put("Transpose", (source,), (channels_first,), {"perm": order}, like=chain[-1])
    draft.put("BatchNormalization", (channels_first, *parts), (normed,), like=chain[-1])
    draft.replace(chain, "Transpose", (normed,), output, perm=back)


def _subtracted(draft: Draft, chain: list[Node], weights: list[str]) -> str:
    """The mean among the weights: it is the only one that is subtracted."""
    for node in (*chain, *_makers(draft, chain)):
        if node.op in ("Sub", "Neg"):
            means = [leaf for leaf in _leaves(draft, node.inputs[-1]) or () if leaf in weights]
            if means:
                return means[0]
    return weights[0] if len(weights) == 3 else ""


def _makers(draft: Draft, nodes: Iterable[Node]) -> list[Node]:
    return [m for n in nodes for i in n.inputs if _known(draft, i) and (m := draft.maker(i)) is not None]


# ── layer normalisation: mean and variance are computed from the last axes of x ───────────────────────────────────────


def _join_layer_norm(draft: Draft, root: Node) -> None:
    """Replace the nodes around one square root by a layer or RMS norm, if they form one."""
    statistics = _normalised(draft, root)
    if statistics is None:
        return
    source, mean, centred = statistics
    region = find_region(draft, source, root, _NORM_OPERATORS)
    if region is None:
        return
    shape, rank = draft.shape(source), len(draft.shape(source))
    axes = sorted(a % rank for a in mean.integers("axes") or range(rank))
    if axes != list(range(rank - len(axes), rank)):
        return  # not over the last axes: no layer norm
    size = 1
    for axis in axes:
        size *= shape[axis]
    weights = _learned(draft, region, size)
    output = _extend(draft, region, weights, size)
    if len(weights) > 2 or draft.shape(output) != shape:
        return
    flat = tuple(draft.weight(w, tuple(shape[a] for a in axes)) for w in weights)
    op = "LayerNormalization" if centred else "RMSNormalization"
    draft.replace(region, op, (source, *flat), output, axis=axes[0] - rank)


def _normalised(draft: Draft, root: Node) -> tuple[str, Node, bool] | None:
    """The tensor that is normalised, the mean of its squares, and whether its mean is subtracted (an RMS norm: not)."""
    mean = _upwards(draft, root.inputs[0], "ReduceMean")
    if mean is None:
        return None
    square = draft.made_by(mean.inputs[0], "Mul", "Pow")
    if square is None or (square.op == "Mul" and square.inputs[0] != square.inputs[1]):
        return None
    base = square.inputs[0]
    centre = draft.made_by(base, "Sub")
    if centre is not None:
        own_mean = _upwards(draft, centre.inputs[1], "ReduceMean")
        if own_mean is not None and own_mean.inputs[0] == centre.inputs[0]:
            return centre.inputs[0], mean, True
    means = [r for r in draft.readers(base) if r.op == "ReduceMean"]
    return base, mean, bool(means)  # the variance as E[x²] − E[x]²


def _upwards(draft: Draft, name: str, op: str) -> Node | None:
    """The nearest node of an operator above a tensor; additions of numbers, clips and reshapes are passed."""
    for _ in range(6):
        node = draft.maker(name)
        if node is None or node.op == op:
            return node
        if node.op not in ("Add", "Sub", "Max", "Clip", "Relu", "Reshape", "Squeeze", "Unsqueeze", "Cast", "Abs"):
            return None
        name = next((i for i in node.inputs if i and not draft.is_weight(i)), "")
    return None


def _ends_affine(region: list[Node]) -> bool:
    return region[-1].op in _AFFINE


def find_region(
    draft: Draft,
    source: str,
    anchor: Node,
    ops: frozenset[str],
    is_complete: Callable[[list[Node]], bool] = _ends_affine,
) -> list[Node] | None:
    """Return the smallest set of nodes around ``anchor`` that reads only ``source`` and weights and has one result.

    The set grows from ``source`` in the order of the graph. It is complete when exactly one result, of the shape of
    ``source``, is read outside, and when ``is_complete`` agrees.
    """
    shape, region = draft.shape(source), list[Node]()
    for node in sorted(_below(draft, source, ops), key=lambda n: draft.makers[n.outputs[0]]):
        region.append(node)
        if anchor in region and draft.shape(node.outputs[0]) == shape and is_complete(region):
            inside = {id(n) for n in region}
            leaving = [
                o
                for n in region
                for o in n.outputs
                if o and (o in draft.outputs or any(id(r) not in inside for r in draft.readers(o)))
            ]
            if leaving == [node.outputs[0]]:
                return region
    return None


def _below(draft: Draft, source: str, ops: frozenset[str]) -> list[Node]:
    """The nodes that depend only on ``source`` and weights, nearest first."""
    dependent: dict[str, Node] = {}
    waiting = [source]
    while waiting and len(dependent) < 2 * _MAX_NODES:
        for reader in draft.readers(waiting.pop(0)):
            known = all(i == source or i in dependent or draft.is_weight(i) for i in reader.inputs if i)
            if known and reader.op in ops and reader.outputs[0] not in dependent:
                dependent[reader.outputs[0]] = reader
                waiting.append(reader.outputs[0])
    return list(dependent.values())


def _learned(draft: Draft, region: list[Node], size: int) -> list[str]:
    """γ and β, if the nodes contain them already."""
    names = [i for n in region for i in n.inputs if i and draft.is_weight(i)]
    return [n for n in dict.fromkeys(names) if draft.tensors[n].elements == size and size > 1]


def _extend(draft: Draft, region: list[Node], weights: list[str], size: int) -> str:
    """Add the multiplication by γ and the addition of β that follow; returns the final result."""
    output = region[-1].outputs[0]
    for expected_op in ("Mul", "Add"):
        reader = draft.only_reader(output)
        if reader is None or reader.op != expected_op or len(weights) > 1:
            continue
        other_inputs = [i for i in reader.inputs if i != output]
        if (
            len(other_inputs) == 1
            and draft.is_weight(other_inputs[0])
            and draft.tensors[other_inputs[0]].elements == size > 1
        ):
            weights.append(other_inputs[0])
            region.append(reader)
            output = reader.outputs[0]
    return output
