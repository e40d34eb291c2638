"""Features: the sizes of a unit that decide which kernel a library picks.

Everything that is a matrix product (linear layers, convolutions, attention) is described as one: M × N × K, repeated
``many`` times, with the number of 128 × 128 tiles that cover the result and the waves in which the SMs run them. Other
columns describe convolution windows, attention heads, rows that are reduced, and so on. A column that does not apply to
a unit is −1.

Element-wise kernels and copies are described as TensorIterator sees them: by the axes that are left after merging.
"""

import math
from collections.abc import Mapping
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from foretell.graph import Cost, Graph
from foretell.graph.cost.arithmetic import einsum_pairs, time_steps
from foretell.graph.ir.layout import Layout, einsum_plan
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.strides import contiguous, is_contiguous, merged_axes
from foretell.graph.ir.tensor import Tensor
from foretell.graph.memory.workspaces import is_fused

SHAPE_COLUMNS = (
    # the operands
    "inputs", "input_rank", "log_input", "log_output", "log_second", "input_last", "output_last", "batch", "channels",
    "inner", "strided_inputs", "innermost_stride", "broadcasts", "casts", "last_alignment", "log_third",
    # a product of matrices
    "log_m", "log_n", "log_k", "log_many", "log_tiles", "waves", "wave_fill", "n_alignment", "k_alignment",
    "copied_operands", "log_copied",
    # a convolution
    "kernel", "kernel_last", "stride", "groups", "dilation", "dims", "group_inputs", "group_outputs", "side",
    # an attention
    "log_heads", "queries", "keys", "head_size", "masked", "key_alignment", "fused",
    # a recurrence
    "steps", "layers", "directions",
    # rows that are reduced, normalised, summed up, sorted, transformed, gathered or scattered
    "log_rows", "log_row", "row_inside", "window",
    # which kernel of its operator: how an image is resized, a border is filled; indices beside a maximum
    "variant",
    # the axes that an element-wise kernel, a copy or a concatenation walks over
    "scalars", "merged_axes", "log_run", "run_alignment", "vectorised", "second_stride", "log_inside",
    # of a backward: the operands that get a gradient
    "gradients",
)  # fmt: skip
TILE = 128  # rows and columns of the result that one thread block typically computes
_MODES = {
    "Resize": ("nearest", "linear", "cubic"),
    "Pad": ("constant", "reflect", "replicate", "circular"),
}
_ABSENT = -1.0
_MOST_ALIGNED = 16
_ALIGNMENTS = (4.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 0.0, 3.0, 0.0, 1.0, 0.0, 2.0, 0.0, 1.0, 0.0)  # by size modulo 16
Sizes = dict[str, float]


def describe_shapes(
    graph: Graph,
    node: Node | None,
    cost: Cost,
    laid_out: Mapping[str, Layout],
    sms: int,
    reached: frozenset[str] | None = None,
) -> tuple[float, ...]:
    """Return the sizes of a unit's main node, in the order of `SHAPE_COLUMNS`.

    Of a backward, ``reached`` are the tensors that get a gradient.
    """
    if node is None:
        return (_ABSENT,) * len(SHAPE_COLUMNS)
    inputs = [graph.tensors[name] for name in node.inputs if name]
    outputs = [graph.tensors[name] for name in node.outputs if name]
    if not outputs:
        return (_ABSENT,) * len(SHAPE_COLUMNS)
    first = inputs[0] if inputs else outputs[0]
    sizes = _operands(inputs, first, outputs[0], laid_out)
    kind = lookup(node.op, node.domain).kind
    if node.op in ("Conv", "ConvTranspose", "FusedConv") and len(inputs) > 1:
        sizes |= _convolution(node, first, inputs[1], outputs[0], sms)
    elif node.op == "Einsum" and len(inputs) > 1:
        sizes |= _einsum(graph, node, inputs, laid_out, sms)
    elif kind == "contraction" and len(inputs) > 1 and first.shape and outputs[0].shape:
        sizes |= _product(first, inputs[1], outputs[0], cost, sms)
    elif kind == "attention" and len(first.shape) >= 3:
        sizes |= _attention(node, inputs, sms) | {"fused": float(is_fused(graph, node))}
    elif kind in ("normalisation", "reduction", "sort"):
        sizes |= _rows(node, first, outputs[0])
    elif kind in ("gather", "scatter") and len(inputs) > 1:
        sizes |= _picked(node, inputs, outputs[0])
    elif kind == "pooling":
        kernel = node.integers("kernel_shape") or (1,)
        stride = node.integers("strides") or (1,)
        sizes |= {"window": float(math.prod(kernel)), "kernel": float(kernel[0]), "stride": float(stride[0])}
    elif kind == "recurrent":
        sizes |= _recurrence(node, first, outputs[0])
    if kind in ("elementwise", "view", "free", "generator", "unknown"):
        sizes |= _walked(inputs, outputs[0], laid_out)
    elif node.op == "Concat":
        axis = node.integer("axis", 0) % max(len(first.shape), 1)
        sizes |= _run(math.prod(first.shape[axis:])) | {"log_inside": _log(math.prod(first.shape[axis + 1 :]))}
    if reached is not None:
        sizes["gradients"] = float(len(reached.intersection(node.inputs)))
    sizes["variant"] = _variant(node)
    return tuple(map(sizes.get, SHAPE_COLUMNS, repeat(_ABSENT)))


def _variant(node: Node) -> float:
    """Which kernel of its operator a node runs, where sizes do not tell it."""
    if modes := _MODES.get(node.op):
        mode = node.text("mode") or modes[0]
        return float(modes.index(mode) if mode in modes else len(modes))
    if node.op in ("ReduceMax", "ReduceMin"):  # a maximum along an axis comes with its indices, by a kernel of its own
        return float(len(node.outputs) > 1)
    if node.op == "ScatterElements":
        adds = (node.text("reduction") or "none") != "none"
        return 3.0 if node.integer("indexed", 0) else 2.0 if node.integer("rows", 0) else float(adds)
    return _ABSENT


def _log(value: float) -> float:
    return math.log2(value + 1.0)


def _alignment(size: int) -> float:
    """The exponent of the largest power of two, up to 16, that divides a size.

    >>> [_alignment(size) for size in (64, 12, 7)]
    [4.0, 2.0, 0.0]
    """
    return _ALIGNMENTS[size & _MOST_ALIGNED - 1]


def alignments(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The same for many sizes."""
    return np.asarray(np.array(_ALIGNMENTS)[sizes & _MOST_ALIGNED - 1], np.float64)


def _operands(inputs: list[Tensor], first: Tensor, output: Tensor, laid_out: Mapping[str, Layout]) -> Sizes:
    """The columns that every unit has: sizes, layouts and dtypes of its operands."""
    shape, written, dtype = first.shape, output.elements, output.dtype
    elements = [tensor.elements for tensor in inputs]
    strides = [laid_out[tensor.name].strides for tensor in inputs]
    read = elements[0] if inputs else written
    return {
        "inputs": float(len(inputs)),
        "input_rank": float(len(shape)),
        "log_input": _log(read),
        "log_output": _log(written),
        "log_second": _log(elements[1]) if len(inputs) > 1 else _ABSENT,
        "log_third": _log(elements[2]) if len(inputs) > 2 else _ABSENT,
        "input_last": float(shape[-1]) if shape else 1.0,
        "output_last": float(output.shape[-1]) if output.shape else 1.0,
        "batch": float(shape[0]) if shape else 1.0,
        "channels": float(shape[1]) if len(shape) > 1 else 1.0,
        "inner": float(math.prod(shape[2:])),
        "strided_inputs": float(
            [is_contiguous(tensor.shape, steps) for tensor, steps in zip(inputs, strides)].count(False)
        ),
        "innermost_stride": _innermost(strides[0] if inputs else laid_out[first.name].strides),
        "broadcasts": float(len(inputs) - elements.count(written)),
        "casts": float(len(inputs) - [tensor.dtype for tensor in inputs].count(dtype)),
        "last_alignment": _alignment(shape[-1]) if shape else 0.0,
        "scalars": float(elements.count(1)),
        "second_stride": _innermost(strides[1]) if len(inputs) > 1 else _ABSENT,
    }


def _innermost(strides: tuple[int, ...]) -> float:
    return _log(strides[-1]) if strides else 0.0


def _run(length: int) -> Sizes:
    """The length of the innermost axis that a kernel walks over."""
    return {"log_run": _log(length), "run_alignment": _alignment(length)}


def _walked(inputs: list[Tensor], output: Tensor, laid_out: Mapping[str, Layout]) -> Sizes:
    """The axes of an element-wise kernel or of a copy, with operands broadcast to the shape of the result.

    A copy that also reshapes walks over the axes of its input.
    """
    operands = [tensor for tensor in inputs if tensor.elements > 1]
    is_copy = len(operands) == 1 and operands[0].elements == output.elements
    shape = operands[0].shape if is_copy else output.shape
    written = laid_out[output.name].strides if output.shape == shape else contiguous(shape)
    read = [steps for steps in (_broadcast(tensor, laid_out, shape) for tensor in operands) if steps is not None]
    merged = merged_axes(shape, [written, *read])
    casts = any(tensor.dtype != output.dtype for tensor in operands)
    return _run(merged[-1]) | {
        "merged_axes": float(len(merged)),
        "vectorised": float(len(merged) == 1 and not casts),
    }


def _broadcast(tensor: Tensor, laid_out: Mapping[str, Layout], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of an operand along the axes of a shape; None where it does not fit the shape."""
    missing = len(shape) - len(tensor.shape)
    if missing < 0 or any(have not in (1, want) for have, want in zip(tensor.shape, shape[missing:])):
        return None
    own = zip(tensor.shape, laid_out[tensor.name].strides)
    return (0,) * missing + tuple(0 if size == 1 else stride for size, stride in own)


def _matrices(m: float, n: float, k: float, many: float, sms: int) -> Sizes:
    """The columns of a matrix product M × N × K that is repeated ``many`` times."""
    tiles = math.ceil(m / TILE) * math.ceil(n / TILE) * many
    waves = tiles / max(sms, 1)
    return {
        "log_m": _log(m),
        "log_n": _log(n),
        "log_k": _log(k),
        "log_many": _log(many),
        "log_tiles": _log(tiles),
        "waves": waves,
        "wave_fill": waves / math.ceil(waves) if waves else 0.0,
        "n_alignment": _alignment(int(n)),
        "k_alignment": _alignment(int(k)),
    }


def _product(first: Tensor, second: Tensor, output: Tensor, cost: Cost, sms: int) -> Sizes:
    """A matrix product; K follows from its MACs, which also works for quantised and fused variants."""
    columns = output.shape[-1]
    # a second operand of two axes is shared by all rows; with more axes the product is batched
    many = math.prod(second.shape[:-2]) if len(second.shape) > 2 else 1
    rows = output.elements / max(columns * many, 1)
    inner = cost.macs / max(output.elements, 1)
    return _matrices(max(rows, 1.0), max(columns, 1), max(inner, 1.0), max(many, 1), sms) | {
        "k_alignment": _alignment(first.shape[-1])
    }


def _einsum(graph: Graph, node: Node, inputs: list[Tensor], laid_out: Mapping[str, Layout], sms: int) -> Sizes:
    """An Einsum, described by the largest of its products: PyTorch contracts operands in pairs.

    An operand is copied first where axes that the product treats as one do not lie so in memory.
    """
    pairs = einsum_pairs(node, [tensor.shape for tensor in inputs])
    if not pairs:
        return {}
    pair = max(pairs, key=lambda one: one.macs)
    plan = einsum_plan(graph, node, laid_out)
    return _matrices(pair.m, pair.n, pair.k, pair.many, sms) | {
        "copied_operands": float(pair.copied if plan is None else len(plan.copied)),
        "log_copied": _ABSENT if plan is None else _log(sum(plan.copies)),
    }


def _convolution(node: Node, image: Tensor, weight: Tensor, output: Tensor, sms: int) -> Sizes:
    """A convolution as an implicit matrix product: M pixels by N output channels over K inputs × window, per group."""
    groups = max(node.integer("group", 1), 1)
    kernel = weight.shape[2:] or (1,)
    stride, dilation = node.integers("strides") or (1,), node.integers("dilations") or (1,)
    group_inputs, group_outputs = image.shape[1] // groups, output.shape[1] // groups
    rows = output.elements / max(output.shape[1], 1)
    return _matrices(rows, max(group_outputs, 1), max(group_inputs, 1) * math.prod(kernel), groups, sms) | {
        "kernel": float(kernel[0]),
        "kernel_last": float(kernel[-1]),
        "stride": float(stride[0]),
        "groups": float(groups),
        "dilation": float(dilation[0]),
        "dims": float(len(kernel)),
        "group_inputs": float(group_inputs),
        "group_outputs": float(group_outputs),
        "side": float(output.shape[-1]),
        "n_alignment": _alignment(output.shape[1]),
        "k_alignment": _alignment(image.shape[1]),
    }


def _attention(node: Node, inputs: list[Tensor], sms: int) -> Sizes:
    """An attention, described by the product of queries and keys."""
    query, key = inputs[0].shape, (inputs[1] if len(inputs) > 1 else inputs[0]).shape
    heads, queries, keys, size = math.prod(query[:-2]), query[-2], key[-2], query[-1]
    # 0: no mask, 1: causal, 2: a tensor
    masked = 2.0 if len(inputs) > 3 else float(bool(node.integer("is_causal", 0)))
    return _matrices(queries, keys, size, heads, sms) | {
        "log_heads": _log(heads),
        "queries": float(queries),
        "keys": float(keys),
        "head_size": float(size),
        "masked": masked,
        "key_alignment": _alignment(keys),
    }


def _recurrence(node: Node, first: Tensor, output: Tensor) -> Sizes:
    """A recurrent layer, described by the product of one time step."""
    directions = 2 if node.text("direction") == "bidirectional" else node.integer("directions", 1)
    steps = max(time_steps(node, first), 1)
    return {
        "log_m": _log(math.prod(first.shape[:-1]) / steps),
        "log_n": _log(output.shape[-1] / directions if output.shape else 1),
        "log_k": _log(first.shape[-1] if first.shape else 1),
        "steps": float(steps),
        "layers": float(node.integer("layers", 1)),
        "directions": float(directions),
    }


def _rows(node: Node, first: Tensor, output: Tensor) -> Sizes:
    """The rows of a reduction or a norm: how many, how long, and whether their elements are adjacent in memory."""
    shape, rank = first.shape, len(first.shape)
    if not shape:
        return {}
    if node.op in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        groups = node.integer("num_groups", shape[1] if rank > 1 else 1)
        rows = (1 if node.op == "BatchNormalization" else shape[0]) * groups
        return {"log_rows": _log(rows), "log_row": _log(first.elements / max(rows, 1)), "row_inside": 1.0} | {
            "groups": float(groups)
        }
    if node.op in ("LayerNormalization", "RMSNormalization"):
        row = shape[-1]
    elif node.op in ("Softmax", "LogSoftmax", "CumSum", "CumProd", "Sort", "TopK"):
        row = shape[node.integer("axis", -1) % rank]
    elif node.op == "DFT":
        row = math.prod(shape[axis % rank] for axis in node.integers("axes") or (-1,))
    else:
        row = max(first.elements // max(output.elements, 1), 1)
    axes = node.integers("axes") or (node.integer("axis", -1),)
    last = max(axis % rank for axis in axes)
    return {
        "log_rows": _log(first.elements / max(row, 1)),
        "log_row": _log(row),
        "row_inside": float(last == rank - 1),
        "log_inside": _log(math.prod(shape[last + 1 :])),
    }


def _picked(node: Node, inputs: list[Tensor], output: Tensor) -> Sizes:
    """The rows that a gather reads or a scatter writes: one for each index, except where indices pick elements."""
    indices = inputs[1].elements
    moved = inputs[2].elements if len(inputs) > 2 else output.elements
    row = max(moved / max(indices, 1), 1.0)
    axis, rank = node.integer("axis", 0), max(len(inputs[0].shape), 1)
    return {"log_rows": _log(indices), "log_row": _log(row), "row_inside": float(axis % rank == rank - 1)}
