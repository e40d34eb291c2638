"""Training: sessions: what ONNX Runtime's nodes took, as times of the units that run there.

Idea. The profile of a session lists the nodes that ran, after all fusions, in their order. The graph of the model has
nodes in the same order. Both are aligned as calls of PyTorch are (`foretell.training.examples.calls`), here by operator
alone: names of the exporter move 2 % of the time to another unit, and take half of a table. The time of a node goes to
the unit of the node that it is aligned with, or to the unit that absorbs that one. Nodes without a place in the graph
(transposes that are views in PyTorch, changes of layout, reshapes) serve the next unit, or the one before where they
undo its layout, and their time is added to its.

Limits: ONNX Runtime may run branches in another order than the program; then the second of them is not aligned, and
its time goes to a neighbour. Where a quarter of the time finds no unit, the profile teaches nothing.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foretell.devices.cpu_runs import CpuRun
from foretell.features import Units, extract_units
from foretell.graph import Graph
from foretell.graph.ir.alignment import NONE, align
from foretell.predictors.cpu.model import owners, select
from foretell.records import Workload
from foretell.training.examples.calls import Call
from foretell.training.examples.link import Trace

_OWN, _SHARED = 400, 1  # of a node that no other is aligned with, and of one that is
_LEAST_LINKED = 0.75  # of the time of a profile
_UNDOES = "ReorderOutput"
_PRODUCTS = frozenset({"Gemm", "MatMul", "Einsum", "Attention"})
# for each operator of ONNX Runtime the operators of a graph that it may be, beside its own name
_OPERATORS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "FusedConv": frozenset({"Conv"}),
        "NhwcFusedConv": frozenset({"Conv"}),
        "Gemm": _PRODUCTS,
        "FusedGemm": _PRODUCTS,
        "MatMul": _PRODUCTS,
        "FusedMatMul": _PRODUCTS,
        "Softmax": frozenset({"Attention"}),
        "SkipLayerNormalization": frozenset({"LayerNormalization"}),
        "SimplifiedLayerNormalization": frozenset({"RMSNormalization"}),
        "SkipSimplifiedLayerNormalization": frozenset({"RMSNormalization"}),
        "InstanceNormalization": frozenset({"GroupNormalization"}),
        "FastGelu": frozenset({"Gelu"}),
        "BiasGelu": frozenset({"Gelu"}),
        "QuickGelu": frozenset({"Silu", "Swish", "Gelu"}),
        "Sigmoid": frozenset({"Silu", "Swish", "HardSwish"}),
        "ReduceMean": frozenset({"GlobalAveragePool", "AdaptiveAveragePool"}),
        "Upsample": frozenset({"Resize"}),
        "AveragePool": frozenset({"AdaptiveAveragePool"}),
    }
)


def session_units(workload: Workload, trace: Trace | None, run: CpuRun) -> tuple[Units, NDArray[np.float64] | None]:
    """The units that ONNX Runtime runs, and the traced microseconds of each; None where there is no trace."""
    del run  # its fusions do not depend on the number of threads
    units = extract_units(workload)
    owner = owners(workload, units)
    kept = np.flatnonzero(owner == np.arange(len(units)))
    if trace is None:
        return select(units, kept), None
    graph = workload.running_graph
    unit_of = {node: int(owner[number]) for number, nodes in enumerate(units.nodes) for node in nodes}
    linked = [unit_of.get(node, NONE) for node in link_session(graph, trace.calls)]
    known_us = sum(time_us for number, time_us in zip(linked, trace.busy_us, strict=True) if number != NONE)
    if known_us < _LEAST_LINKED * sum(trace.busy_us):
        return select(units, kept), None  # the times of its units would be those of others
    spent_us = np.zeros(len(units))
    for number, time_us in zip(_with_neighbours(trace.calls, linked), trace.busy_us, strict=True):
        if number != NONE:
            spent_us[number] += time_us
    return select(units, kept), spent_us[kept]


def link_session(graph: Graph, calls: Sequence[Call]) -> list[int]:
    """For each node of a profile the position of its node in the graph, or `NONE`."""
    ops = np.array([node.op for node in graph.nodes])
    kinds = {op: np.isin(ops, [op, *_OPERATORS.get(op, ())]) for op in {call.op for call in calls}}
    fits = np.array([kinds[call.op] for call in calls], np.int32).reshape(len(calls), len(ops))
    return align(_OWN * fits, _SHARED * fits)


def _with_neighbours(calls: Sequence[Call], linked: Sequence[int]) -> list[int]:
    """For each node of a profile its unit, or that of the neighbour that it serves."""
    found = list(linked)
    following = NONE
    for position in range(len(found) - 1, -1, -1):
        if found[position] == NONE and calls[position].op != _UNDOES:
            found[position] = following
        following = linked[position] if linked[position] != NONE else following
    before = NONE
    for position, number in enumerate(found):
        if number == NONE:
            found[position] = before
        before = found[position]
    return found
