"""Frontends: joins the nodes of an attention, softmax(q·kᵀ + mask)·v, into one Attention operator.

Idea: start at each softmax. Below it there must be one product, with the values. Above it, a chain of scales and masks
must lead to one product, that of queries and keys. A scale may also stand at the queries or at the keys.

Limits: only attention on tensors of four axes (batch, heads, tokens, size) with at most one mask is joined. The value
of the scale is not checked.
"""

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node

_MASKING = ("Add", "Where", "Sub")
_SCALING = ("Mul", "Div", "Add")


def join_attention(draft: Draft) -> None:
    """Look for an attention around every softmax."""
    for node in draft.current_nodes():
        if node.op == "Softmax" and draft.maker(node.outputs[0]) is node:
            _join(draft, node)


def _join(draft: Draft, softmax: Node) -> None:
    """Replace the nodes around one softmax by an Attention, if they form one on tensors of four axes."""
    values = draft.only_reader(softmax.outputs[0])
    if values is None or values.op != "MatMul" or values.inputs[0] != softmax.outputs[0]:
        return
    chain = _scores(draft, softmax.inputs[0], softmax)
    if chain is None:
        return
    scores, between, masks = chain
    query, key, value = scores.inputs[0], scores.inputs[1], values.inputs[1]
    shapes = [draft.shape(name) for name in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or draft.is_weight(key) or len(masks) > 1:
        return
    # the scale may stand at the queries, at the keys, or at the keys before they are transposed
    query, scaled = _unscaled(draft, query, scores)
    key, scaled_key = _unscaled(draft, key, scores)
    untransposed = _untransposed(draft, key, scores)
    unscaled_key, scaled_too = _unscaled(draft, untransposed, None) if untransposed else ("", [])
    joined = [scores, *between, softmax, values, *scaled, *scaled_key]
    if untransposed:
        joined += [n for n in scaled_too if draft.only_reader(n.outputs[0]) is not None]
    key = (unscaled_key if untransposed else "") or _transpose(draft, key, scores)
    draft.replace(joined, "Attention", (query, key, value, *masks), values.outputs[0])


def _scores(draft: Draft, name: str, reader: Node) -> tuple[Node, list[Node], list[str]] | None:
    """The product of queries and keys above a softmax, the nodes between the two, and the masks that these add."""
    between: list[Node] = []
    masks: list[str] = []
    for _ in range(6):
        node = draft.maker(name)
        if node is None or draft.only_reader(name) is not reader:
            return None
        if node.op == "MatMul":
            return node, between, masks
        if node.op not in (*_MASKING, *_SCALING, "Cast"):
            return None
        between.append(node)
        plain = [i for i in node.inputs if i and not draft.is_scalar(i)]
        above = [i for i in plain if _leads_to_product(draft, i)]
        if len(above) != 1:
            return None
        masks += [i for i in plain if i != above[0]]
        name, reader = above[0], node
    return None


def _leads_to_product(draft: Draft, name: str) -> bool:
    """Whether a tensor comes from a product through masks and scales: it holds the scores, not a mask."""
    for _ in range(6):
        node = draft.maker(name)
        if node is None:
            return False
        if node.op == "MatMul":
            return True
        if node.op not in (*_MASKING, *_SCALING, "Cast"):
            return False
        name = next((i for i in node.inputs if i and not draft.is_weight(i)), "")
    return False


def _unscaled(draft: Draft, name: str, reader: Node | None) -> tuple[str, list[Node]]:
    """The tensor before it was scaled, and the nodes that scaled it, if only the attention reads their results."""
    scaling: list[Node] = []
    while (node := draft.made_by(name, *_SCALING)) is not None:
        rest = [i for i in node.inputs if i and not draft.is_scalar(i)]
        if len(rest) != 1 or len(node.inputs) != 2 or (draft.only_reader(name) is not reader and reader is not None):
            break
        if reader is None and draft.only_reader(name) is None:
            break
        scaling.append(node)
        name, reader = rest[0], node
    return name, scaling


def _untransposed(draft: Draft, key: str, scores: Node) -> str:
    """The keys before they were transposed for the product; "" if they were not."""
    node = draft.made_by(key, "Transpose")
    order = node.integers("perm") if node is not None else None
    if node is None or order is None or len(order) != 4:
        return ""
    if order == (0, 1, 3, 2):
        return node.inputs[0]
    # one transpose also moves the heads: keep that part of it and undo the rest
    shape, source = draft.shape(key), node.inputs[0]
    restored = draft.tensor(source, (*shape[:2], shape[3], shape[2]), "activation")
    draft.put("Transpose", (source,), (restored,), {"perm": (order[0], order[1], order[3], order[2])}, like=scores)
    return restored


def _transpose(draft: Draft, key: str, scores: Node) -> str:
    shape = draft.shape(key)
    transposed = draft.tensor(key, (*shape[:2], shape[3], shape[2]), "activation")
    draft.put("Transpose", (key,), (transposed,), {"perm": (0, 1, 3, 2)}, like=scores)
    return transposed
