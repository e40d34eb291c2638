"""Features: one row an edge of a graph: what a compiler sees when it decides whether two operators run as one kernel.

A row has both ends, how they fit together, and the operators around them: whether a ReduceMean begins a normalisation
shows only in what follows it.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import KINDS
from foretell.graph import Graph
from foretell.graph.ir.layout import Layout, is_contiguous, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import OPERATORS, lookup
from foretell.graph.ir.tensor import Tensor
from foretell.predictors.fusion.lazy_compiler import Lowered, lower

RUNTIMES = ("eager", "inductor", "onnxruntime")

_NUMBERS = {name: number for number, name in enumerate(sorted(OPERATORS))}
# the columns of a node: its own, and what lies around it
_OWN = (
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
NODE_COLUMNS = (*_OWN, *_NEAR)
_PAIR = (
    "runtime", "same_shape", "log_ratio", "input", "distance", "same_origin", "log_carried",
    "only_maker", "only_reader", "same_space", "products_between", "work_between", "inlined",
)  # fmt: skip
# operators around an edge: how many steps before its source, behind its target, beside it; then the same without views
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
# columns that hold codes, not sizes
CATEGORIES = tuple(
    position
    for position, name in enumerate(EDGE_COLUMNS)
    if name in ("runtime", *_AROUND) or name.endswith(("_operator", "_kind", "next_work", "last_work"))
    if "log" not in name
)
EDGE_SCHEMA = hashlib.sha256("|".join((*EDGE_COLUMNS, *RUNTIMES, *_NUMBERS, *KINDS)).encode()).hexdigest()[:16]

_NONE = -1
_VIEWS = frozenset(KINDS.index(kind) for kind in ("view", "free"))
_POINTWISE = frozenset(KINDS.index(kind) for kind in ("elementwise", "generator", "movement"))
_REDUCING = frozenset(KINDS.index(kind) for kind in ("reduction", "normalisation", "pooling"))
_PRODUCTS = frozenset(KINDS.index(kind) for kind in ("contraction", "attention", "recurrent"))
_MOST = 64
_FARTHEST = 1000  # nodes between two ends, as far as they are counted
_BLOCK = 16  # channels that kernels for blocked layouts take at once, at most


@dataclass(frozen=True)
class Edges:
    """The edges of a graph, by source and target, without doubles, and a row of `EDGE_COLUMNS` for each."""

    sources: NDArray[np.intp]
    targets: NDArray[np.intp]
    features: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.sources)


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    """Every pair of a node and one that reads what it makes, once, in order."""
    found = {
        (graph.producers[name], target)
        for target, node in enumerate(graph.nodes)
        for name in node.inputs
        if name in graph.producers
    }
    return sorted(found)


def extract_edges(graph: Graph, runtime: str) -> Edges:
    """The edges of a graph as a runtime's compiler meets them."""
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
    lies = layouts(graph)
    nodes = np.array([_node_row(graph, node, lies) for node in graph.nodes])
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
    """What lies around each node: who reads it, and the work before and behind it that is more than pointwise."""
    operators, kinds = nodes[:, 0].tolist(), nodes[:, 1].astype(int).tolist()
    spaces = nodes[:, _OWN.index("log_space")].tolist()
    light = [kind in _VIEWS or kind in _POINTWISE for kind in kinds]
    count = len(kinds)
    behind = [(float(_NONE), float(_MOST), 0.0, 0.0)] * count
    for i in range(count - 1, -1, -1):
        nearest = min(
            (_seen(j, behind, light, operators, spaces) for j in readers[i]), key=lambda e: e[1], default=None
        )
        ops = sum(behind[j][3] + (kinds[j] not in _VIEWS) for j in readers[i] if light[j])
        behind[i] = (*(nearest or (float(_NONE), float(_MOST), 0.0)), min(ops, _MOST))
    before = [(float(_NONE), float(_MOST), 0.0)] * count
    ops_before = [0.0] * count
    for i in range(count):
        before[i] = min(
            (_seen(j, before, light, operators, spaces) for j in makers[i]), key=lambda e: e[1],
            default=(float(_NONE), float(_MOST), 0.0),
        )  # fmt: skip
        ops = sum(ops_before[j] + (kinds[j] not in _VIEWS) for j in makers[i] if light[j])
        ops_before[i] = min(ops, _MOST)
    aligned = nodes[:, _OWN.index("aligned")].tolist()
    least_before, least_behind = aligned[:], aligned[:]
    for i in range(count):  # through what only passes on, as far as the last work
        least_before[i] = min((least_before[j] if light[j] else aligned[j] for j in makers[i]), default=_BLOCK)
    for i in range(count - 1, -1, -1):
        least_behind[i] = min((least_behind[j] if light[j] else aligned[j] for j in readers[i]), default=_BLOCK)
    given = nodes[:, _OWN.index("inputs")].tolist()
    from_input: list[bool] = []  # others are computed from weights alone: a compiler may do that once
    for i in range(count):
        from_input.append(given[i] > len(makers[i]) or any(from_input[j] for j in makers[i]))
    lazily = [
        (min(reads, _MOST), min(operations, _MOST), written)
        for reads, operations, written in zip(lowered.reads, lowered.operations, lowered.written, strict=True)
    ]
    rows = []
    for i in range(count):
        read_by = [kinds[j] for j in readers[i]]
        pointwise, views = sum(k in _POINTWISE for k in read_by), sum(k in _VIEWS for k in read_by)
        reducing = sum(k in _REDUCING for k in read_by)
        rows.append([
            len(makers[i]), len(readers[i]), pointwise, reducing, len(read_by) - pointwise - views - reducing, views,
            *behind[i][:3], *before[i], ops_before[i], behind[i][3], least_before[i], least_behind[i], *lazily[i],
            from_input[i],
        ])  # fmt: skip
    return np.array(rows, np.float64)


def _seen(
    other: int, found: Sequence[tuple[float, ...]], light: list[bool], operators: list[float], spaces: list[float]
) -> tuple[float, float, float]:
    """The nearest work that is seen through a neighbour: its operator, how far it is, how large."""
    if not light[other]:
        return operators[other], 1.0, spaces[other]
    operator, steps, space = found[other][:3]
    return operator, min(steps + 1.0, _MOST), space


def _node_row(graph: Graph, node: Node, lies: Mapping[str, Layout]) -> list[float]:
    tensors = [graph.tensors[name] for name in node.inputs if name]
    results = [graph.tensors[name] for name in node.outputs if name]
    kept = [tensor for tensor in tensors if tensor.kind != "activation" and tensor.kind != "input"]
    given = [tensor for tensor in tensors if tensor.kind in ("activation", "input")]
    weight = max(kept, key=lambda tensor: tensor.elements, default=None)
    shape = results[0].shape if results else ()
    kernel, strides = node.integers("kernel_shape"), node.integers("strides")
    axis = node.attributes.get("axis", node.attributes.get("axes"))
    if isinstance(axis, tuple):
        axis = axis[-1] if axis else None
    return [
        float(_NUMBERS.get(node.op, _NONE)),
        float(KINDS.index(lookup(node.op, node.domain).kind)),
        math.log2(1 + max((_per_item(graph, tensor) for tensor in given), default=0.0)),
        math.log2(1 + sum(_per_item(graph, tensor) for tensor in results)),
        math.log2(1 + weight.elements) if weight else _NONE,
        len(weight.shape) if weight else _NONE,
        len(shape),
        math.log2(1 + shape[-1]) if shape else _NONE,
        results[0].is_float if results else _NONE,
        any(name in graph.outputs for name in node.outputs),
        len(given),
        len(results),
        len(kept),
        math.prod(kernel) if kernel else _NONE,
        math.prod(strides) if strides else _NONE,
        node.integer("group", _NONE),
        float(axis) if isinstance(axis, int | float) else -9.0,
        math.log2(1 + max((_per_item(graph, tensor) for tensor in (*results, *given)), default=0.0)),
        math.gcd(shape[1], _BLOCK) if len(shape) > 2 else math.gcd(shape[-1], _BLOCK) if shape else _BLOCK,
        math.gcd(weight.shape[1], _BLOCK) if weight and len(weight.shape) > 1 else _BLOCK,
        *_lie(node, shape, lies),
        results[0].bytes / max(results[0].elements, 1) if results else _NONE,
    ]


def _per_item(graph: Graph, tensor: Tensor) -> float:
    """How many numbers an item of the batch has: what fuses does not depend on the batch, but graphs come with one."""
    return tensor.elements / graph.batch_size if tensor.batch_axis is not None else float(tensor.elements)


def _lie(node: Node, shape: tuple[int, ...], lies: Mapping[str, Layout]) -> tuple[float, float]:
    """Whether what a node makes has storage of its own, and whether it lies otherwise than row by row."""
    made = lies.get(node.outputs[0]) if node.outputs else None
    given = lies.get(node.inputs[0]) if node.inputs else None
    if made is None:
        return float(_NONE), float(_NONE)
    return float(given is None or made.storage != given.storage), float(not is_contiguous(shape, made.strides))


def _fit_together(
    graph: Graph, source: int, target: int, makers: list[list[int]], readers: list[list[int]]
) -> list[float]:
    """What passes from one end to the other, and who else makes or reads it."""
    before, behind = graph.nodes[source], graph.nodes[target]
    name = next(name for name in behind.inputs if graph.producers.get(name) == source)
    carried = graph.tensors[name]
    result = graph.tensors[behind.outputs[0]] if behind.outputs and behind.outputs[0] else carried
    return [
        carried.shape == result.shape,
        math.log2((1 + _per_item(graph, carried)) / (1 + _per_item(graph, result))),
        behind.inputs.index(name),
        min(target - source, _FARTHEST),
        bool(before.origin) and before.origin == behind.origin,
        math.log2(1 + _per_item(graph, carried)),
        len(makers[target]) == 1,
        len(readers[source]) == 1,
    ]


def _between(
    kinds: NDArray[np.float64], sources: NDArray[np.intp], targets: NDArray[np.intp], makers: list[list[int]]
) -> NDArray[np.float64]:
    """How many products, and how much work of any kind, the longest way to a target has beyond that to its source.

    Where a way leads from one to the other through a product, no kernel can hold both ends.
    """
    columns = []
    for heavy in (_PRODUCTS, _PRODUCTS | _REDUCING):
        own = [int(kind) in heavy for kind in kinds.tolist()]
        depth: list[int] = []
        for node, behind in enumerate(makers):
            depth.append(max((depth[each] for each in behind), default=0) + own[node])
        deep, is_heavy = np.array(depth), np.array(own)
        columns.append(deep[targets] - deep[sources] - is_heavy[targets])
    return np.stack(columns, axis=1).astype(np.float64)


def _around(
    nodes: NDArray[np.float64],
    sources: NDArray[np.intp],
    targets: NDArray[np.intp],
    makers: list[list[int]],
    readers: list[list[int]],
) -> NDArray[np.float64]:
    """Codes of the operators around each edge; −1 where there is none, and of an unknown one."""
    codes = np.append(nodes[:, 0], _NONE)
    first_maker = np.array([*(each[0] if each else _NONE for each in makers), _NONE])
    last_maker = np.array([*(each[-1] if each else _NONE for each in makers), _NONE])
    first_reader = np.array([*(each[0] if each else _NONE for each in readers), _NONE])
    last_reader = np.array([*(each[-1] if each else _NONE for each in readers), _NONE])
    before, behind = [first_maker[sources]], [first_reader[targets]]
    for _ in range(2):
        before.append(first_maker[before[-1]])
        behind.append(first_reader[behind[-1]])
    beside_source = np.where(first_reader[sources] == targets, last_reader[sources], first_reader[sources])
    beside_source = np.where(beside_source == targets, _NONE, beside_source)
    beside_target = np.where(first_maker[targets] == sources, last_maker[targets], first_maker[targets])
    beside_target = np.where(beside_target == sources, _NONE, beside_target)
    is_view = np.append(np.isin(nodes[:, 1], list(_VIEWS)), False)
    true_before, true_behind = _past_views(first_maker, is_view), _past_views(first_reader[:-1], is_view, back=True)
    true_source, true_target = true_before[sources], true_behind[targets]
    around = [*before, *behind, beside_source, beside_target, last_maker[sources], last_reader[targets]]
    around += [true_source, true_before[first_maker[true_source]], true_target]
    around += [true_behind[first_reader[true_target]]]
    return np.stack([codes[each] for each in around], axis=1)


def _past_views(step: NDArray[np.intp], is_view: NDArray[np.bool_], *, back: bool = False) -> NDArray[np.intp]:
    """For each node itself, or where it is a view the first that is none, one step after the other."""
    count = len(is_view) - 1
    found = np.full(count + 1, _NONE)
    for node in range(count - 1, -1, -1) if back else range(count):
        found[node] = found[step[node]] if is_view[node] else node
    return found
