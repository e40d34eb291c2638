"""Predictors: the kernel graph: the kernels that a compiler makes of a graph, their times, and what flows between."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.graph.ir.groups import group_operator
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.predictors.choice import find_predictor
from foretell.predictors.fusion.edges import RUNTIMES
from foretell.predictors.fusion.partitioner import EAGER, Partitioner
from foretell.predictors.protocol import Predictor
from foretell.records import Target, Workload
from foretell.registry import did_you_mean

MAX_KERNELS = 400
# kinds of kernels as a reader distinguishes them; the first of those present names a kernel
KINDS = ("product", "normalisation", "other", "pointwise", "movement")
LEFT_OUT = "left out"
_MAX_FOLDS = 40
_KIND_OF = {
    "contraction": "product", "attention": "product", "recurrent": "product", "normalisation": "normalisation",
    "elementwise": "pointwise", "generator": "pointwise", "movement": "movement", "view": "movement",
    "free": "movement", "gather": "movement", "scatter": "movement",
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """Nodes that run as one kernel, with the kind of each and of the whole; ``stands_for`` counts kernels left out."""

    label: str
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    kind: str
    time_us: float | None = None
    stands_for: int = 1


@dataclass(frozen=True)
class Flow:
    """The bytes of the tensors that one kernel writes and another reads."""

    source: int
    target: int
    bytes: int


@dataclass(frozen=True)
class KernelGraph:
    """Kernels in an order in which they can run, and what flows between them."""

    kernels: tuple[Kernel, ...]
    flows: tuple[Flow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeTimes:
    """The time of every node of a graph, and what kind of number it is."""

    meaning: str
    node_us: NDArray[np.float64]


def check_runtime(runtime: str) -> None:
    """Refuse a runtime whose fusion is not known."""
    if runtime not in RUNTIMES:
        raise InputError(f"Unknown runtime {runtime!r}.{did_you_mean(runtime, RUNTIMES)}")


def find_kernels(graph: Graph, runtime: str) -> list[tuple[int, ...]]:
    """For every kernel under a runtime the positions of its nodes."""
    check_runtime(runtime)
    return Partitioner.shipped().partition(graph, runtime).kernels


def time_nodes(graph: Graph, device: str, runtime: str, predictor: Predictor | None = None) -> NodeTimes | None:
    """The time of every node by itself on a device; None where nothing runs there."""
    workload = Workload(graph, Target(find_device(device)), graph.dtype)
    units = extract_units(workload)
    if not len(units):
        return None
    distinct = DistinctUnits.of(units)
    unit_predictor = predictor or find_predictor(None, workload.target.device.id)
    predict_units = getattr(unit_predictor, "unit_times_us", None)
    unit_us = (predict_units(workload, distinct) if predict_units else distinct.bound_us)[distinct.member]
    node_us = np.zeros(len(graph.nodes))
    for nodes, took_us in zip(units.nodes, unit_us.tolist()):
        # Where several nodes spell one operator, the time goes to the nodes of its leading kind, the others get none.
        ranks = [KINDS.index(_kind(graph.nodes[node])) for node in nodes]
        main_nodes = [node for node, rank in zip(nodes, ranks) if rank == min(ranks)]
        for node in main_nodes:
            node_us[node] += took_us / len(main_nodes)
    label = "predicted" if predict_units else "the least by the roofline"
    how = "each operator" if runtime == EAGER else "each operator by itself, unfused, and added up for a box"
    where = f"{workload.target.device.id}, batch {graph.batch_size}, {graph.dtype}"
    return NodeTimes(f"{label} on {where}: {how}", node_us)


def make_kernel_graph(graph: Graph, members: Sequence[Sequence[int]], times: NodeTimes | None = None) -> KernelGraph:
    """Kernels and flows of a graph whose nodes are divided into ``members``."""
    parts = split_cycles(graph, members)
    flows = _flows(graph, parts)
    order = _order(len(parts), flows)
    place = {kernel: position for position, kernel in enumerate(order)}
    kernels = tuple(_kernel(graph, parts[kernel], times) for kernel in order)
    renumbered = (Flow(place[source], place[target], size) for (source, target), size in flows.items())
    notes = (
        [f"Times: {times.meaning}. A box without a time is a view, or its time is in the box of its operator."]
        if times
        else []
    )
    if len(parts) > len(members):
        notes.append(
            f"Some kernels need each other's results, so none could run first: they are split, {len(parts)} boxes."
        )
    return KernelGraph(kernels, tuple(sorted(renumbered, key=lambda flow: (flow.source, flow.target))), tuple(notes))


def split_cycles(graph: Graph, members: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The same groups, with groups that wait for each other split into parts that can run.

    A partitioner decides edge by edge, and a compiler may compute a cheap node in several kernels. So the groups can
    form a cycle: A needs a result of B, and B needs one of A. Within such a cycle (a strongly connected component of
    the groups), each node gets a depth: how often a path to it crosses from one group of the cycle to another. A group
    is split by the depth of its nodes. A path never goes to a smaller depth, so the parts have no cycle.

    Limit: the split keeps apart what the compiler may have fused in another way; it is a valid order, not necessarily
    the compiler's.
    """
    kernel_of = {node: kernel for kernel, nodes in enumerate(members) for node in nodes}
    cycle_of = _cycles(len(members), _flows(graph, members))
    depth = [0] * len(graph.nodes)
    for position, node in enumerate(graph.nodes):
        own = kernel_of[position]
        for maker in {graph.producers[name] for name in node.inputs if name in graph.producers}:
            if cycle_of[kernel_of[maker]] == cycle_of[own]:
                depth[position] = max(depth[position], depth[maker] + (kernel_of[maker] != own))
    parts: dict[tuple[int, int], list[int]] = {}
    sizes = Counter(cycle_of)
    for position in range(len(graph.nodes)):
        own = kernel_of[position]
        parts.setdefault((own, depth[position] if sizes[cycle_of[own]] > 1 else 0), []).append(position)
    return [tuple(part) for part in parts.values()]


def _cycles(count: int, flows: Iterable[tuple[int, int]]) -> list[int]:
    """The number of the strongly connected component of each kernel, by S. R. Kosaraju's two depth-first searches."""
    forward: list[list[int]] = [[] for _ in range(count)]
    backward: list[list[int]] = [[] for _ in range(count)]
    for source, target in flows:
        forward[source].append(target)
        backward[target].append(source)
    seen, finished = [False] * count, list[int]()
    for start in range(count):
        path = [] if seen[start] else [(start, iter(forward[start]))]
        seen[start] = True
        # iterative, because a graph can be deeper than Python's recursion limit
        while path:
            kernel, rest = path[-1]
            unseen = next((other for other in rest if not seen[other]), None)
            if unseen is None:
                finished.append(kernel)
                path.pop()
            else:
                seen[unseen] = True
                path.append((unseen, iter(forward[unseen])))
    component = [-1] * count
    # second search: on the reversed graph, from the kernels that finished last
    for number, start in enumerate(reversed(finished)):
        waiting = [start] if component[start] < 0 else []
        while waiting:
            kernel = waiting.pop()
            if component[kernel] < 0:
                component[kernel] = number
                waiting += backward[kernel]
    return component


def _kernel(graph: Graph, members: Sequence[int], times: NodeTimes | None) -> Kernel:
    nodes = [graph.nodes[position] for position in members]
    kinds = tuple(map(_kind, nodes))
    main_op, kind = group_operator(nodes), min(kinds, key=KINDS.index)
    main = next((node for node in nodes if node.op == main_op), nodes[kinds.index(kind)])
    took_us = float(times.node_us[list(members)].sum()) or None if times else None
    return Kernel(main.module or main.name, tuple(node.op for node in nodes), kinds, kind, took_us)


def _kind(node: Node) -> str:
    return _KIND_OF.get(lookup(node.op, node.domain).kind, "other")


def _flows(graph: Graph, members: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """Bytes by pair of kernels; a tensor counts once, however many nodes of a kernel read it."""
    kernel_of = {node: kernel for kernel, nodes in enumerate(members) for node in nodes}
    flows: defaultdict[tuple[int, int], int] = defaultdict(int)
    for name, maker in graph.producers.items():
        source = kernel_of[maker]
        for target in {kernel_of[reader] for reader in graph.consumers.get(name, ())} - {source}:
            flows[source, target] += graph.tensors[name].bytes
    return flows


def _order(count: int, flows: Iterable[tuple[int, int]]) -> list[int]:
    """A topological order of the kernels; among those that are ready, the first one comes first."""
    missing = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in flows:
        missing[target] += 1
        readers[source].append(target)
    ready = [kernel for kernel in range(count) if not missing[kernel]]
    ordered = []
    while ready:
        ordered.append(heapq.heappop(ready))
        for reader in readers[ordered[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return ordered


def shorten(graph: KernelGraph, most: int = MAX_KERNELS) -> KernelGraph:
    """At most ``most`` kernels: repeats of the same operators are left out first, then the middle."""
    count = len(graph.kernels)
    for _ in range(_MAX_FOLDS):
        if len(graph.kernels) <= most:
            break
        start, period, copies = _repeated(graph.kernels, max(most // 2, 1))
        # leaving out fewer than two kernels saves nothing: a box takes their place
        if (copies - 2) * period < 2:
            break
        text = f"{copies - 2} times the {period} kernels above" if period > 1 else f"{copies - 2} like the one above"
        graph = _contract(graph, start + period, start + period * (copies - 1), text)
    if len(graph.kernels) > most:
        head = most // 2
        stop = len(graph.kernels) - (most - head - 1)
        omitted = sum(kernel.stands_for for kernel in graph.kernels[head:stop])
        graph = _contract(graph, head, stop, f"{omitted} kernels")
    left_out = sum(kernel.stands_for for kernel in graph.kernels if kernel.kind == LEFT_OUT)
    if not left_out:
        return graph
    note = f"{left_out} of {count} kernels are left out; dashed boxes stand for them."
    return replace(graph, notes=(*graph.notes, note))


def _repeated(kernels: Sequence[Kernel], longest: int) -> tuple[int, int, int]:
    """The run of kernels whose repeats save most: its start, its length, and how often it occurs.

    For each period p, kernels i and i + p are compared; a stretch of equal ones of length l holds l / p + 1 copies. The
    first and the last copy stay in the picture.
    """
    numbers: dict[object, int] = {}
    codes = np.array([
        # a box that stands for others equals no other box
        -position - 1 if kernel.kind == LEFT_OUT else numbers.setdefault(kernel.operators, len(numbers))
        for position, kernel in enumerate(kernels)
    ])  # fmt: skip
    best, run = 0, (0, 1, 1)
    for period in range(1, min(longest, len(codes) // 3) + 1):
        # starts and ends of the stretches in which kernel i equals kernel i + period
        edges = np.flatnonzero(np.diff(np.concatenate([[False], codes[period:] == codes[:-period], [False]])))
        if not len(edges):
            continue
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest_stretch = int(np.argmax(lengths))
        copies = int(lengths[longest_stretch]) // period + 1
        if (copies - 2) * period > best:
            best, run = (copies - 2) * period, (int(starts[longest_stretch]), period, copies)
    return run


def _contract(graph: KernelGraph, start: int, stop: int, text: str) -> KernelGraph:
    """The graph with one box in place of the kernels from ``start`` to ``stop``."""
    removed = graph.kernels[start:stop]
    times = [kernel.time_us for kernel in removed if kernel.time_us is not None]
    box = Kernel(
        f"… {text}", (), (), LEFT_OUT, sum(times) if times else None, sum(kernel.stands_for for kernel in removed)
    )

    def renumber(kernel: int) -> int:
        return kernel if kernel < start else start if kernel < stop else kernel - (stop - start) + 1

    sizes: defaultdict[tuple[int, int], int] = defaultdict(int)
    for flow in graph.flows:
        pair = renumber(flow.source), renumber(flow.target)
        if pair[0] != pair[1]:
            sizes[pair] += flow.bytes
    flows = tuple(Flow(source, target, size) for (source, target), size in sorted(sizes.items()))
    return replace(graph, kernels=(*graph.kernels[:start], box, *graph.kernels[stop:]), flows=flows)
