"""graph: which tensors share storage, and how they lie in it.

A transposed, sliced or expanded tensor is a new look at the same storage and costs nothing. Reshaping one that does
not lie contiguously copies it. The rules are those of PyTorch, whose kernels take strided inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup

_KEEPING = ("Conv", "ConvTranspose", "FusedConv", "BatchNormalization", "Resize", "Concat", "Pad")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: the tensor that owns the storage, and the distance between neighbours along each axis."""

    storage: str
    strides: tuple[int, ...]


@lru_cache(maxsize=4096)
def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(reversed(list(accumulate(shape[:0:-1], mul, initial=1)))) if shape else ()


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor lies row-major; axes of size 1 may have any stride."""
    return all(d == 1 or s == c for d, s, c in zip(shape, strides, contiguous(shape))) or 0 in shape


def viewed_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of a reshaped view, or None where a copy is needed (the rule of ``torch.Tensor.view``).

    >>> viewed_strides((2, 3, 4), (12, 4, 1), (6, 4)), viewed_strides((3, 2), (1, 3), (6,))
    ((4, 1), None)
    """
    if 0 in shape or not shape:
        return contiguous(new_shape)
    new_strides = [0] * len(new_shape)
    position = len(new_shape) - 1
    chunk_stride = strides[-1]
    chunk_size = remaining = 1
    for axis in range(len(shape) - 1, -1, -1):
        chunk_size *= shape[axis]
        ends = axis == 0 or (shape[axis - 1] != 1 and strides[axis - 1] != chunk_size * chunk_stride)
        if not ends:
            continue
        while position >= 0 and (remaining < chunk_size or new_shape[position] == 1):
            new_strides[position] = remaining * chunk_stride
            remaining *= new_shape[position]
            position -= 1
        if remaining != chunk_size:
            return None
        if axis > 0:
            chunk_stride = strides[axis - 1]
            chunk_size = remaining = 1
    return tuple(new_strides) if position < 0 else None


def layouts(graph: Graph) -> Mapping[str, Layout]:
    """The layout of every tensor of the graph; found once and kept with the graph, which never changes."""
    kept: dict[str, Mapping[str, Layout]] = vars(graph)
    if "_layouts" not in kept:
        kept["_layouts"] = _find_layouts(graph)
    return kept["_layouts"]


def _find_layouts(graph: Graph) -> Mapping[str, Layout]:
    found: dict[str, Layout] = {
        n: Layout(n, contiguous(t.shape)) for n, t in graph.tensors.items() if t.kind != "activation"
    }
    for node in graph.nodes:
        for output in node.outputs:
            if output:
                found[output] = _output_layout(graph, node, output, found)
    return found


def _output_layout(graph: Graph, node: Node, output: str, found: Mapping[str, Layout]) -> Layout:
    kind, shape = lookup(node.op, node.domain).kind, graph.tensors[output].shape
    if node.inputs and node.inputs[0]:
        source, before = graph.tensors[node.inputs[0]].shape, found[node.inputs[0]]
        if kind == "view":
            strides = _view(node, source, before.strides, shape)
            if strides is not None:
                return Layout(before.storage, strides)
        elif node.integer("inplace", 0) and source == shape:
            return before
        elif kind == "elementwise" and (alike := _first_alike(graph, node, shape)):
            return Layout(output, _dense_like(shape, found[alike].strides))
        elif _keeps_channels_last(node, kind) and _all_channels_last(graph, node, found) and len(shape) > 3:
            return Layout(output, channels_last(shape))
        elif kind == "attention" and len(shape) == 4 and len(source) == 4:
            _, heads, queries, size = shape  # the fused kernels write (batch, queries, heads, size)
            return Layout(output, (queries * heads * size, size, heads * size, 1))
    return Layout(output, contiguous(shape))


def _first_alike(graph: Graph, node: Node, shape: tuple[int, ...]) -> str:
    """The first operand of the result's shape: it decides how the result lies."""
    return next((name for name in node.inputs if name and graph.tensors[name].shape == shape), "")


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an image whose channels lie side by side.

    >>> channels_last((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    batch, channels, *sizes = shape
    strides = contiguous((batch, *sizes, channels))
    return (strides[0], strides[-1], *strides[1:-1])


def is_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the channels of an image lie side by side, perhaps among others, and it is not row-major as well."""
    if len(shape) < 4 or is_contiguous(shape, strides):
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] > 1:
            if strides[axis] < max(least, 1):
                return False
            least = strides[axis] * shape[axis]
    # a picture of one point has no order of its own: PyTorch takes it for row-major
    spaced = min((strides[axis] for axis in range(2, len(shape)) if shape[axis] > 1), default=0)
    return shape[1] > 1 and strides[1] < spaced


def _keeps_channels_last(node: Node, kind: str) -> bool:
    """Operators that write their result as their input lies; all others of several axes write row-major."""
    return kind == "pooling" or node.op in _KEEPING


def _all_channels_last(graph: Graph, node: Node, found: Mapping[str, Layout]) -> bool:
    read = node.inputs if node.op == "Concat" else node.inputs[:1]
    return all(is_channels_last(graph.tensors[name].shape, found[name].strides) for name in read if name)


def distinct_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of storage a tensor touches: an expanded axis (stride 0) touches one."""
    count = 1
    for size, stride in zip(shape, strides):
        count *= size if stride else min(size, 1)
    return count


def _dense_like(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides an element-wise kernel gives its output: the input's order of axes, packed."""
    if strides == contiguous(shape):
        return strides
    order = sorted((i for i in range(len(shape)) if strides[i]), key=lambda i: -strides[i])
    if len(order) < len(shape):
        return contiguous(shape)
    packed, step = [0] * len(shape), 1
    for axis in reversed(order):
        packed[axis] = step
        step *= shape[axis]
    return tuple(packed)


def _view(
    node: Node, shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of a view operator's output, None where it has to copy."""
    op = node.op
    if op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return viewed_strides(shape, strides, new_shape)
    if op == "Transpose":
        perm = node.integers("perm") or tuple(range(len(shape) - 1, -1, -1))
        return tuple(strides[p] for p in perm)
    if op == "Expand":
        padded = (0,) * (len(new_shape) - len(shape)) + strides
        sizes = (1,) * (len(new_shape) - len(shape)) + shape
        return tuple(s if d == n else 0 for s, d, n in zip(padded, sizes, new_shape))
    if op == "Slice":
        steps = dict(zip(node.integers("axes") or (), node.integers("steps") or ()))
        return tuple(s * abs(steps.get(i, 1)) for i, s in enumerate(strides))
    if op == "Select":
        axis = node.integer("axis", 0) % max(len(shape), 1)
        return strides[:axis] + strides[axis + 1 :]
    if op == "Contiguous":
        return strides if is_contiguous(shape, strides) else None
    if len(new_shape) == len(shape):
        return strides
    return contiguous(new_shape)
