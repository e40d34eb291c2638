"""Frontends: joins the nodes of activations, linear layers and biases into one operator each."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from foretell.frontends.normalise.draft import Draft
from foretell.frontends.normalise.norms import find_region
from foretell.graph import Node

_GELU = frozenset({"Mul", "Add", "Sub", "Neg", "Div", "Pow", "Erf", "Tanh", "Cast", "Identity"})
_SCALING = frozenset({"Mul", "Div"})
_HARD = frozenset({"Add", "Clip", "Relu", "Min", "Max", "Mul", "Div", "HardSigmoid"})


def join_operators(draft: Draft) -> None:
    """Look for each operator around its anchor, a node that hardly occurs elsewhere; simple operators come first."""
    for rules in _STAGES:
        for node in draft.current_nodes():
            rule = rules.get(node.op)
            if rule is not None and draft.maker(node.outputs[0]) is node:
                rule(draft, node)


def _other_than_scalar(draft: Draft, node: Node) -> str:
    """The tensor that a node combines with a single number; "" if it does anything else."""
    rest = [i for i in node.inputs if i and not draft.is_scalar(i)]
    same = len(rest) == 1 and len(node.inputs) == 2 and draft.shape(rest[0]) == draft.shape(node.outputs[0])
    return rest[0] if same else ""


def _relu(draft: Draft, node: Node) -> None:
    """max(x, 0), as JAX writes it."""
    if source := _other_than_scalar(draft, node):
        draft.replace([node], "Relu", (source,), node.outputs[0])


def _relu6(draft: Draft, node: Node) -> None:
    """min(max(x, 0), 6)."""
    lower = draft.made_by(_other_than_scalar(draft, node), "Relu")
    if lower is not None and draft.only_reader(lower.outputs[0]) is node:
        draft.replace([lower, node], "Clip", (lower.inputs[0],), node.outputs[0])


def _mean(draft: Draft, node: Node) -> None:
    """A sum that is divided by its number of elements."""
    total = draft.made_by(_other_than_scalar(draft, node), "ReduceSum")
    if total is not None and draft.only_reader(total.outputs[0]) is node and not any(total.inputs[1:]):
        draft.replace([total, node], "ReduceMean", (total.inputs[0],), node.outputs[0], **total.attributes)


def _activation(draft: Draft, anchor: Node, op: str, ops: frozenset[str], least: int, numbers: int = 0) -> None:
    """Join an activation: nodes that read one tensor and at least ``numbers`` scalars, and nothing else."""
    # try the anchor's inputs as the activation's input, then what lies further up
    tried: dict[str, None] = {}
    waiting = [i for i in anchor.inputs if i and not draft.is_weight(i)]
    for _ in range(8):
        if not waiting:
            return
        source = waiting.pop(0)
        tried[source] = None
        region = find_region(draft, source, anchor, ops, partial(_is_complete, draft, least))
        if region is not None:
            _add_factor(draft, region, numbers)
            draft.replace(region, op, (source,), region[-1].outputs[0])
            return
        maker = draft.maker(source)
        if maker is not None and maker.op in ops:
            waiting.extend(i for i in maker.inputs if i and not draft.is_weight(i) and i not in tried)


def _add_factor(draft: Draft, region: list[Node], numbers: int) -> None:
    """Add a factor that follows, if the formula needs one more scalar."""
    output = region[-1].outputs[0]
    reader = draft.only_reader(output)
    if sum(draft.is_scalar(i) for n in region for i in n.inputs) >= numbers or reader is None:
        return
    if reader.op in _SCALING and any(draft.is_scalar(i) for i in reader.inputs):
        region.append(reader)


def _is_complete(draft: Draft, least: int, region: list[Node]) -> bool:
    """Whether its only weights are scalars, and a tensor in it is multiplied by a function of itself."""
    if len(region) < least or region[-1].op not in _SCALING:
        return False
    weights = [i for n in region for i in n.inputs if i and draft.is_weight(i)]
    gated = any(n.op == "Mul" and not any(draft.is_weight(i) for i in n.inputs) for n in region)
    return gated and all(draft.is_scalar(i) for i in weights)


def _gelu(draft: Draft, anchor: Node) -> None:
    """x · ½ · (1 + erf(x / √2)), also written with erfc, or the approximation with tanh."""
    _activation(draft, anchor, "Gelu", _GELU, 4, 3)


def _hard_swish(draft: Draft, anchor: Node) -> None:
    """x · clip(x + 3, 0, 6) / 6."""
    ends = draft.only_reader(anchor.outputs[0])
    if ends is not None and ends.op in ("Mul", "Div"):
        _activation(draft, anchor, "HardSwish", _HARD, 2 if anchor.op == "HardSigmoid" else 4)


def _silu(draft: Draft, sigmoid: Node) -> None:
    """x · sigmoid(x); Keras writes x · sigmoid(1 · x)."""
    _activation(draft, sigmoid, "Silu", frozenset({"Sigmoid", "Mul"}), 2)


def _linear(draft: Draft, product: Node) -> None:
    """A product with a weight matrix and the bias after it, perhaps with a reshape between: PyTorch's linear layer."""
    source, matrix = product.inputs[:2]
    if not draft.is_weight(matrix) or len(draft.shape(matrix)) != 2 or draft.is_weight(source):
        return
    rows, columns = draft.shape(matrix)
    output, joined, bias = product.outputs[0], [product], ""
    reader = draft.only_reader(output)
    reshape = reader if reader is not None and reader.op == "Reshape" else None
    added = draft.only_reader(reshape.outputs[0]) if reshape is not None else reader
    if added is not None and added.op == "Add":
        before = reshape.outputs[0] if reshape is not None else output
        addends = [i for i in added.inputs if i != before]
        trailing = draft.shape(addends[0])[-len(draft.shape(before)) :] if len(addends) == 1 else ()
        if (
            len(addends) == 1
            and draft.is_weight(addends[0])
            and prod(trailing) == columns == draft.tensors[addends[0]].elements
            and draft.tensors[before].elements == draft.tensors[added.outputs[0]].elements
            and _ends_with(draft.shape(before), draft.shape(addends[0]))
        ):
            bias = draft.weight(addends[0], (columns,))
            joined.append(added)
    # PyTorch stores a linear layer's weight as (out, in); a shared matrix must stay as it is
    transposed = draft.tensor(matrix, (columns, rows)) if draft.only_reader(matrix) is product else ""
    inputs = (source, transposed or matrix, *((bias,) if bias else ()))
    attributes = {"transB": 1} if transposed else {}
    # with a reshape between product and bias, the reshape moves behind the linear layer
    if len(joined) == 1 or reshape is None:
        draft.replace(joined, "Gemm", inputs, joined[-1].outputs[0], **attributes)
        return
    final = joined[-1].outputs[0]
    draft.remove([*joined, reshape])
    draft.put("Gemm", inputs, (output,), dict(attributes), like=product)
    draft.put("Reshape", (output,), (final,), dict(reshape.attributes), like=reshape)


def _ends_with(shape: tuple[int, ...], bias: tuple[int, ...]) -> bool:
    sizes = bias[next((i for i, d in enumerate(bias) if d != 1), 0) :]
    return shape[len(shape) - len(sizes) :] == sizes


def _conv_bias(draft: Draft, conv: Node) -> None:
    """A bias that is added to the result of a convolution, perhaps after a transpose."""
    if len(conv.inputs) > 2 and conv.inputs[2]:
        return
    output = conv.outputs[0]
    reader = draft.only_reader(output)
    transpose = reader if reader is not None and reader.op == "Transpose" else None
    name = transpose.outputs[0] if transpose is not None else output
    added = draft.only_reader(name) if transpose is not None else reader
    if added is None or added.op != "Add":
        return
    addends = [i for i in added.inputs if i != name]
    channels = draft.shape(output)[1]
    if len(addends) != 1 or not draft.is_weight(addends[0]) or draft.tensors[addends[0]].elements != channels:
        return
    rank = len(draft.shape(output))
    sizes = draft.shape(addends[0])
    axis = 1
    if transpose is not None:
        order = transpose.integers("perm")
        axis = order.index(1) if order else 1
    # the bias must lie along the channels; one of (width,) would be something else
    aligned = (1,) * (rank - len(sizes)) + sizes
    if channels > 1 and (len(aligned) != rank or aligned[axis] != channels):
        return
    bias = draft.weight(addends[0], (channels,))
    final = added.outputs[0]
    draft.remove([added])
    if transpose is not None:
        draft.change(transpose, outputs=(final,))
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
