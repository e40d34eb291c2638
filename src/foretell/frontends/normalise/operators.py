"""frontends: activations, biases and linear layers that a converter has written out, joined into one operator again."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from foretell.frontends.normalise.draft import Draft
from foretell.frontends.normalise.norms import close
from foretell.graph import Node

_GELU = frozenset({"Mul", "Add", "Sub", "Neg", "Div", "Pow", "Erf", "Tanh", "Cast", "Identity"})
_SCALING = frozenset({"Mul", "Div"})
_HARD = frozenset({"Add", "Clip", "Relu", "Min", "Max", "Mul", "Div", "HardSigmoid"})


def join_operators(draft: Draft) -> None:
    """Each written-out operator is found by its most telling node."""
    for rules in _STAGES:
        for node in draft.each():
            rule = rules.get(node.op)
            if rule is not None and draft.maker(node.outputs[0]) is node:
                rule(draft, node)


def _limited(draft: Draft, node: Node) -> str:
    """The tensor that is compared with one number; "" where it is not."""
    rest = [i for i in node.inputs if i and not draft.is_scalar(i)]
    same = len(rest) == 1 and len(node.inputs) == 2 and draft.shape(rest[0]) == draft.shape(node.outputs[0])
    return rest[0] if same else ""


def _relu(draft: Draft, node: Node) -> None:
    """max(x, 0), as JAX writes it."""
    if source := _limited(draft, node):
        draft.replace([node], "Relu", (source,), node.outputs[0])


def _relu6(draft: Draft, node: Node) -> None:
    """min(max(x, 0), 6)."""
    lower = draft.made_by(_limited(draft, node), "Relu")
    if lower is not None and draft.only_reader(lower.outputs[0]) is node:
        draft.replace([lower, node], "Clip", (lower.inputs[0],), node.outputs[0])


def _mean(draft: Draft, node: Node) -> None:
    """A sum divided by how many it has."""
    total = draft.made_by(_limited(draft, node), "ReduceSum")
    if total is not None and draft.only_reader(total.outputs[0]) is node and not any(total.inputs[1:]):
        draft.replace([total, node], "ReduceMean", (total.inputs[0],), node.outputs[0], **total.attributes)


def _activation(draft: Draft, anchor: Node, op: str, ops: frozenset[str], least: int, numbers: int = 0) -> None:
    """An activation: a few nodes that read one tensor and numbers alone; it has ``numbers`` of these, at least."""
    tried: dict[str, None] = {}
    waiting = [i for i in anchor.inputs if i and not draft.is_weight(i)]
    for _ in range(8):
        if not waiting:
            return
        source = waiting.pop(0)
        tried[source] = None
        region = close(draft, source, anchor, ops, partial(_is_whole, draft, least))
        if region is not None:
            _take_factor(draft, region, numbers)
            draft.replace(region, op, (source,), region[-1].outputs[0])
            return
        maker = draft.maker(source)
        if maker is not None and maker.op in ops:
            waiting.extend(i for i in maker.inputs if i and not draft.is_weight(i) and i not in tried)


def _take_factor(draft: Draft, region: list[Node], numbers: int) -> None:
    """Take along a factor that follows, where the formula has one more."""
    output = region[-1].outputs[0]
    reader = draft.only_reader(output)
    if sum(draft.is_scalar(i) for n in region for i in n.inputs) >= numbers or reader is None:
        return
    if reader.op in _SCALING and any(draft.is_scalar(i) for i in reader.inputs):
        region.append(reader)


def _is_whole(draft: Draft, least: int, region: list[Node]) -> bool:
    """Numbers are its only weights, and somewhere in it a tensor is multiplied by a function of itself."""
    if len(region) < least or region[-1].op not in _SCALING:
        return False
    weights = [i for n in region for i in n.inputs if i and draft.is_weight(i)]
    gated = any(n.op == "Mul" and not any(draft.is_weight(i) for i in n.inputs) for n in region)
    return gated and all(draft.is_scalar(i) for i in weights)


def _gelu(draft: Draft, anchor: Node) -> None:
    """x · ½ · (1 + erf(x / √2)), by way of erfc, or the approximation by tanh."""
    _activation(draft, anchor, "Gelu", _GELU, 4, 3)


def _hard_swish(draft: Draft, anchor: Node) -> None:
    """x · clip(x + 3, 0, 6) / 6."""
    ends = draft.only_reader(anchor.outputs[0])
    if ends is not None and ends.op in ("Mul", "Div"):
        _activation(draft, anchor, "HardSwish", _HARD, 2 if anchor.op == "HardSigmoid" else 4)


def _silu(draft: Draft, sigmoid: Node) -> None:
    """x · sigmoid(x), or x · sigmoid(1 · x) as Keras has it."""
    _activation(draft, sigmoid, "Silu", frozenset({"Sigmoid", "Mul"}), 2)


def _linear(draft: Draft, product: Node) -> None:
    """A product with a matrix of the model, and the bias behind it: PyTorch's linear layer."""
    source, matrix = product.inputs[:2]
    if not draft.is_weight(matrix) or len(draft.shape(matrix)) != 2 or draft.is_weight(source):
        return
    rows, columns = draft.shape(matrix)
    output, gone, bias = product.outputs[0], [product], ""
    shaped = draft.only_reader(output)
    reshape = shaped if shaped is not None and shaped.op == "Reshape" else None
    added = draft.only_reader(reshape.outputs[0]) if reshape is not None else shaped
    if added is not None and added.op == "Add":
        before = reshape.outputs[0] if reshape is not None else output
        other = [i for i in added.inputs if i != before]
        trailing = draft.shape(other[0])[-len(draft.shape(before)) :] if len(other) == 1 else ()
        if (
            len(other) == 1
            and draft.is_weight(other[0])
            and prod(trailing) == columns == draft.tensors[other[0]].elements
            and draft.tensors[before].elements == draft.tensors[added.outputs[0]].elements
            and _ends_with(draft.shape(before), draft.shape(other[0]))
        ):
            bias = draft.weight(other[0], (columns,))
            gone.append(added)
    flipped = draft.tensor(matrix, (columns, rows)) if draft.only_reader(matrix) is product else ""
    inputs = (source, flipped or matrix, *((bias,) if bias else ()))
    attributes = {"transB": 1} if flipped else {}
    if len(gone) == 1 or reshape is None:
        draft.replace(gone, "Gemm", inputs, gone[-1].outputs[0], **attributes)
        return
    final = gone[-1].outputs[0]
    draft.remove([*gone, reshape])
    draft.put("Gemm", inputs, (output,), dict(attributes), like=product)
    draft.put("Reshape", (output,), (final,), dict(reshape.attributes), like=reshape)


def _ends_with(shape: tuple[int, ...], bias: tuple[int, ...]) -> bool:
    sizes = bias[next((i for i, d in enumerate(bias) if d != 1), 0) :]
    return shape[len(shape) - len(sizes) :] == sizes


def _conv_bias(draft: Draft, conv: Node) -> None:
    """A bias that is added to a convolution's result, perhaps after a transpose."""
    if len(conv.inputs) > 2 and conv.inputs[2]:
        return
    output = conv.outputs[0]
    reader = draft.only_reader(output)
    turned = reader if reader is not None and reader.op == "Transpose" else None
    name = turned.outputs[0] if turned is not None else output
    added = draft.only_reader(name) if turned is not None else reader
    if added is None or added.op != "Add":
        return
    other = [i for i in added.inputs if i != name]
    channels = draft.shape(output)[1]
    if len(other) != 1 or not draft.is_weight(other[0]) or draft.tensors[other[0]].elements != channels:
        return
    rank = len(draft.shape(output))
    sizes = draft.shape(other[0])
    place = 1
    if turned is not None:
        order = turned.integers("perm")
        place = order.index(1) if order else 1
    aligned = (1,) * (rank - len(sizes)) + sizes
    if channels > 1 and (len(aligned) != rank or aligned[place] != channels):
        return
    bias = draft.weight(other[0], (channels,))
    final = added.outputs[0]
    draft.remove([added])
    if turned is not None:
        draft.change(turned, outputs=(final,))
        draft.change(conv, inputs=(*conv.inputs[:2], bias))
    else:
        draft.change(conv, inputs=(*conv.inputs[:2], bias), outputs=(final,))


_Rule = Callable[[Draft, Node], None]
_STAGES: tuple[Mapping[str, _Rule], ...] = (
    {"Max": _relu},
    {"Min": _relu6, "Div": _mean, "Mul": _mean},
    {"Erf": _gelu, "Tanh": _gelu, "Sigmoid": _silu, "Clip": _hard_swish, "HardSigmoid": _hard_swish},
    {"MatMul": _linear, "Conv": _conv_bias, "ConvTranspose": _conv_bias},
)
