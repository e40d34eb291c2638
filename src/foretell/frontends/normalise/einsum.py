"""Frontends: replaces an Einsum of two operands by a matrix product with transposes, or by a linear layer."""

from math import prod

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node


def lower_einsum(draft: Draft) -> None:
    """Replace every Einsum that is a single product; any other stays."""
    for node in draft.current_nodes():
        if node.op == "Einsum" and len(node.inputs) == 2:
            terms, _, result = node.text("equation").replace(" ", "").partition("->")
            left, _, right = terms.partition(",")
            # an ellipsis or a diagonal ("ii") is left alone
            if not (result + left + right).isalpha() or len(set(left)) < len(left) or len(set(right)) < len(right):
                continue
            if draft.is_weight(node.inputs[1]):
                _lower_linear(draft, node, left, right, result)
            else:
                _lower_product(draft, node, left, right, result)


def _lower_linear(draft: Draft, node: Node, left: str, right: str, result: str) -> None:
    """A product over the last axes of a tensor and the first axes of a weight: a linear layer."""
    inner = "".join(c for c in right if c in left and c not in result)
    outer = right[len(inner) :]
    if not inner or not right.startswith(inner) or not left.endswith(inner):
        return
    batch = left[: -len(inner)]
    if result != batch + outer or not outer or set(batch) & set(right):
        return
    source, matrix = node.inputs
    shape, sizes = draft.shape(source), draft.shape(matrix)
    rows, columns = prod(sizes[: len(inner)]), prod(sizes[len(inner) :])
    rest = shape[: len(batch)]
    weight = draft.weight(matrix, (rows, columns))
    target = node.outputs[0]
    draft.remove([node])
    if len(inner) > 1:
        flat = draft.tensor(source, (*rest, rows), "activation")
        draft.put("Reshape", (source,), (flat,), like=node)
        source = flat
    if len(outer) == 1:
        draft.put("MatMul", (source, weight), (target,), like=node)
        return
    product = draft.tensor(target, (*rest, columns), "activation")
    draft.put("MatMul", (source, weight), (product,), like=node)
    draft.put("Reshape", (product,), (target,), like=node)


def _lower_product(draft: Draft, node: Node, left: str, right: str, result: str) -> None:
    """A product of two tensors that share batch axes and one axis that is summed over: a batched MatMul."""
    batch = [c for c in result if c in left and c in right]
    inner = [c for c in left if c in right and c not in result]
    single = [c for c in result if c not in batch]
    if len(inner) != 1 or len(single) != 2 or {*left, *right} != {*batch, *inner, *single}:
        return
    first, second = single
    operands = {left: node.inputs[0], right: node.inputs[1]}
    if left == right or (first in left) == (second in left):
        return
    rows, columns = (left, right) if first in left else (right, left)
    sizes = dict(zip(left, draft.shape(node.inputs[0]))) | dict(zip(right, draft.shape(node.inputs[1])))
    order = [*batch, first, second]
    target = node.outputs[0]
    draft.remove([node])
    row_operand = _transpose(draft, operands[rows], rows, [*batch, first, *inner], node)
    column_operand = _transpose(draft, operands[columns], columns, [*batch, *inner, second], node)
    if order == list(result):
        draft.put("MatMul", (row_operand, column_operand), (target,), like=node)
        return
    product = draft.tensor(target, tuple(sizes[c] for c in order), "activation")
    draft.put("MatMul", (row_operand, column_operand), (product,), like=node)
    draft.put("Transpose", (product,), (target,), {"perm": tuple(order.index(c) for c in result)}, like=node)


def _transpose(draft: Draft, name: str, letters: str, target: list[str], like: Node) -> str:
    if list(letters) == target:
        return name
    order = tuple(letters.index(c) for c in target)
    transposed = draft.tensor(name, tuple(draft.shape(name)[a] for a in order), "activation")
    draft.put("Transpose", (name,), (transposed,), {"perm": order}, like=like)
    return transposed
