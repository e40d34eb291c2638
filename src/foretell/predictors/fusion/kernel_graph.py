"""workflows: the graph that a compiler leaves: its kernels, the tensors between them, and how long each may take."""

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

MOST_KERNELS = 400
# kinds as a reader tells them apart, the most telling one first
KINDS = ("product", "normalisation", "other", "pointwise", "movement")
LEFT_OUT = "left out"
_MOST_FOLDS = 40
_KIND_OF = {
    "contraction": "product", "attention": "product", "recurrent": "product", "normalisation": "normalisation",
    "elementwise": "pointwise", "generator": "pointwise", "movement": "movement", "view": "movement",
    "free": "movement", "gather": "movement", "scatter": "movement",
}  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """Operators that run as one, the kind of each and of the whole; ``stands_for`` many, where some are left out."""

    label: str
    operators: tuple[str, ...]
    kinds: tuple[str, ...]
    kind: str
    time_us: float | None = None
    stands_for: int = 1


@dataclass(frozen=True)
class Flow:
    """The tensors that one kernel makes and another reads."""

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


def find_kernels(graph: Graph, runtime: str) -> list[tuple[int, ...]]:
    """The positions of the nodes of every kernel under a runtime."""
    if runtime not in RUNTIMES:
        raise InputError(f"Unknown runtime {runtime!r}.{did_you_mean(runtime, RUNTIMES)}")
    return Partitioner.shipped().partition(graph, runtime).kernels


def time_nodes(graph: Graph, device: str, runtime: str, predictor: Predictor | None = None) -> NodeTimes | None:
    """What every node takes on a device by itself; None where nothing runs there."""
    workload = Workload(graph, Target(find_device(device)), graph.dtype)
    units = extract_units(workload)
    if not len(units):
        return None
    distinct = DistinctUnits.of(units)
    answerer = predictor or find_predictor(None, workload.target.device.id)
    tell = getattr(answerer, "unit_times_us", None)
    unit_us = (tell(workload, distinct) if tell else distinct.bound_us)[distinct.member]
    node_us = np.zeros(len(graph.nodes))
    for nodes, took_us in zip(units.nodes, unit_us.tolist()):
        # of an operator that a file spells as several nodes, those take the time that tell most what it does
        ranks = [KINDS.index(_kind(graph.nodes[node])) for node in nodes]
        telling = [node for node, rank in zip(nodes, ranks) if rank == min(ranks)]
        for node in telling:
            node_us[node] += took_us / len(telling)
    meaning = "estimate" if tell else "least time by the roofline"
    if runtime != EAGER:
        meaning = f"eager {meaning}: operators unfused, added up,"
    return NodeTimes(f"{meaning} on {workload.target.device.id}", node_us)


def make_kernel_graph(graph: Graph, members: Sequence[Sequence[int]], times: NodeTimes | None = None) -> KernelGraph:
    """Kernels and flows of a graph whose nodes are parted into ``members``."""
    parts = split_cycles(graph, members)
    flows = _flows(graph, parts)
    order = _order(len(parts), flows)
    place = {kernel: position for position, kernel in enumerate(order)}
    kernels = tuple(_kernel(graph, parts[kernel], times) for kernel in order)
    found = (Flow(place[source], place[target], size) for (source, target), size in flows.items())
    notes = [f"Times: {times.meaning}. A box without one is a view, or counted where its operator is."] if times else []
    if len(parts) > len(members):
        notes.append(
            f"Some groups need each other's results, so that none could run first: drawn apart, {len(parts)} boxes."
        )
    return KernelGraph(kernels, tuple(sorted(found, key=lambda flow: (flow.source, flow.target))), tuple(notes))


def split_cycles(graph: Graph, members: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The same groups, those that wait for each other in parts that can run.

    Edges are told one by one, and a compiler may compute a cheap node in several kernels: so groups may form a cycle.
    There a group is parted by how often its nodes' inputs have crossed from one group of the cycle to another.
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
    """Of each kernel the cycles it is part of, as a number; S. R. Kosaraju's two searches."""
    forward: list[list[int]] = [[] for _ in range(count)]
    backward: list[list[int]] = [[] for _ in range(count)]
    for source, target in flows:
        forward[source].append(target)
        backward[target].append(source)
    seen, left = [False] * count, list[int]()
    for start in range(count):
        ways = [] if seen[start] else [(start, iter(forward[start]))]
        seen[start] = True
        while ways:
            kernel, rest = ways[-1]
            behind = next((other for other in rest if not seen[other]), None)
            if behind is None:
                left.append(kernel)
                ways.pop()
            else:
                seen[behind] = True
                ways.append((behind, iter(forward[behind])))
    found = [-1] * count
    for number, start in enumerate(reversed(left)):
        waiting = [start] if found[start] < 0 else []
        while waiting:
            kernel = waiting.pop()
            if found[kernel] < 0:
                found[kernel] = number
                waiting += backward[kernel]
    return found


def _kernel(graph: Graph, members: Sequence[int], times: NodeTimes | None) -> Kernel:
    nodes = [graph.nodes[position] for position in members]
    kinds = tuple(map(_kind, nodes))
    telling_op, kind = group_operator(nodes), min(kinds, key=KINDS.index)
    telling = next((node for node in nodes if node.op == telling_op), nodes[kinds.index(kind)])
    took_us = float(times.node_us[list(members)].sum()) or None if times else None
    return Kernel(telling.module or telling.name, tuple(node.op for node in nodes), kinds, kind, took_us)


def _kind(node: Node) -> str:
    return _KIND_OF.get(lookup(node.op, node.domain).kind, "other")


def _flows(graph: Graph, members: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """Bytes by pair of kernels; a tensor counts once, however many nodes of a kernel read it."""
    kernel_of = {node: kernel for kernel, nodes in enumerate(members) for node in nodes}
    found: defaultdict[tuple[int, int], int] = defaultdict(int)
    for name, maker in graph.producers.items():
        source = kernel_of[maker]
        for target in {kernel_of[reader] for reader in graph.consumers.get(name, ())} - {source}:
            found[source, target] += graph.tensors[name].bytes
    return found


def _order(count: int, flows: Iterable[tuple[int, int]]) -> list[int]:
    """Kernels so that what makes comes before what reads."""
    waiting = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in flows:
        waiting[target] += 1
        readers[source].append(target)
    ready = [kernel for kernel in range(count) if not waiting[kernel]]
    ordered = []
    while ready:
        ordered.append(heapq.heappop(ready))
        for reader in readers[ordered[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return ordered


def shorten(graph: KernelGraph, most: int = MOST_KERNELS) -> KernelGraph:
    """At most ``most`` kernels: repeated runs of the same operators are left out first, then the middle."""
    count = len(graph.kernels)
    for _ in range(_MOST_FOLDS):
        if len(graph.kernels) <= most:
            break
        start, period, copies = _repeated(graph.kernels, max(most // 2, 1))
        if (copies - 2) * period < 2:
            break
        what = f"{copies - 2} times the {period} kernels above" if period > 1 else f"{copies - 2} like the one above"
        graph = _contract(graph, start + period, start + period * (copies - 1), what)
    if len(graph.kernels) > most:
        head = most // 2
        stop = len(graph.kernels) - (most - head - 1)
        gone = sum(kernel.stands_for for kernel in graph.kernels[head:stop])
        graph = _contract(graph, head, stop, f"{gone} kernels")
    left_out = sum(kernel.stands_for for kernel in graph.kernels if kernel.kind == LEFT_OUT)
    if not left_out:
        return graph
    note = f"{left_out} of {count} kernels are left out; dashed boxes stand for them."
    return replace(graph, notes=(*graph.notes, note))


def _repeated(kernels: Sequence[Kernel], longest: int) -> tuple[int, int, int]:
    """Where a run of kernels repeats itself so that most can be left out: its start, its length, how often it comes."""
    numbers: dict[object, int] = {}
    signs = np.array([
        -position - 1 if kernel.kind == LEFT_OUT else numbers.setdefault(kernel.operators, len(numbers))
        for position, kernel in enumerate(kernels)
    ])  # fmt: skip
    best, found = 0, (0, 1, 1)
    for period in range(1, min(longest, len(signs) // 3) + 1):
        same = np.flatnonzero(np.diff(np.concatenate([[False], signs[period:] == signs[:-period], [False]])))
        if not len(same):
            continue
        starts, lengths = same[::2], same[1::2] - same[::2]
        at = int(np.argmax(lengths))
        copies = int(lengths[at]) // period + 1
        if (copies - 2) * period > best:
            best, found = (copies - 2) * period, (int(starts[at]), period, copies)
    return found


def _contract(graph: KernelGraph, start: int, stop: int, what: str) -> KernelGraph:
    """One kernel in place of several that follow each other."""
    gone = graph.kernels[start:stop]
    times = [kernel.time_us for kernel in gone if kernel.time_us is not None]
    note = Kernel(
        f"… {what}", (), (), LEFT_OUT, sum(times) if times else None, sum(kernel.stands_for for kernel in gone)
    )

    def moved(kernel: int) -> int:
        return kernel if kernel < start else start if kernel < stop else kernel - (stop - start) + 1

    sizes: defaultdict[tuple[int, int], int] = defaultdict(int)
    for flow in graph.flows:
        pair = moved(flow.source), moved(flow.target)
        if pair[0] != pair[1]:
            sizes[pair] += flow.bytes
    flows = tuple(Flow(source, target, size) for (source, target), size in sorted(sizes.items()))
    return replace(graph, kernels=(*graph.kernels[:start], note, *graph.kernels[stop:]), flows=flows)
