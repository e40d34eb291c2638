"""Predictors: features of edges: what a compiler sees when it decides whether two operators run as one kernel.

A row describes one edge of the graph in four parts: how the two ends fit together (shapes, sizes, other readers), the
source node, the target node, and the operators around them. The surroundings matter because a decision is not local: a
ReduceMean is the start of a normalisation only if the right operators follow. Three further columns come from a
simulation of a lazy compiler (`foretell.predictors.fusion.lazy_compiler`).

Sizes are divided by the batch size: fusion hardly depends on the batch, and a graph comes with just one. Numbers are
log2(1 + size).

Limits: the view is a few steps wide; rules of a compiler that look farther (for example over a whole attention block)
are seen only through counts such as ``ops_before``.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import FIRST_CODED, operator_code
from foretell.features.units import KINDS
from foretell.graph import Graph
from foretell.graph.ir.layout import Layout, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.strides import is_contiguous
from foretell.graph.ir.tensor import Tensor
from foretell.predictors.fusion.lazy_compiler import Lowered, lower

RUNTIMES = ("eager", "inductor", "onnxruntime")

# the columns of a node: its own, and what is near it
_NODE_COLUMNS = (
    "operator", "kind", "log_in", "log_out", "log_weight", "weight_rank", "rank", "last", "float", "returned",
    "inputs", "outputs", "constants", "kernel", "stride", "groups", "axis", "log_space", "aligned",
    "aligned_inside", "copies", "strided", "width",
)  # fmt: skip
_NEAR = (
    "makers", "readers", "pointwise_readers", "reducing_readers", "working_readers", "viewing_readers", "next_work",
    "steps_to_work", "log_next_work", "last_work", "steps_from_work", "log_last_work", "ops_before",
    "ops_behind", "aligned_before", "aligned_behind", "reads", "ops", "written_out",
    "from_input",
)  # fmt: skip
NODE_COLUMNS = (*_NODE_COLUMNS, *_NEAR)
_PAIR = (
    "runtime", "same_shape", "log_ratio", "input", "distance", "same_origin", "log_carried",
    "only_maker", "only_reader", "same_space", "products_between", "work_between", "inlined",
)  # fmt: skip
# codes of operators around an edge: so many steps before its source, after its target, beside it; ``true_…`` skip views
_AROUND = (
    "before_1", "before_2", "before_3", "behind_1", "behind_2", "behind_3", "beside_source", "beside_target",
    "second_before", "second_behind", "true_source", "true_before", "true_target", "true_behind",
)  # fmt: skip
EDGE_COLUMNS = (
    *_PAIR,
    *(f"source_{name}" for name in NODE_COLUMNS),
    *(f"target_{name}" for name in NODE_COLUMNS),
    *_AROUND,
)
# columns that hold codes, which the trees treat as categories
CATEGORIES = tuple(
    position
    for position, name in enumerate(EDGE_COLUMNS)
    if name in ("runtime", *_AROUND) or name.endswith(("_operator", "_kind", "next_work", "last_work"))
    if "log" not in name
)
EDGE_SCHEMA = hashlib.sha256("|".join((*EDGE_COLUMNS, *RUNTIMES, *FIRST_CODED, *KINDS)).encode()).hexdigest()[:16]

_NONE = -1
_VIEWS = frozenset(KINDS.index(kind) for kind in ("view", "free"))
_POINTWISE = frozenset(KINDS.index(kind) for kind in ("elementwise", "generator", "movement"))
_REDUCING = frozenset(KINDS.index(kind) for kind in ("reduction", "normalisation", "pooling"))
_PRODUCTS = frozenset(KINDS.index(kind) for kind in ("contraction", "attention", "recurrent"))
_MAX_COUNT = 64  # counts and steps are clipped here
_MAX_BETWEEN = 1000  # the number of nodes between two ends is clipped here
_BLOCK = 16  # the largest block of channels of a blocked layout


@dataclass(frozen=True)
class Edges:
    """The distinct edges of a graph by source and target, and a row of `EDGE_COLUMNS` for each."""

    sources: NDArray[np.intp]
    targets: NDArray[np.intp]
    features: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.sources)


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """Every pair of a node and a reader of its outputs, once, in order."""
    pairs = {
        (graph.producers[name], target)
        for target, node in enumerate(graph.nodes)
        for name in node.inputs
        if name in graph.producers
    }
    return sorted(pairs)


def extract_edges(graph: Graph, runtime: str) -> Edges:
    """The edges of a graph with their features, for the compiler of a runtime."""
    pairs = edges_of(graph)
    if not pairs:
        empty = np.zeros(0, np.intp)
        return Edges(empty, empty, np.zeros((0, len(EDGE_COLUMNS)), np.float32))
    sources, targets = np.array(pairs, np.intp).T
    count = len(graph.nodes)
    makers: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        makers[target].append(source)
        readers[source].append(target)
    tensor_layouts = layouts(graph)
    nodes = np.array([_node_row(graph, node, tensor_layouts) for node in graph.nodes])
    lowered = lower(graph, makers, readers)
    nodes = np.concatenate([nodes, _surroundings(nodes, makers, readers, lowered)], axis=1)
    space = nodes[:, NODE_COLUMNS.index("log_space")]
    columns = (
        np.full((len(pairs), 1), RUNTIMES.index(runtime)),
        np.array([_fit_together(graph, source, target, makers, readers) for source, target in pairs]),
        (space[sources] == space[targets])[:, None],
        _between(nodes[:, 1], sources, targets, makers),
        np.array([[pair in lowered.inlined] for pair in pairs]),
        nodes[sources],
        nodes[targets],
        _around(nodes, sources, targets, makers, readers),
    )
    return Edges(sources, targets, np.concatenate(columns, axis=1).astype(np.float32))


def _surroundings(
    nodes: NDArray[np.float64], makers: list[list[int]], readers: list[list[int]], lowered: Lowered
) -> NDArray[np.float64]:
    """What is near each node: its readers, and the nearest work before and after it that is more than pointwise.

    Views and pointwise nodes are ``light``: the search looks through them. A forward and a backward sweep over the
    nodes, which are in topological order, suffice.
    """
    operators, kinds = nodes[:, 0].tolist(), nodes[:, 1].astype(int).tolist()
    spaces = nodes[:, _NODE_COLUMNS.index("log_space")].tolist()
    light = [kind in _VIEWS or kind in _POINTWISE for kind in kinds]
    count = len(kinds)
    after = [(float(_NONE), float(_MAX_COUNT), 0.0, 0.0)] * count
    for i in range(count - 1, -1, -1):
        nearest = min(
            (_nearest_work(j, after, light, operators, spaces) for j in readers[i]), key=lambda e: e[1], default=None
        )
        ops = sum(after[j][3] + (kinds[j] not in _VIEWS) for j in readers[i] if light[j])
        after[i] = (*(nearest or (float(_NONE), float(_MAX_COUNT), 0.0)), min(ops, _MAX_COUNT))
    before = [(float(_NONE), float(_MAX_COUNT), 0.0)] * count
    ops_before = [0.0] * count
    for i in range(count):
        before[i] = min(
            (_nearest_work(j, before, light, operators, spaces) for j in makers[i]), key=lambda e: e[1],
            default=(float(_NONE), float(_MAX_COUNT), 0.0),
        )  # fmt: skip
        ops = sum(ops_before[j] + (kinds[j] not in _VIEWS) for j in makers[i] if light[j])
        ops_before[i] = min(ops, _MAX_COUNT)
    aligned = nodes[:, _NODE_COLUMNS.index("aligned")].tolist()
    least_before, least_after = aligned[:], aligned[:]
    for i in range(count):  # looks through light nodes, back to the last node that does work
        least_before[i] = min((least_before[j] if light[j] else aligned[j] for j in makers[i]), default=_BLOCK)
    for i in range(count - 1, -1, -1):
        least_after[i] = min((least_after[j] if light[j] else aligned[j] for j in readers[i]), default=_BLOCK)
    activation_inputs = nodes[:, _NODE_COLUMNS.index("inputs")].tolist()
    from_input: list[bool] = []  # other nodes depend on weights alone: a compiler may fold them into constants
    for i in range(count):
        from_input.append(activation_inputs[i] > len(makers[i]) or any(from_input[j] for j in makers[i]))
    lazy_columns = [
        (min(reads, _MAX_COUNT), min(operations, _MAX_COUNT), written)
        for reads, operations, written in zip(lowered.reads, lowered.operations, lowered.written, strict=True)
    ]
    rows = []
    for i in range(count):
        read_by = [kinds[j] for j in readers[i]]
        pointwise, views = sum(k in _POINTWISE for k in read_by), sum(k in _VIEWS for k in read_by)
        reducing = sum(k in _REDUCING for k in read_by)
        rows.append([
            len(makers[i]), len(readers[i]), pointwise, reducing, len(read_by) - pointwise - views - reducing, views,
            *after[i][:3], *before[i], ops_before[i], after[i][3], least_before[i], least_after[i], *lazy_columns[i],
            from_input[i],
        ])  # fmt: skip
    return np.array(rows, np.float64)


def _nearest_work(
    other: int, nearest: Sequence[tuple[float, ...]], light: list[bool], operators: list[float], spaces: list[float]
) -> tuple[float, float, float]:
    """The nearest work that is visible through a neighbour: its operator, its distance, and its size."""
    if not light[other]:
        return operators[other], 1.0, spaces[other]
    operator, steps, space = nearest[other][:3]
    return operator, min(steps + 1.0, _MAX_COUNT), space


def _node_row(graph: Graph, node: Node, tensor_layouts: Mapping[str, Layout]) -> list[float]:
    """The columns of a node alone, in the order of `_OWN`."""
    tensors = [graph.tensors[name] for name in node.inputs if name]
    results = [graph.tensors[name] for name in node.outputs if name]
    constants = [tensor for tensor in tensors if tensor.kind != "activation" and tensor.kind != "input"]
    activations = [tensor for tensor in tensors if tensor.kind in ("activation", "input")]
    weight = max(constants, key=lambda tensor: tensor.elements, default=None)
    shape = results[0].shape if results else ()
    kernel, strides = node.integers("kernel_shape"), node.integers("strides")
    # the last axis: most compilers treat reductions over it differently
    axis = node.attributes.get("axis", node.attributes.get("axes"))
    if isinstance(axis, tuple):
        axis = axis[-1] if axis else None
    return [
        float(operator_code(node.op)),
        float(KINDS.index(lookup(node.op, node.domain).kind)),
        math.log2(1 + max((_per_item(graph, tensor) for tensor in activations), default=0.0)),
        math.log2(1 + sum(_per_item(graph, tensor) for tensor in results)),
        math.log2(1 + weight.elements) if weight else _NONE,
        len(weight.shape) if weight else _NONE,
        len(shape),
        math.log2(1 + shape[-1]) if shape else _NONE,
        results[0].is_float if results else _NONE,
        any(name in graph.outputs for name in node.outputs),
        len(activations),
        len(results),
        len(constants),
        math.prod(kernel) if kernel else _NONE,
        math.prod(strides) if strides else _NONE,
        node.integer("group", _NONE),
        float(axis) if isinstance(axis, int | float) else -9.0,
        math.log2(1 + max((_per_item(graph, tensor) for tensor in (*results, *activations)), default=0.0)),
        math.gcd(shape[1], _BLOCK) if len(shape) > 2 else math.gcd(shape[-1], _BLOCK) if shape else _BLOCK,
        math.gcd(weight.shape[1], _BLOCK) if weight and len(weight.shape) > 1 else _BLOCK,
        *_storage(node, shape, tensor_layouts),
        results[0].bytes / max(results[0].elements, 1) if results else _NONE,
    ]


def _per_item(graph: Graph, tensor: Tensor) -> float:
    """The number of elements for one item of the batch."""
    return tensor.elements / graph.batch_size if tensor.batch_axis is not None else float(tensor.elements)


def _storage(node: Node, shape: tuple[int, ...], tensor_layouts: Mapping[str, Layout]) -> tuple[float, float]:
    """Whether a node's output has storage of its own, and whether it is strided."""
    output = tensor_layouts.get(node.outputs[0]) if node.outputs else None
    first_input = tensor_layouts.get(node.inputs[0]) if node.inputs else None
    if output is None:
        return float(_NONE), float(_NONE)
    return float(first_input is None or output.storage != first_input.storage), float(
        not is_contiguous(shape, output.strides)
    )


def _fit_together(
    graph: Graph, source: int, target: int, makers: list[list[int]], readers: list[list[int]]
) -> list[float]:
    """The tensor that passes from one end to the other, and who else writes or reads it."""
    before, after = graph.nodes[source], graph.nodes[target]
    # several tensors may connect the two: the first one stands for the edge
    name = next(name for name in after.inputs if graph.producers.get(name) == source)
    passed = graph.tensors[name]
    result = graph.tensors[after.outputs[0]] if after.outputs and after.outputs[0] else passed
    return [
        passed.shape == result.shape,
        math.log2((1 + _per_item(graph, passed)) / (1 + _per_item(graph, result))),
        after.inputs.index(name),
        min(target - source, _MAX_BETWEEN),
        bool(before.origin) and before.origin == after.origin,
        math.log2(1 + _per_item(graph, passed)),
        len(makers[target]) == 1,
        len(readers[source]) == 1,
    ]


def _between(
    kinds: NDArray[np.float64], sources: NDArray[np.intp], targets: NDArray[np.intp], makers: list[list[int]]
) -> NDArray[np.float64]:
    """How many products, and how much work of any kind, lie between the ends on the longest path to the target.

    Where a path leads from one end to the other through a product, no kernel can hold both ends.
    """
    columns = []
    for heavy in (_PRODUCTS, _PRODUCTS | _REDUCING):
        is_heavy_node = [int(kind) in heavy for kind in kinds.tolist()]
        depth: list[int] = []
        for node, inputs in enumerate(makers):
            # nodes are in topological order: the depth of all inputs is known
            depth.append(max((depth[maker] for maker in inputs), default=0) + is_heavy_node[node])
        deep, is_heavy = np.array(depth), np.array(is_heavy_node)
        columns.append(deep[targets] - deep[sources] - is_heavy[targets])
    return np.stack(columns, axis=1).astype(np.float64)


def _around(
    nodes: NDArray[np.float64],
    sources: NDArray[np.intp],
    targets: NDArray[np.intp],
    makers: list[list[int]],
    readers: list[list[int]],
) -> NDArray[np.float64]:
    """Codes of the operators around each edge; −1 where there is none, or where the operator is unknown."""
    # one extra entry at the end: the position −1 (no node) leads to it, and so to the code −1
    codes = np.append(nodes[:, 0], _NONE)
    first_maker = np.array([*(own[0] if own else _NONE for own in makers), _NONE])
    last_maker = np.array([*(own[-1] if own else _NONE for own in makers), _NONE])
    first_reader = np.array([*(own[0] if own else _NONE for own in readers), _NONE])
    last_reader = np.array([*(own[-1] if own else _NONE for own in readers), _NONE])
    before, after = [first_maker[sources]], [first_reader[targets]]
    for _ in range(2):
        before.append(first_maker[before[-1]])
        after.append(first_reader[after[-1]])
    beside_source = np.where(first_reader[sources] == targets, last_reader[sources], first_reader[sources])
    beside_source = np.where(beside_source == targets, _NONE, beside_source)
    beside_target = np.where(first_maker[targets] == sources, last_maker[targets], first_maker[targets])
    beside_target = np.where(beside_target == sources, _NONE, beside_target)
    is_view = np.append(np.isin(nodes[:, 1], list(_VIEWS)), False)
    true_before, true_after = _past_views(first_maker, is_view), _past_views(first_reader[:-1], is_view, back=True)
    true_source, true_target = true_before[sources], true_after[targets]
    around = [*before, *after, beside_source, beside_target, last_maker[sources], last_reader[targets]]
    around += [true_source, true_before[first_maker[true_source]], true_target]
    around += [true_after[first_reader[true_target]]]
    return np.stack([codes[positions] for positions in around], axis=1)


def _past_views(step: NDArray[np.intp], is_view: NDArray[np.bool_], *, back: bool = False) -> NDArray[np.intp]:
    """For each node the node itself, or, where it is a view, the first along ``step`` that is not."""
    count = len(is_view) - 1
    reached = np.full(count + 1, _NONE)
    for node in range(count - 1, -1, -1) if back else range(count):
        reached[node] = reached[step[node]] if is_view[node] else node
    return reached
