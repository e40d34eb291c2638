"""graph: what CUDA's libraries take from the allocator while an operator runs, beside its tensors.

cuDNN convolves on tensor cores in the layout (batch, height, width, channels). A contiguous PyTorch tensor lies the
other way: its input, weights and output pass through copies in the workspace. Where it does so, and where it has
kernels that read the tensors as they lie, was read off traced kernels (``docs/lab/0010-memory.md``).
"""

from collections.abc import Mapping
from math import prod

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, is_contiguous, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor
from foretell.graph.memory.allocator import rounded
from foretell.units import MIB

_HALF = ("fp16", "bf16")
FULL_BYTES = 4  # of a number in fp32
MASK_ALIGNMENT = 8
_FEW_CHANNELS = 16  # convolved as they lie, unless the window holds more numbers than this
_LARGE_WINDOW_HALF, _LARGE_WINDOW_FULL = 73, 128
_MANY_CHANNELS = 48  # copied in single precision however little there is to do
_LITTLE_WORK, _MUCH_WORK = 2**25, 2**28  # multiply-accumulates
_WIDE_GROUP = 32
_WIDE_OUTPUT = 180  # of a strided 1x1 convolution
_FEW_PIXELS = 56
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 5}
_STREAM_BYTES = 8 * MIB


def library_blocks(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> list[int]:
    """The workspaces that a node takes and gives back."""
    if node.op == "Conv" and len(node.inputs) > 1 and node.outputs[0]:
        return [_convolution(graph, node, laid_out)]
    if node.op in _GATES and node.outputs and node.outputs[0]:
        return _recurrence(graph, node)
    if node.op == "Attention":
        return [padded_mask_bytes(graph, node)] if is_fused(graph, node) else _unfused_attention(graph, node)
    return []


def padded_mask_bytes(graph: Graph, node: Node) -> int:
    """The copy of a mask whose rows are no multiple of 8: the fused kernel takes no others."""
    if len(node.inputs) < 4 or not node.inputs[3]:
        return 0
    mask = graph.tensors[node.inputs[3]]
    keys = mask.shape[-1] if mask.shape else 0
    return 0 if keys % MASK_ALIGNMENT == 0 else mask.bytes // keys * rounded(keys, MASK_ALIGNMENT)


def keeps_mask(graph: Graph, node: Node) -> bool:
    """Whether backward needs the mask itself: the fused kernel reads it again, unless it was given a padded copy."""
    masked = node.op == "Attention" and len(node.inputs) > 3 and bool(node.inputs[3])
    return masked and is_fused(graph, node) and not padded_mask_bytes(graph, node)


def is_fused(graph: Graph, node: Node) -> bool:
    """Whether an attention runs as one kernel: those take four axes, and a mask whose last axis lies densely."""
    mask = node.inputs[3] if len(node.inputs) > 3 else ""
    dense = not mask or graph.tensors[mask].shape[-1:] == (1,) or layouts(graph)[mask].strides[-1:] == (1,)
    ranks = [len(graph.tensors[n].shape) for n in node.inputs[:3] if n]
    if "q_num_heads" in node.attributes or len(ranks) < 3 or min(ranks) < 2:
        return True  # ONNX packs heads, or all three operands, into the last axis
    return dense and ranks[0] == 4


def score_bytes(graph: Graph, node: Node) -> int:
    """The scores of an attention that is not fused: a number for each query and key, always fp32."""
    query, key = (graph.tensors[n].shape for n in node.inputs[:2])
    return prod(query[:-1]) * key[-2] * FULL_BYTES


def _item_bytes(tensor: Tensor) -> int:
    return tensor.bytes // max(tensor.elements, 1)


def _unfused_attention(graph: Graph, node: Node) -> list[int]:
    """PyTorch's own composition: operands scaled and made contiguous, in fp32; then scores and their softmax.

    Half precision first copies every operand, and keeps a copy of the result in its own precision.
    """
    scores = score_bytes(graph, node)
    query, key, value = (graph.tensors[n].elements * FULL_BYTES for n in node.inputs[:3])
    if graph.tensors[node.inputs[0]].dtype in _HALF:
        product = [query, key, value, query, key, query // 2, key // 2, scores]
        softmax = [query, value, scores, scores, scores // 2]
    else:
        product = [query, query, key, scores]
        softmax = [query, scores, scores]
    return max(product, softmax, key=sum)


def backward_blocks(graph: Graph, node: Node, needing: frozenset[str]) -> list[int]:
    """What the backward of a node takes beside what its forward takes: gradients that no tensor of the graph holds."""
    if node.op != "Attention":
        return []
    if not is_fused(graph, node):
        return [score_bytes(graph, node)]
    if len(node.inputs) > 3 and node.inputs[3] in needing:  # the kernel writes it for every item of the batch
        return [score_bytes(graph, node) // FULL_BYTES * _item_bytes(graph.tensors[node.inputs[3]])]
    return []


def _recurrence(graph: Graph, node: Node) -> list[int]:
    """The weights in one piece; and a workspace: a share for each layer and direction, and the gates of a layer.

    Counted off 70 measured networks; in bf16 the weights are copied once more.
    """
    sequence, out = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
    weights = sum(t.bytes for t in (graph.tensors[n] for n in node.inputs if n) if t.kind == "parameter")
    directions = node.integer("directions", 1)
    gates = _GATES[node.op] * directions + (directions == 1)
    copies = weights if out.dtype == "bf16" else 0
    streams = node.integer("layers", 1) * directions * _STREAM_BYTES
    return [weights, streams + gates * out.bytes + 2 * sequence.bytes + copies]


def _convolution(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> int:
    source, weight, out = (graph.tensors[n] for n in (node.inputs[0], node.inputs[1], node.outputs[0]))
    groups = node.integer("group", 1)
    if len(weight.shape) < 3 or not is_contiguous(source.shape, laid_out[node.inputs[0]].strides):
        return 0
    if groups > 1 and weight.shape[1] == 1:
        return 0  # depthwise: PyTorch's own kernel
    # in half precision, groups of many channels are convolved one after the other, in the same workspace
    loops = groups if source.dtype in _HALF and weight.shape[1] > _WIDE_GROUP else 1
    return sum(_copies(source, weight, out, node)) // loops


def _copies(source: Tensor, weight: Tensor, out: Tensor, node: Node) -> list[int]:
    """The sizes of what is copied into another layout, its channels padded to what tensor cores take."""
    width, channels, *kernel = weight.shape
    half, macs = source.dtype in _HALF, out.elements * prod(weight.shape[1:])
    step = 8 if half else 4
    wider_in, wider_out = rounded(channels, step) / max(channels, 1), rounded(width, step) / max(width, 1)
    moved_in, moved_out = round(source.bytes * wider_in), round(out.bytes * wider_out)
    moved_weight = round(weight.bytes * wider_in * wider_out)
    if max(kernel) == 1:
        strided = max(node.integers("strides") or (1,)) > 1
        moves = width > _WIDE_OUTPUT if strided else macs > _MUCH_WORK and prod(out.shape[2:]) <= _FEW_PIXELS
        return [moved_in, moved_out] if moves else []
    if channels < _FEW_CHANNELS:
        window = channels * prod(kernel)
        large = window > (_LARGE_WINDOW_HALF if half else _LARGE_WINDOW_FULL)
        moves = large and macs > (_MUCH_WORK if half else 4 * _MUCH_WORK)
        return [moved_in, moved_weight, moved_out] if moves else []
    if half or macs > _MUCH_WORK:
        return [moved_in, moved_weight, moved_out]
    return [moved_in, moved_weight] if macs > _LITTLE_WORK or channels > _MANY_CHANNELS else []
