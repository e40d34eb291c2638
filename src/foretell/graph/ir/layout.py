"""Graph: which tensors share storage, and with which strides they lie in it.

In PyTorch a tensor is a view of a storage: an offset, a shape and a stride for each axis. Transpose, slice and expand
only change these numbers; they launch no kernel, move no byte and take no memory. A reshape does so, too, if the new
shape can be expressed with strides; otherwise it copies. Costs, liveness and unit features all depend on that choice.

Idea: the nodes are visited in the order in which they run, and each output gets a `Layout`: the tensor that owns its
storage, and its strides in elements. A view operator keeps the storage of its input. `viewed_strides` decides whether a
reshape may do so; it is the algorithm behind ``torch.Tensor.view`` (``computeStride_impl`` in ATen/TensorUtils.cpp).
All other operators own a new storage. Element-wise operators keep the order of axes of their first full-size operand
(TensorIterator does that), convolutions and pooling keep channels-last, and fused attention writes (batch, queries,
heads, size). Everything else is written row-major.

A model in PyTorch's memory format ``channels_last`` (`in_channels_last`) has inputs and weights of four axes in that
order, and so are the results of its convolutions, whatever their input.

Limits: offsets are not tracked, so two disjoint slices of a storage look alike. Operators that are not listed are taken
to write row-major results, even where a library chooses another layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from foretell.graph.batch_sizes import Sized, family_of
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.passes import MATMUL
from foretell.graph.ir.strides import EinsumPlan, contiguous, is_contiguous, plan_einsum, viewed_strides
from foretell.graph.ir.tensor import TensorType
from foretell.graph.signatures import ABSENT, Memo, Record, current_memo
from foretell.graph.wiring import Wiring, wiring

# with pooling, the operators that write channels-last if they read channels-last
_CONVOLUTIONS = ("Conv", "ConvTranspose", "FusedConv")
_IMAGE_AXES = 4
_MEMORY_FORMAT, _CHANNELS_LAST = "memory_format", "channels_last"  # in the metadata of a graph
_KEEPS_CHANNELS_LAST = ("Conv", "ConvTranspose", "FusedConv", "BatchNormalization", "Resize", "Concat", "Pad")


class Layout(NamedTuple):
    """Where a tensor lies: the tensor that owns its storage, and its stride along each axis, in elements."""

    storage: str
    strides: tuple[int, ...]


def in_channels_last(graph: Graph) -> Graph:
    """Return the graph of ``model.to(memory_format=torch.channels_last)``, whose inputs are laid out so, too."""
    return replace(graph, metadata={**graph.metadata, _MEMORY_FORMAT: _CHANNELS_LAST})


def _converted(graph: Graph) -> bool:
    return graph.metadata.get(_MEMORY_FORMAT) == _CHANNELS_LAST


class Layouts(Mapping[str, Layout]):
    """The layout of every tensor of a graph, and the record of every node (`foretell.graph.signatures`).

    The lists are by the number of a tensor (`foretell.graph.wiring`), with an entry more for an operand that is absent:
    its type, its type and strides, and the tensor that owns its storage.
    """

    def __init__(self, memo: Memo, edges: Wiring, types: list[int], operands: list[int]) -> None:
        self.memo = memo
        self.edges = edges
        self.types = types
        self.operands = operands
        self.storages = list(range(len(types)))
        self.records: list[Record] = []
        self.sized: Sized | None = None  # what was computed from other batch sizes
        self._made: dict[str, Layout] = {}

    @cached_property
    def bytes(self) -> list[int]:
        """The size of each tensor."""
        return list(map(self.memo.bytes.__getitem__, self.types))

    def __getitem__(self, name: str) -> Layout:
        layout = self._made.get(name)
        if layout is None:
            number = self.edges.numbers[name]
            layout = Layout(self.edges.names[self.storages[number]], self.memo.strides[self.operands[number]])
            self._made[name] = layout
        return layout

    def __iter__(self) -> Iterator[str]:
        return iter(self.edges.names)

    def __len__(self) -> int:
        return len(self.edges.names)


def layouts(graph: Graph) -> Layouts:
    """Return the layout of every tensor of the graph. It is computed once and cached on the graph."""
    cache: dict[str, Layouts] = vars(graph)  # writes past the frozen dataclass: a graph never changes
    if "_layouts" not in cache:
        cache["_layouts"] = _find_layouts(graph)
    return cache["_layouts"]


def _find_layouts(graph: Graph) -> Layouts:
    """Visit the nodes in order; what is no activation has a storage of its own, row-major if it is not converted."""
    converted = ("input", "parameter", "buffer") if _converted(graph) else ()
    memo, edges, classes = current_memo(), wiring(graph), graph.classes
    class_types = memo.types_of(classes)
    own = memo.own_operands(classes, class_types, lambda member: _own_strides(member, converted), bool(converted))
    members = classes.numbers.values()
    found = Layouts(memo, edges, [class_types[k] for k in members] + [ABSENT], [own[k] for k in members] + [ABSENT])
    flags = bool(converted) + 2 * (graph.metadata.get(MATMUL) == "tf32")
    numbers, family = memo.nodes_of(graph, flags), family_of(graph, memo, flags)
    sized = found.sized = family.at(graph) if family is not None else None
    if sized is None or not _resize(graph, found, sized, numbers):
        _visit(graph, found, numbers)
    if family is not None:
        family.learn(graph, found)
    return found


def _visit(graph: Graph, found: Layouts, numbers: list[int]) -> None:
    """Lay out the results of all nodes, one after the other; ``numbers`` are those of their fixed parts."""
    edges, types, operands, storages = found.edges, found.types, found.operands, found.storages
    records, add, (readers, makers, single) = found.memo.records, found.records.append, edges.getters
    made = [make(types) for make in makers]
    for position, (number, read, own, output) in enumerate(zip(numbers, readers, made, single)):
        signature = (number, read(operands), own)
        record = records.get(signature)
        if record is None:
            record = _new_record(graph, graph.nodes[position], found)
            if not graph.nodes[position].bodies:
                records[signature] = record
        add(record)
        if output >= 0:
            operands[output] = record.operands[0]
        else:
            for several, laid_out in zip(edges.outputs[position], record.operands):
                if several >= 0:
                    operands[several] = laid_out
        if record.has_views:
            for several, is_shared in zip(edges.outputs[position], record.shares):
                if is_shared:
                    storages[several] = storages[edges.inputs[position][0]]


def _resize(graph: Graph, found: Layouts, sized: Sized, numbers: list[int]) -> bool:
    """Lay out the results of all nodes of a kind at once, where all still read operands that lie alike.

    A kind are the nodes that had the same record at all known batch sizes.
    """
    edges, types, operands, memo = found.edges, found.types, found.operands.copy(), found.memo
    readers, makers, _ = edges.getters
    family, known, found.operands = sized.family, found.operands, operands
    records: list[Record] = []
    for kind in family.kinds:
        position = kind.position
        signature = (numbers[position], readers[position](operands), makers[position](types))
        record = memo.records.get(signature)
        if record is None:
            node = graph.nodes[position]
            record = sized.record(kind.template, edges.inputs[position], edges.outputs[position], found)
            record = record or _new_record(graph, node, found)
            if not node.bodies:
                memo.records[signature] = record
        records.append(record)
        for column, laid_out in zip(kind.results, record.operands):
            for output in column:
                operands[output] = laid_out
    found._made.clear()  # of storages nothing was known yet
    if not family.reads_alike(operands):
        found.operands = known
        return False
    found.records = list(map(records.__getitem__, family.kind_of))
    storages = found.storages
    for position, record in enumerate(found.records):
        if record.has_views:
            for output, is_shared in zip(edges.outputs[position], record.shares):
                if is_shared:
                    storages[output] = storages[edges.inputs[position][0]]
    return True


def _own_strides(own: TensorType, converted: tuple[str, ...]) -> tuple[int, ...]:
    """The strides of a tensor that no node makes."""
    is_image = own.kind in converted and len(own.shape) == _IMAGE_AXES
    return channels_last(own.shape) if is_image else contiguous(own.shape)


def _new_record(graph: Graph, node: Node, known: Layouts) -> Record:
    """The record of a signature that was never seen, with the layouts of its outputs."""
    record, found = Record(), [_output_layout(graph, node, name, known) if name else None for name in node.outputs]
    types, numbers = known.types, known.edges.numbers
    record.operands = tuple(
        ABSENT if layout is None else known.memo.operand(types[numbers[name]], layout.strides)
        for name, layout in zip(node.outputs, found, strict=True)
    )
    record.shares = tuple(
        layout is not None and layout.storage != name for name, layout in zip(node.outputs, found, strict=True)
    )
    record.has_views = any(record.shares)
    return record


def _output_layout(graph: Graph, node: Node, output: str, known: Mapping[str, Layout]) -> Layout:
    """The layout of one output, from the layout of the first input and the kind of the operator."""
    kind, shape = lookup(node.op, node.domain).kind, graph.tensors[output].shape
    if node.op == "Einsum" and (plan := einsum_plan(graph, node, known)) is not None:
        return Layout(output, plan.strides)
    if node.inputs and node.inputs[0]:
        source, source_layout = graph.tensors[node.inputs[0]].shape, known[node.inputs[0]]
        if kind == "view":
            strides = _view_strides(node, source, source_layout.strides, shape)
            if strides is not None:
                return Layout(source_layout.storage, strides)
        elif node.integer("inplace", 0) and source == shape:  # relu_ and the like write over their input
            return source_layout
        elif kind == "elementwise" and (operand := _first_of_shape(graph, node, shape)):
            return Layout(output, _dense_like(shape, known[operand].strides))
        elif node.op in _CONVOLUTIONS and len(shape) == _IMAGE_AXES and _converted(graph):
            return Layout(output, channels_last(shape))  # a channels-last weight alone decides it
        elif _keeps_channels_last(node, kind) and _all_channels_last(graph, node, known) and len(shape) > 3:
            return Layout(output, channels_last(shape))
        elif kind == "attention" and len(shape) == 4 and len(source) == 4:
            _, heads, queries, size = shape  # the fused kernels write (batch, queries, heads, size)
            return Layout(output, (queries * heads * size, size, heads * size, 1))
    return Layout(output, contiguous(shape))


def einsum_plan(graph: Graph, node: Node, known: Mapping[str, Layout]) -> EinsumPlan | None:
    """How PyTorch carries out an ``einsum``, or None where that is not known."""
    if not all(node.inputs) or len(node.inputs) < 2:
        return None
    shapes = [graph.tensors[name].shape for name in node.inputs]
    return plan_einsum(node.text("equation"), shapes, [known[name].strides for name in node.inputs])


def _first_of_shape(graph: Graph, node: Node, shape: tuple[int, ...]) -> str:
    """The first operand that has the shape of the result: its strides decide those of the result."""
    return next((name for name in node.inputs if name and graph.tensors[name].shape == shape), "")


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an image in PyTorch's ``channels_last`` memory format.

    >>> channels_last((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    batch, channels, *sizes = shape
    strides = contiguous((batch, *sizes, channels))
    return (strides[0], strides[-1], *strides[1:-1])


def is_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an image lies in ``channels_last`` order, perhaps with gaps, and is not row-major as well."""
    if len(shape) < 4 or is_contiguous(shape, strides):
        return False
    smallest_stride = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] > 1:
            if strides[axis] < max(smallest_stride, 1):
                return False
            smallest_stride = strides[axis] * shape[axis]
    # an image of one pixel has no order of its own: PyTorch takes it for row-major
    spatial_stride = min((strides[axis] for axis in range(2, len(shape)) if shape[axis] > 1), default=0)
    return shape[1] > 1 and strides[1] < spatial_stride


def _keeps_channels_last(node: Node, kind: str) -> bool:
    """Whether an operator writes channels-last if its input lies so; the others write row-major."""
    return kind == "pooling" or node.op in _KEEPS_CHANNELS_LAST


def _all_channels_last(graph: Graph, node: Node, known: Mapping[str, Layout]) -> bool:
    """Whether the operands that decide the layout lie channels-last: all of a Concat, the first of the others."""
    deciding = node.inputs if node.op == "Concat" else node.inputs[:1]
    return all(is_channels_last(graph.tensors[name].shape, known[name].strides) for name in deciding if name)


def distinct_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements of storage that a tensor touches: an expanded axis (stride 0) touches only one."""
    count = 1
    for size, stride in zip(shape, strides):
        count *= size if stride else min(size, 1)
    return count


def _dense_like(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that an element-wise kernel gives its output: the axes in the order of the input, without gaps."""
    if strides == contiguous(shape):
        return strides
    order = sorted((i for i in range(len(shape)) if strides[i]), key=lambda i: -strides[i])
    if len(order) < len(shape):  # an expanded input has no order to keep along its axes of stride 0
        return contiguous(shape)
    packed, step = [0] * len(shape), 1
    for axis in reversed(order):
        packed[axis] = step
        step *= shape[axis]
    return tuple(packed)


def _view_strides(
    node: Node, shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of a view operator's output, or None where it has to copy."""
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
