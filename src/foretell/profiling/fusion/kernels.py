"""Profiling: compiled kernels: what a compiler made of a model, and labels for the nodes and edges of its graph."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from foretell.graph import Graph
from foretell.profiling.workload import Workload, shape_text

NO_KERNEL = -1


@dataclass(frozen=True)
class Compiled:
    """The kernels of a compiled model.

    Attributes:
        kernels: What each kernel is, in the order in which they run.
        members: For an operator of the source program the kernels that compute it, the main one first. An operator
            that a compiler computes again in several kernels has several; one that is absent was folded away.
    """

    kernels: tuple[str, ...]
    members: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Labels:
    """The kernel of every node and the label of every edge of a graph, by position."""

    groups: tuple[int, ...]
    kernels: tuple[str, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    fused: tuple[bool, ...]

    @property
    def kernel_count(self) -> int:
        """How many kernels run at least one node."""
        return len({group for group in self.groups if group != NO_KERNEL})


def label_graph(graph: Graph, compiled: Compiled) -> Labels:
    """For every node the kernel that runs it, and for every edge whether some kernel contains both of its ends.

    A node of several kernels is listed under the main one, but its edges count as fused wherever both ends meet. A node
    that the compiler dropped (a dropout, a view) counts as part of the kernels that are both before and after it.
    """
    node_kernels = _with_dropped(graph, [compiled.members.get(node.name, ()) for node in graph.nodes])
    groups = [kernel_ids[0] if kernel_ids else NO_KERNEL for kernel_ids in node_kernels]
    edges = sorted(set(edges_of(graph)))
    return Labels(
        groups=tuple(groups),
        kernels=tuple(compiled.kernels[group] if group != NO_KERNEL else "" for group in groups),
        sources=tuple(source for source, _ in edges),
        targets=tuple(target for _, target in edges),
        fused=tuple(not set(node_kernels[source]).isdisjoint(node_kernels[target]) for source, target in edges),
    )


def _with_dropped(graph: Graph, node_kernels: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The kernels of every node; dropped nodes get the kernels that reach them from both sides."""
    before, after = [set(kernel_ids) for kernel_ids in node_kernels], [set(kernel_ids) for kernel_ids in node_kernels]
    edges = sorted(set(edges_of(graph)))
    # by source: nodes are in topological order, so the set of a source is complete before it is passed on
    for source, target in edges:
        if not node_kernels[target]:
            before[target] |= before[source]
    for source, target in sorted(edges, key=lambda edge: -edge[0]):
        if not node_kernels[source]:
            after[source] |= after[target]
    return [kernel_ids or tuple(sorted(before[i] & after[i])) for i, kernel_ids in enumerate(node_kernels)]


def edges_of(graph: Graph) -> Iterable[tuple[int, int]]:
    """Every (producer, consumer) pair of a graph's nodes."""
    for target, node in enumerate(graph.nodes):
        for name in node.inputs:
            source = graph.producers.get(name)
            if name and source is not None:
                yield source, target


def fusion_id(backend: str, workload: Workload) -> str:
    """Sixteen hexadecimal digits that identify a model under a compiler."""
    shape = shape_text(workload.input_shape)
    parts = (backend, workload.spec, shape, workload.batch_size, workload.dtype)
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]
