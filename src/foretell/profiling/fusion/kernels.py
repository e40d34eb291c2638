"""Profiling: what a compiler made of a model: its kernels, and which operators each of them runs."""

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
            that a compiler computes anew in several kernels has several; one that is absent was folded away.
    """

    kernels: tuple[str, ...]
    members: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Labels:
    """What a compiler did to every node and every edge of a graph, by their positions in the graph."""

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
    """Say of every node in which kernel it runs, and of every edge whether some kernel holds both of its ends.

    A node of several kernels is filed under the main one, but its edges count as fused wherever both ends meet. A node
    that the compiler has dropped (a dropout, a view) counts as part of a kernel that has what is before and behind it.
    """
    homes = _with_dropped(graph, [compiled.members.get(node.name, ()) for node in graph.nodes])
    groups = [home[0] if home else NO_KERNEL for home in homes]
    edges = sorted(set(edges_of(graph)))
    return Labels(
        groups=tuple(groups),
        kernels=tuple(compiled.kernels[group] if group != NO_KERNEL else "" for group in groups),
        sources=tuple(source for source, _ in edges),
        targets=tuple(target for _, target in edges),
        fused=tuple(not set(homes[source]).isdisjoint(homes[target]) for source, target in edges),
    )


def _with_dropped(graph: Graph, homes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    before, behind = [set(home) for home in homes], [set(home) for home in homes]
    edges = sorted(set(edges_of(graph)))
    for source, target in edges:  # by source: nodes are in topological order, so what comes in is complete
        if not homes[target]:
            before[target] |= before[source]
    for source, target in sorted(edges, key=lambda edge: -edge[0]):
        if not homes[source]:
            behind[source] |= behind[target]
    return [home or tuple(sorted(before[i] & behind[i])) for i, home in enumerate(homes)]


def edges_of(graph: Graph) -> Iterable[tuple[int, int]]:
    """Every (producer, consumer) pair of a graph's nodes."""
    for target, node in enumerate(graph.nodes):
        for name in node.inputs:
            source = graph.producers.get(name)
            if name and source is not None:
                yield source, target


def fusion_id(backend: str, workload: Workload) -> str:
    """Sixteen hexadecimal digits for one model under one compiler."""
    shape = shape_text(workload.input_shape)
    parts = (backend, workload.spec, shape, workload.batch_size, workload.dtype)
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]
