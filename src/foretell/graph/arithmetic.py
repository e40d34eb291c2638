"""graph: the arithmetic of every operator: multiply-accumulates of contractions, operations of everything else."""

import math
from collections.abc import Callable

from foretell.errors import GraphError
from foretell.graph.graph import Graph
from foretell.graph.node import Node
from foretell.graph.ops import Operator
from foretell.graph.tensor import Tensor

Operands = list[Tensor | None]

# ── multiply-accumulates ──────────────────────────────────────────────────────────────────────────────────────────────


def multiply_accumulates(graph: Graph, node: Node, entry: Operator) -> int:
    if entry.kind not in ("contraction", "attention", "recurrent"):
        return 0
    inputs = [graph.tensors[i] if i else None for i in node.inputs]
    output = graph.tensors[node.outputs[0]] if node.outputs[0] else graph.tensors[next(o for o in node.outputs if o)]
    rule = _MACS.get(node.op, {"attention": _attention_macs, "recurrent": _recurrent_macs}.get(entry.kind, _product_macs))
    try:
        return rule(node, inputs, output)
    except (IndexError, AttributeError, TypeError, ZeroDivisionError) as error:
        shapes = [t.shape if t else None for t in inputs]
        raise GraphError(f"Node {node.name!r} ({node.op}) cannot be costed with inputs of shapes {shapes}.") from error


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    if tensor is None:
        raise TypeError("a required input is absent")
    return tensor.shape


def _conv_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    weight = _shape(inputs[3] if node.op == "QLinearConv" else inputs[1])
    return output.elements * math.prod(weight[1:])


def _conv_transpose_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    return math.prod(_shape(inputs[0])) * math.prod(_shape(inputs[1])[1:])


def _product_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    left = _shape(inputs[0])
    inner = left[-2] if node.integer("transA", 0) and len(left) > 1 else left[-1]
    return output.elements * inner


def _bilinear_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    return output.elements * _shape(inputs[0])[-1] * _shape(inputs[1])[-1]


def _einsum_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    """Left to right, two operands at a time: each product takes the size of all indices it touches."""
    terms, _, result = node.text("equation").replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    operands = []
    for term, tensor in zip(terms.split(","), inputs):
        shape = _shape(tensor)
        named = len(term.replace("...", ""))
        hidden = [chr(0x3B1 + i) for i in range(24 - (len(shape) - named), 24)]  # an ellipsis aligns from the right
        letters = [c for part in term.partition("...") for c in (hidden if part == "..." else part)]
        sizes.update({c: max(d, sizes.get(c, 1)) for c, d in zip(letters, shape)})
        operands.append(set(letters))
    kept_at_end = set(result) | {c for o in operands for c in o if ord(c) >= 0x3B1}
    macs, merged = 0, operands[0]
    for position, operand in enumerate(operands[1:], 1):
        touched = merged | operand
        macs += math.prod(sizes[c] for c in touched)
        needed = kept_at_end.union(*operands[position + 1 :])
        merged = touched & needed
    return macs


def time_steps(node: Node, sequence: Tensor) -> int:
    return sequence.shape[1 if node.integer("batch_first", node.integer("layout", 0)) else 0] if len(sequence.shape) > 1 else 1


def _recurrent_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    """Every weight matrix is applied once a time step and item of the batch."""
    sequence = _shape(inputs[0])
    weights = sum(t.elements for t in inputs[1:] if t and t.kind in ("parameter", "constant", "buffer") and _is_matrix(node, t))
    return math.prod(sequence[:-1]) * weights


def _is_matrix(node: Node, tensor: Tensor) -> bool:
    return len(tensor.shape) == (3 if "hidden_size" in node.attributes else 2)


def _heads(node: Node, tensor: Tensor | None, attribute: str) -> tuple[int, int, int, int]:
    """(batch, heads, sequence, head size) of a 4-D or packed 3-D query, key or value."""
    shape = _shape(tensor)
    if len(shape) == 3 and attribute in node.attributes:
        heads = node.integer(attribute, 1)
        return shape[0], heads, shape[1], shape[2] // heads
    lead = math.prod(shape[:-3]) if len(shape) > 3 else 1
    return lead, shape[-3] if len(shape) > 2 else 1, shape[-2], shape[-1]


def _attention_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    """Scores and weighted values: batch × heads × queries × keys × (head size + value size)."""
    packed = "q_num_heads" if "q_num_heads" in node.attributes else "num_heads"
    of_keys = {"q_num_heads": "kv_num_heads", "num_heads": "kv_num_heads" if "kv_num_heads" in node.attributes else "num_heads"}[packed]
    batch, heads, queries, size = _heads(node, inputs[0], packed)
    if node.domain == "com.microsoft" and node.op == "ContribAttention":
        rows, width = math.prod(_shape(inputs[0])[:-1]), _shape(inputs[1])
        return rows * math.prod(width) + 2 * rows * _shape(inputs[0])[1] * (width[1] // 3)
    _, _, keys, _ = _heads(node, inputs[1], of_keys)
    value_size = _heads(node, inputs[2], of_keys)[3] if len(inputs) > 2 and inputs[2] else size
    past = inputs[4] if node.op == "Attention" and not node.domain and len(inputs) > 4 else None
    past = inputs[3] if node.op == "GroupQueryAttention" and len(inputs) > 3 else past
    if past is not None and len(past.shape) == 4:
        keys = max(keys, past.shape[2]) if node.op == "GroupQueryAttention" else keys + past.shape[2]
    return batch * heads * queries * keys * (size + value_size)


def _moe_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    """Each token passes through ``top_k`` experts; a weight of (experts, a, b) takes a × b MACs for each."""
    rows = math.prod(_shape(inputs[0])[:-1])
    one_expert = sum(t.elements // node.integer("experts", 1) for t in inputs[1:] if t and len(t.shape) == 3)
    return rows * node.integer("top_k", 1) * one_expert


_MACS: dict[str, Callable[[Node, Operands, Tensor], int]] = {
    **dict.fromkeys(["Conv", "ConvInteger", "QLinearConv", "FusedConv", "NhwcConv", "NhwcFusedConv", "DeformConv", "CausalConvWithState"], _conv_macs),
    "ConvTranspose": _conv_transpose_macs,
    "Einsum": _einsum_macs,
    "MoE": _moe_macs,
    "Bilinear": _bilinear_macs,
}


# ── everything that is not a multiply-accumulate ──────────────────────────────────────────────────────────────────────


def other_flops(node: Node, entry: Operator, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    out = outputs[0].elements
    if entry.kind in ("contraction", "recurrent"):
        bias = node.op in ("Conv", "Gemm", "ConvTranspose", "FusedConv") and len(inputs) > 2
        return out if bias else 0
    if entry.kind == "attention":
        return _softmax_flops(node, inputs)
    if entry.kind == "pooling":
        return int(out * max(entry.flops, _window(node, inputs, out)))
    if entry.kind == "sort":
        read = inputs[0].elements
        return int(read * max(1.0, math.log2(max(inputs[0].shape[-1:] or (2,)))))
    rule = _FLOPS.get(node.op)
    if rule is not None:
        return rule(node, inputs, out)
    if entry.kind == "reduction":
        return int(entry.flops * max((t.elements for t in inputs), default=out))
    if entry.kind in ("elementwise", "normalisation", "generator", "unknown"):
        return int(entry.flops * max(t.elements for t in outputs))
    return 0


def _softmax_flops(node: Node, inputs: list[Tensor]) -> int:
    size = inputs[0].shape[-1] if inputs[0].shape else 1
    operands: Operands = list(inputs)
    return 7 * _attention_macs(node, operands, inputs[0]) // max(2 * size, 1) if len(inputs) > 1 else 0


def _window(node: Node, inputs: list[Tensor], out: int) -> float:
    kernel = node.integers("kernel_shape")
    if kernel:
        return math.prod(kernel)
    return inputs[0].elements / max(out, 1)


def _resize_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    mode, spatial = node.text("mode", "nearest"), max(len(inputs[0].shape) - 2, 1)
    return {"nearest": 0, "linear": (2 ** (spatial + 1) - 1) * out, "cubic": (2 * 4**spatial - 1) * out}.get(mode, 7 * out)


def _fourier_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    length = max(inputs[0].shape[1:2] or (2,))
    return int(5 * max(inputs[0].elements, out) * math.log2(max(length, 2)))


def _square_matrix_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    return inputs[0].elements * inputs[0].shape[-1]


def _pairs_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    boxes = inputs[0].shape[-2] if len(inputs[0].shape) > 1 else 1
    classes = inputs[1].elements // max(boxes, 1) if len(inputs) > 1 else 1
    return 8 * boxes * boxes * max(classes, 1)


def _lrn_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    return out * (2 * node.integer("size", 5) + 4)


_FLOPS: dict[str, Callable[[Node, list[Tensor], int], int]] = {
    "Resize": _resize_flops,
    "DFT": _fourier_flops,
    "STFT": _fourier_flops,
    "Det": _square_matrix_flops,
    "Inverse": _square_matrix_flops,
    "NonMaxSuppression": _pairs_flops,
    "LRN": _lrn_flops,
}
