"""Graph: the arithmetic of every operator: multiply-accumulates of contractions, FLOPs of everything else."""

import math
from collections import Counter
from collections.abc import Callable

from foretell.errors import GraphError
from foretell.frozen import dataclass
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import Operator
from foretell.graph.ir.strides import einsum_order
from foretell.graph.ir.tensor import Tensor

Operands = list[Tensor | None]

# ── multiply-accumulates ──────────────────────────────────────────────────────────────────────────────────────────────


def multiply_accumulates(node: Node, entry: Operator, operands: Operands, output: Tensor) -> int:
    """Count the MACs of a contraction, an attention or a recurrent layer; 0 for everything else."""
    if entry.kind not in ("contraction", "attention", "recurrent"):
        return 0
    default = {"attention": _attention_macs, "recurrent": _recurrent_macs}.get(entry.kind, _product_macs)
    try:
        return _MACS.get(node.op, default)(node, operands, output)
    except (LookupError, AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        shapes = [t.shape if t else None for t in operands]
        raise GraphError(
            f"The cost of node {node.name!r} ({node.op}) cannot be computed from inputs of shapes {shapes}."
        ) from error


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    if tensor is None:
        raise TypeError("a required input is absent")
    return tensor.shape


def _conv_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    weight = _shape(inputs[3] if node.op == "QLinearConv" else inputs[1])
    # the weight is (out channels, in channels / groups, *window): its tail is what one output element sums over
    return output.elements * math.prod(weight[1:])


def _conv_transpose_macs(_node: Node, inputs: Operands, _output: Tensor) -> int:
    # the weight is (in channels, out channels / groups, *window): each input element is spread over its tail
    return math.prod(_shape(inputs[0])) * math.prod(_shape(inputs[1])[1:])


def _product_macs(node: Node, inputs: Operands, output: Tensor) -> int:
    left = _shape(inputs[0])
    inner = left[-2] if node.integer("transA", 0) and len(left) > 1 else left[-1]
    return output.elements * inner


def _bilinear_macs(_node: Node, inputs: Operands, output: Tensor) -> int:
    return output.elements * _shape(inputs[0])[-1] * _shape(inputs[1])[-1]


def einsum_indices(node: Node, shapes: list[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """Return the index letters of every operand and of the result of an Einsum; an ellipsis is written out."""
    terms, arrow, result = node.text("equation").replace(" ", "").partition("->")
    operands = [_expanded(term, len(shape)) for term, shape in zip(terms.split(","), shapes)]
    hidden = max(
        (len(shape) - len(t.replace("...", "")) for t, shape in zip(terms.split(","), shapes) if "..." in t), default=0
    )
    if arrow:
        return operands, _expanded(result, len(result.replace("...", "")) + hidden)
    # without an arrow the result has every letter that occurs once, in alphabetical order, behind the ellipsis
    counts = Counter(c for letters in operands for c in letters)
    # the Greek letters of an ellipsis are not ASCII; they are in front already
    return operands, [*_expanded("...", hidden), *sorted(c for c, n in counts.items() if n == 1 and c.isascii())]


def _expanded(term: str, rank: int) -> list[str]:
    """The letters of a term, with Greek letters for the axes of an ellipsis.

    The axes of an ellipsis broadcast, so the last one has the same letter in every term, however many there are.
    """
    letters = []
    hidden = rank - len(term.replace("...", ""))
    for part in term.partition("..."):
        letters += [chr(0x3C8 - i) for i in range(hidden, 0, -1)] if part == "..." else list(part)
    return letters


@dataclass(frozen=True, slots=True)
class EinsumPair:
    """One product of an Einsum as a batch of ``many`` matrix products M × N × K.

    ``copied`` operands have indices of one axis of the product that are not next to each other.
    """

    m: int
    n: int
    k: int
    many: int
    macs: int
    copied: int


def einsum_pairs(node: Node, shapes: list[tuple[int, ...]]) -> list[EinsumPair]:
    """The products of an Einsum; operands are multiplied two at a time, in PyTorch's order.

    An index of one operand alone that nothing needs later is summed over before the product.
    """
    operands, result = einsum_indices(node, shapes)
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes):
        for letter, size in zip(letters, shape):
            sizes[letter] = max(size, sizes.get(letter, 1))
    order = einsum_order([dict(zip(letters, shape)) for letters, shape in zip(operands, shapes)], "".join(result))
    operands = [operands[place] for place in order]
    # how often each letter is still to come: in the operands that are left, and in the result
    needed = Counter(result)
    for operand in operands:
        needed.update(operand)
    pairs, left = [], list(dict.fromkeys(operands[0]))
    needed.subtract(operands[0])
    for operand in operands[1:]:
        needed.subtract(operand)
        right = list(dict.fromkeys(operand))
        axes = {letter: _axis(letter in left, letter in right, needed[letter] > 0) for letter in (*left, *right)}
        extents = Counter(dict.fromkeys(("m", "n", "k", "many", "summed"), 1))
        for letter, axis in axes.items():
            extents[axis] *= sizes[letter]
        copied = sum(_is_scattered([axes[c] for c in letters if sizes[c] > 1]) for letters in (left, right))
        macs = math.prod(extents.values())
        pairs.append(EinsumPair(extents["m"], extents["n"], extents["k"], extents["many"], macs, copied))
        left = [letter for letter in axes if needed[letter] > 0]  # the others have been summed over
    return pairs


def _axis(is_left: bool, is_right: bool, is_needed: bool) -> str:
    """The axis of a matrix product that an index belongs to; ``summed`` is summed over before the product."""
    if is_left and is_right:
        return "many" if is_needed else "k"
    return "summed" if not is_needed else "m" if is_left else "n"


def _is_scattered(axes: list[str]) -> bool:
    """Whether the indices of one axis are apart.

    >>> _is_scattered(["many", "m", "k"]), _is_scattered(["m", "k", "m"])
    (False, True)
    """
    runs = [axis for position, axis in enumerate(axes) if position == 0 or axes[position - 1] != axis]
    return len(runs) > len(set(runs))


def _einsum_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """Each product costs the size of all its indices."""
    return sum(pair.macs for pair in einsum_pairs(node, [_shape(tensor) for tensor in inputs]))


def time_steps(node: Node, sequence: Tensor) -> int:
    """The number of time steps of a recurrent node, which run one after the other.

    A cell runs one step; its input has no axis of time, and the first axis is the batch.
    """
    if node.op.endswith("Cell") or len(sequence.shape) < 2:
        return 1
    return sequence.shape[1 if node.integer("batch_first", node.integer("layout", 0)) else 0]


def _recurrent_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """Every weight matrix is applied once for each time step and each item of the batch."""
    return math.prod(_shape(inputs[0])[:-1]) * sum(t.elements for t in _matrices(node, inputs))


def first_layer_macs(graph: Graph, node: Node) -> int:
    """The MACs of a recurrent node that multiply the sequence with the first layer's input weights."""
    inputs: Operands = [graph.tensors[i] if i else None for i in node.inputs]
    matrices = _matrices(node, inputs)
    rows = math.prod(_shape(inputs[0])[:-1])
    if "hidden_size" in node.attributes:
        return rows * matrices[0].elements
    # PyTorch lists the matrices by layer and direction, the input weights of each first
    directions = node.integer("directions", 1)
    per_layer = len(matrices) // max(node.integer("layers", 1) * directions, 1)
    firsts = [matrices[i * per_layer] for i in range(directions) if i * per_layer < len(matrices)]
    return rows * sum(matrix.elements for matrix in firsts)


def _matrices(node: Node, inputs: Operands) -> list[Tensor]:
    """The weight matrices of a recurrent node: ONNX has W and R for all directions, PyTorch a list after the states."""
    if "hidden_size" in node.attributes:
        return [t for t in inputs[1:3] if t is not None]
    # a packed sequence has its batch sizes as a second input
    packed = len(inputs) > 1 and inputs[1] is not None and inputs[1].dtype == "int64"
    states = 2 if node.op.startswith("LSTM") else 1
    return [t for t in inputs[1 + packed + states :] if t is not None and len(t.shape) == 2]


def _heads(node: Node, tensor: Tensor | None, attribute: str) -> tuple[int, int, int, int]:
    """(batch, heads, sequence, head size) of a 4-D or packed 3-D query, key or value."""
    shape = _shape(tensor)
    if len(shape) == 3 and attribute in node.attributes:
        heads = node.integer(attribute, 1)
        return shape[0], heads, shape[1], shape[2] // heads
    # further leading axes count as batch
    lead = math.prod(shape[:-3]) if len(shape) > 3 else 1
    return lead, shape[-3] if len(shape) > 2 else 1, shape[-2], shape[-1]


def _attention_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """The scores and the weighted values: batch × heads × queries × keys × (head size + value size)."""
    batch, heads, queries, keys, size, value_size = attention_sizes(node, inputs)
    return batch * heads * queries * keys * (size + value_size)


_PAST_KEY = {"Attention": 4, "GroupQueryAttention": 3, "MultiHeadAttention": 6}  # the input that holds earlier keys


def attention_sizes(node: Node, inputs: Operands) -> tuple[int, int, int, int, int, int]:
    """Return (batch, heads, queries, keys, head size, value size); the keys of the cache are included."""
    query_heads = "q_num_heads" if "q_num_heads" in node.attributes else "num_heads"
    key_heads = "kv_num_heads" if "kv_num_heads" in node.attributes else query_heads
    query, key, value = (inputs[i] if i < len(inputs) else None for i in range(3))
    shape = _shape(query)
    if key is None and len(shape) == 5:  # query, key and value in one: (batch, sequence, heads, 3, size)
        batch, queries, heads, _, size = shape
        keys, value_size = queries, size
    elif key is None:  # packed side by side along the last axis
        heads, kv_heads = node.integer(query_heads, 1), node.integer(key_heads, 1)
        batch, queries, size = shape[0], shape[1], shape[2] // (heads + 2 * kv_heads)
        keys, value_size = queries, size
    elif len(key.shape) == 5 and value is None:  # key and value in one: (batch, sequence, heads, 2, size)
        batch, heads, queries, size = _heads(node, query, query_heads)
        keys, value_size = key.shape[1], key.shape[4]
    else:
        batch, heads, queries, size = _heads(node, query, query_heads)
        keys = _heads(node, key, key_heads)[2]
        value_size = _heads(node, value, key_heads)[3] if value is not None else size
    position = _PAST_KEY.get(node.op, len(inputs))
    past = inputs[position] if position < len(inputs) else None
    if past is not None and len(past.shape) == 4:
        keys += past.shape[2]
    return batch, heads, queries, keys, size, value_size


def _contrib_attention_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """ONNX Runtime's Attention also projects its input: (…, sequence, width) times (width, 3 × hidden)."""
    shape, weight = _shape(inputs[0]), _shape(inputs[1])
    rows, hidden = math.prod(shape[:-1]), weight[1] // 3
    past = inputs[4] if node.op == "ContribAttention" and len(inputs) > 4 else None
    keys = shape[-2] + (past.shape[-2] if past is not None and len(past.shape) == 5 else 0)
    return rows * math.prod(weight) + 2 * rows * keys * hidden


def _linear_attention_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """A state of head size × value size is updated and read for every token; queries and keys are not multiplied."""
    batch, heads, queries, _, size, value_size = attention_sizes(node, inputs)
    return 2 * batch * heads * queries * size * value_size


def mixture(node: Node, inputs: Operands) -> tuple[int, int]:
    """Return (number of experts, experts per token) of a mixture of experts; ONNX Runtime calls the second ``k``."""
    # the weights of all experts are stacked along the first axis
    stacked = next((t.shape[0] for t in inputs[1:] if t is not None and len(t.shape) == 3), 1)
    return max(node.integer("experts", stacked), 1), node.integer("top_k", node.integer("k", 1))


def _moe_macs(node: Node, inputs: Operands, _output: Tensor) -> int:
    """Each token passes through ``top_k`` experts; a weight of shape (experts, a, b) costs a × b MACs for each."""
    experts, per_token = mixture(node, inputs)
    expert_weights = sum(t.elements // experts for t in inputs[1:] if t is not None and len(t.shape) == 3)
    return math.prod(_shape(inputs[0])[:-1]) * per_token * expert_weights


_MACS: dict[str, Callable[[Node, Operands, Tensor], int]] = {
    "Conv": _conv_macs,
    "ConvInteger": _conv_macs,
    "QLinearConv": _conv_macs,
    "FusedConv": _conv_macs,
    "NhwcConv": _conv_macs,
    "NhwcFusedConv": _conv_macs,
    "DeformConv": _conv_macs,
    "CausalConvWithState": _conv_macs,
    "ConvTranspose": _conv_transpose_macs,
    "Einsum": _einsum_macs,
    "MoE": _moe_macs,
    "Bilinear": _bilinear_macs,
    "ContribAttention": _contrib_attention_macs,
    "PackedAttention": _contrib_attention_macs,
    "LinearAttention": _linear_attention_macs,
}


# ── everything that is not a multiply-accumulate ──────────────────────────────────────────────────────────────────────


def other_flops(node: Node, entry: Operator, operands: Operands, outputs: list[Tensor]) -> int:
    """Count the floating-point operations that are not multiply-accumulates."""
    inputs = [t for t in operands if t is not None]
    out = outputs[0].elements
    if entry.kind in ("contraction", "recurrent"):
        # the gates of a recurrent cell are small beside its products and are not counted
        bias = node.op in ("Conv", "Gemm", "ConvTranspose", "FusedConv") and len(inputs) > 2
        return out if bias else 0
    if entry.kind == "attention":
        return _softmax_flops(node, operands)
    if entry.kind == "pooling":
        return int(out * max(entry.flops, _window(node, inputs, out)))
    if entry.kind == "sort":
        # comparisons: n log2 n along the last axis
        read = inputs[0].elements
        return int(read * max(1.0, math.log2(max((2, *inputs[0].shape[-1:])))))
    rule = _FLOPS.get(node.op)
    if rule is not None:
        return rule(node, inputs, out)
    if entry.kind == "reduction":
        return int(entry.flops * max((t.elements for t in inputs), default=out))
    largest = max(t.elements for t in outputs)
    if node.op == "Col2Im":  # overlapping patches are summed
        largest = inputs[0].elements
    return int(entry.flops * largest)


def _softmax_flops(node: Node, operands: Operands) -> int:
    """Seven operations for each score."""
    if node.op == "LinearAttention":
        return 0
    if node.op in ("ContribAttention", "PackedAttention"):
        shape = _shape(operands[0])
        return 7 * math.prod(shape[:-1]) * shape[-2] * node.integer("num_heads", 1)
    batch, heads, queries, keys, _, _ = attention_sizes(node, operands)
    return 7 * batch * heads * queries * keys


def _window(node: Node, inputs: list[Tensor], out: int) -> float:
    kernel = node.integers("kernel_shape")
    if kernel:
        return math.prod(kernel)
    # an adaptive pool has no fixed window: on average it reads this many elements for one
    return inputs[0].elements / max(out, 1)


def _resize_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    mode, spatial = node.text("mode", "nearest"), max(len(inputs[0].shape) - 2, 1)
    if mode == "nearest":
        return 0
    # interpolation reads 2 (linear) or 4 (cubic) neighbours along each axis: one product for each, and their sum
    taps = int(math.pow(4 if mode == "cubic" else 2, spatial))
    return (2 * taps - 1) * out


def _fourier_flops(node: Node, inputs: list[Tensor], out: int) -> int:
    # Cooley and Tukey: 5 n log2 n operations; ONNX keeps the real and the imaginary part on the last axis
    shape, axes = inputs[0].shape, node.integers("axes")
    length = math.prod(shape[a % len(shape)] for a in axes) if axes and shape else max(shape[1:2] or (2,))
    return int(5 * max(inputs[0].elements, out) * math.log2(max(length, 2)))


def _square_matrix_flops(_node: Node, inputs: list[Tensor], _out: int) -> int:
    return inputs[0].elements * inputs[0].shape[-1]


def _box_pairs_flops(_node: Node, inputs: list[Tensor], _out: int) -> int:
    # the overlap of every pair of boxes, for every class: about eight operations each
    boxes = inputs[0].shape[-2] if len(inputs[0].shape) > 1 else 1
    classes = inputs[1].elements // max(boxes, 1) if len(inputs) > 1 else 1
    return 8 * boxes * boxes * max(classes, 1)


def _lrn_flops(node: Node, _inputs: list[Tensor], out: int) -> int:
    return out * (2 * node.integer("size", 5) + 4)


def _scan_flops(_node: Node, inputs: list[Tensor], out: int) -> int:
    """Mamba's scan: nine operations for each state of each channel and token, and two for the gate."""
    states = inputs[2].shape[-1] if len(inputs) > 2 else 1
    return out * (9 * states + 2)


_FLOPS: dict[str, Callable[[Node, list[Tensor], int], int]] = {
    "Resize": _resize_flops,
    "DFT": _fourier_flops,
    "STFT": _fourier_flops,
    "Det": _square_matrix_flops,
    "Inverse": _square_matrix_flops,
    "NonMaxSuppression": _box_pairs_flops,
    "LRN": _lrn_flops,
    "SelectiveScan": _scan_flops,
}
