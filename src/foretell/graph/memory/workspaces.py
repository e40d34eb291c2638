"""Graph: the workspaces that cuDNN and PyTorch allocate while an operator runs, besides its tensors.

Idea: three kinds of operators need them. A convolution on tensor cores works in the layout (batch, height, width,
channels). A contiguous PyTorch tensor has its channels first, so cuDNN copies input, weights and output into that
layout, with the channels padded to a multiple of 8 (half precision) or 4 (fp32). A recurrent layer needs its weights in
one piece and room for the gates. An attention that no fused kernel takes is composed of products and a softmax, with
the scores in memory; a fused one may need a padded copy of its mask.

Source: which convolutions copy was read off the kernels ``nchwToNhwc`` and ``nhwcToNchw`` of 35,641 traced convolutions
on an H200; the numbers for recurrent layers and attention come from measured peaks (``docs/lab/0010-memory.md``).

Limits: the thresholds below describe cuDNN 9 on an H200, and another GPU or version may have others. The number of
copies is right for 90 % of convolutions with a window in half precision and for 76 % in fp32, where cuDNN often picks a
kernel that writes the result in PyTorch's layout.
"""

from collections.abc import Mapping
from math import prod

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, is_channels_last, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.strides import is_contiguous
from foretell.graph.ir.tensor import Tensor
from foretell.graph.memory.allocator import rounded
from foretell.units import MIB

_HALF = ("fp16", "bf16")
FULL_BYTES = 4  # of an fp32 number
INDEX_BYTES = 8
MASK_ALIGNMENT = 8  # fused attention reads masks whose rows are a multiple of this
_FEW_CHANNELS = 16  # fewer are not copied, unless the window (channels × kernel) is large
_LARGE_WINDOW_HALF, _LARGE_WINDOW_FULL = 73, 128
_MANY_CHANNELS = 48  # more are copied in fp32 however small the convolution is
_LITTLE_WORK, _MUCH_WORK = 2**25, 2**28  # multiply-accumulates
_WIDE_GROUP = 32  # channels; groups that are wider run one after the other
_WIDE_OUTPUT = 180  # channels of a strided 1x1 convolution, from which on it copies
_FEW_PIXELS = 56  # of the output; a large 1x1 convolution copies up to this many
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 5}  # output-sized buffers in the workspace, as measured
# derivatives that are written as several calls: so many results in between are alive with the gradient itself
BACKWARD_TEMPORARIES = {
    "Softmax": 1,  # grad * result
    "Sin": 1, "Abs": 1, "Sqrt": 1,  # cos x; sgn x; 2 * result
    "Cos": 2, "Pow": 2, "Rsqrt": 2, "Reciprocal": 2, "CumSum": 2,  # -sin x; n * x**(n - 1); …; flipped twice
}  # fmt: skip
_STREAM_BYTES = 8 * MIB  # for each layer and direction


def library_blocks(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> list[int]:
    """The sizes of the workspaces that a node allocates while it runs."""
    if node.op in ("Conv", "ConvTranspose") and len(node.inputs) > 1 and node.outputs[0]:
        source, weight, out = (graph.tensors[n] for n in (node.inputs[0], node.inputs[1], node.outputs[0]))
        strides = laid_out[source.name].strides
        is_last = is_channels_last(source.shape, strides)
        # an input that lies neither row-major nor channels-last, such as a transposed sequence, is copied
        copied = [] if is_last or is_contiguous(source.shape, strides) or not source.bytes else [source.bytes]
        return [*copied, 0 if is_last else _convolution(source, weight, out, node)]
    if node.op == "DFT" and node.inputs and node.inputs[0]:
        # an inverse real transform destroys what it reads: PyTorch gives it a copy
        source, out = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
        return [source.bytes] if out.is_float and not source.is_float else []
    if node.op in _GATES and node.outputs and node.outputs[0]:
        return _recurrence(graph, node)
    if node.op == "Attention":
        return [padded_mask_bytes(graph, node)] if is_fused(graph, node) else _unfused_attention(graph, node)
    return []


def padded_mask_bytes(graph: Graph, node: Node) -> int:
    """The size of the padded copy of a mask: the fused kernel only reads rows that are a multiple of 8 long."""
    if len(node.inputs) < 4 or not node.inputs[3]:
        return 0
    mask = graph.tensors[node.inputs[3]]
    keys = mask.shape[-1] if mask.shape else 0
    return 0 if keys % MASK_ALIGNMENT == 0 else mask.bytes // keys * rounded(keys, MASK_ALIGNMENT)


def keeps_mask(graph: Graph, node: Node) -> bool:
    """Whether backward needs the mask itself: the fused kernel reads it again, unless it has a padded copy."""
    masked = node.op == "Attention" and len(node.inputs) > 3 and bool(node.inputs[3])
    return masked and is_fused(graph, node) and not padded_mask_bytes(graph, node)


def is_fused(graph: Graph, node: Node) -> bool:
    """Whether an attention runs as one kernel: it needs four axes, and a mask whose last axis is dense (stride 1)."""
    mask = node.inputs[3] if len(node.inputs) > 3 else ""
    dense = not mask or graph.tensors[mask].shape[-1:] == (1,) or layouts(graph)[mask].strides[-1:] == (1,)
    ranks = [len(graph.tensors[n].shape) for n in node.inputs[:3] if n]
    if "q_num_heads" in node.attributes or len(ranks) < 3 or min(ranks) < 2:
        return True  # ONNX packs heads, or all three operands, into the last axis
    return dense and ranks[0] == 4


def score_bytes(graph: Graph, node: Node) -> int:
    """The size of the scores of an unfused attention: one fp32 number for each pair of query and key."""
    query, key = (graph.tensors[n].shape for n in node.inputs[:2])
    return prod(query[:-1]) * key[-2] * FULL_BYTES


def _item_bytes(tensor: Tensor) -> int:
    return tensor.bytes // max(tensor.elements, 1)


def _unfused_attention(graph: Graph, node: Node) -> list[int]:
    """The blocks of PyTorch's composed attention: operands scaled and contiguous in fp32, the scores, their softmax.

    In half precision every operand is first copied to fp32, and a copy of the result in half precision is kept.
    """
    scores = score_bytes(graph, node)
    query, key, value = (graph.tensors[n].elements * FULL_BYTES for n in node.inputs[:3])
    if graph.tensors[node.inputs[0]].dtype in _HALF:
        product = [query, key, value, query, key, query // 2, key // 2, scores]
        softmax = [query, value, scores, scores, scores // 2]
    else:
        product = [query, query, key, scores]
        softmax = [query, scores, scores]
    return max(product, softmax, key=sum)  # the two steps follow one another: the larger one makes the peak


def backward_blocks(graph: Graph, node: Node, needing: frozenset[str]) -> list[int]:
    """The extra blocks of a node's backward: gradients that belong to no tensor of the graph."""
    if node.op in BACKWARD_TEMPORARIES and node.inputs[0] in needing:
        return [graph.tensors[node.outputs[0]].bytes] * BACKWARD_TEMPORARIES[node.op]
    if _shares_maxima(node):  # the mask, the count, and the gradient over the count
        reduced = graph.tensors[node.outputs[0]]
        return [graph.tensors[node.inputs[0]].elements, reduced.elements * INDEX_BYTES, reduced.bytes]
    if node.op != "Attention":
        return []
    if not is_fused(graph, node):
        return [score_bytes(graph, node)]
    if len(node.inputs) > 3 and node.inputs[3] in needing:  # the gradient of the mask, unreduced over the batch
        return [score_bytes(graph, node) // FULL_BYTES * _item_bytes(graph.tensors[node.inputs[3]])]
    return []


def early_blocks(graph: Graph, node: Node) -> list[int]:
    """The blocks that a backward frees before it makes a gradient.

    A largest value without its place (``amax``) may lie in several: their mask is added up, and for that it is copied
    to integers of 8 bytes.
    """
    if not _shares_maxima(node):
        return []
    whole, reduced = graph.tensors[node.inputs[0]].elements, graph.tensors[node.outputs[0]].elements
    return [whole, whole * INDEX_BYTES, reduced * INDEX_BYTES]


def _shares_maxima(node: Node) -> bool:
    """Whether a maximum hands its gradient to all elements that are equal to it: it does not know a place."""
    return node.op in ("ReduceMax", "ReduceMin") and len(node.outputs) == 1


def _recurrence(graph: Graph, node: Node) -> list[int]:
    """The blocks of a recurrent layer: its weights in one piece, and a workspace for streams, gates and the sequence.

    The formula fits 70 measured networks. In bf16 the weights are copied once more.
    """
    sequence, out = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    weights = sum(t.bytes for t in (graph.tensors[n] for n in node.inputs if n) if t.kind == "parameter")
    directions = node.integer("directions", 1)
    gates = _GATES[node.op] * directions + (directions == 1)
    copies = weights if out.dtype == "bf16" else 0
    streams = node.integer("layers", 1) * directions * _STREAM_BYTES
    return [weights, streams + gates * out.bytes + 2 * sequence.bytes + copies]


def _convolution(source: Tensor, weight: Tensor, out: Tensor, node: Node) -> int:
    """The workspace of a row-major convolution: the copies of its tensors in the layout that tensor cores need."""
    groups = node.integer("group", 1)
    if len(weight.shape) < 3:
        return 0
    if groups > 1 and weight.shape[1] == 1:
        return 0  # depthwise: PyTorch has a kernel of its own
    # in half precision, wide groups are convolved one after the other and share one workspace
    loops = groups if source.dtype in _HALF and weight.shape[1] > _WIDE_GROUP else 1
    return sum(_copies(source, weight, out, node)) // loops


def _copies(source: Tensor, weight: Tensor, out: Tensor, node: Node) -> list[int]:
    """The sizes of the tensors that are copied into another layout, with their channels padded for tensor cores."""
    out_channels, in_channels, *kernel = weight.shape
    if node.op == "ConvTranspose":  # its weights are those of the convolution whose gradient it is
        out_channels, in_channels = in_channels, out_channels
    half, macs = source.dtype in _HALF, out.elements * prod(weight.shape[1:])
    if node.op == "ConvTranspose":
        macs = source.elements * prod(weight.shape[1:])
        if not half and macs <= 4 * _MUCH_WORK:
            return []
    is_copied = _is_copied(in_channels, out_channels, kernel, out, node, macs, half)
    if not any(is_copied):
        return []
    alignment = 8 if half else 4
    input_padding, output_padding = (
        rounded(in_channels, alignment) / max(in_channels, 1),
        rounded(out_channels, alignment) / max(out_channels, 1),
    )
    sizes = source.bytes * input_padding, weight.bytes * input_padding * output_padding, out.bytes * output_padding
    return [round(size) for size, copies in zip(sizes, is_copied, strict=True) if copies]


def _is_copied(
    in_channels: int, out_channels: int, kernel: list[int], out: Tensor, node: Node, macs: int, half: bool
) -> tuple[bool, bool, bool]:
    """Whether the input, the weights and the output of a convolution are copied."""
    if max(kernel) == 1:  # a 1x1 convolution is a matrix product: most need no copy
        strided = max(node.integers("strides") or (1,)) > 1
        copies = out_channels > _WIDE_OUTPUT if strided else macs > _MUCH_WORK and prod(out.shape[2:]) <= _FEW_PIXELS
        return copies, False, copies
    # few channels, such as the first layer's three, would mostly be padding: only large windows are worth a copy
    if in_channels < _FEW_CHANNELS:
        window = in_channels * prod(kernel)
        large = window > (_LARGE_WINDOW_HALF if half else _LARGE_WINDOW_FULL)
        copies = large and macs > (_MUCH_WORK if half else 4 * _MUCH_WORK)
        return copies, copies, copies
    if half or macs > _MUCH_WORK:
        return True, True, True
    # fp32 and of medium size: a kernel that writes its output with channels first
    copies = macs > _LITTLE_WORK or in_channels > _MANY_CHANNELS
    return copies, copies, False
