"""Features: one row for each unit of work of a workload.

A unit of work is what a framework launches as one: an operator in the forward pass (a group of nodes, see
`foretell.graph.ir.groups`), the backward of a node, or the update of the optimizer. Units that launch no kernel, such
as views, have no row.

Idea: the time of a workload is close to the sum of the times of its units, and a unit's time depends on the unit and
the hardware, not on the model around it. So a predictor learns the time of one row, and can predict models that it has
never seen. A row has three parts. First what the unit computes and moves, and its bound: the time that the hardware
needs at least (a roofline: the larger of compute and memory time, plus launch overhead). Second the reuse distance of
its input, which decides whether it is read from cache (`foretell.features.reuse`). Third the sizes that decide which
kernel a library picks (`foretell.features.shapes`).

Sizes and times are stored as logarithms to base 2, because relative differences matter. Categories (operator, kind,
phase, dtype) are positions in fixed lists; −1 is an unknown one
(`foretell.features.operator_codes` has that of operators). `SCHEMA` is a hash of all columns and lists: a fitted
predictor refuses rows of another schema.

Limits: gaps between kernels, overlap of streams and the host's own time are not visible in a row. The backward of a
node is one unit even if a framework launches several kernels for it.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Hardware
from foretell.features.operator_codes import FIRST_CODED, operator_code
from foretell.features.reuse import REUSE_COLUMNS, Reuse
from foretell.features.shapes import SHAPE_COLUMNS, describe_shapes
from foretell.graph import Cost, Graph, graph_costs, run_groups, training_step
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.records import Workload
from foretell.units import bytes_per_s, flops_per_s, us

PHASES = ("forward", "backward", "optimizer")
KINDS = (
    "view", "free", "elementwise", "reduction", "movement", "generator", "normalisation", "pooling", "contraction",
    "attention", "recurrent", "gather", "scatter", "sort", "control", "unknown",
)  # fmt: skip
DTYPES = ("fp32", "fp16", "bf16", "fp64", "int64", "int32", "bool", "complex64")

COLUMNS = (
    "operator", "kind", "phase", "dtype", "nodes", "launches", "log_flops", "log_macs", "tensor_core_share",
    "log_read_bytes", "log_written_bytes", "log_parameter_bytes", "log_compute_us", "log_memory_us", "log_bound_us",
    "log_intensity", *REUSE_COLUMNS, *SHAPE_COLUMNS,
)  # fmt: skip
SCHEMA = hashlib.sha256("|".join((*COLUMNS, *FIRST_CODED, *KINDS, *PHASES, *DTYPES)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Units:
    """The units of a workload in the order in which they run; ``bound_us`` is the least time that each needs."""

    operators: tuple[str, ...]
    phases: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    features: NDArray[np.float32]
    bound_us: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.operators)


@dataclass(frozen=True, slots=True)
class _Unit:
    """One unit before it becomes a row; ``node`` is its main node, None for the optimizer."""

    operator: str
    phase: str
    nodes: tuple[int, ...]
    cost: Cost
    node: Node | None
    dtype: str
    parameters: int = 0  # the number of parameter tensors that an optimizer updates at once
    reached: frozenset[str] | None = None  # of a backward: the tensors that get a gradient


def extract_units(workload: Workload) -> Units:
    """Return all units of a workload.

    >>> from foretell.devices import find_device
    >>> from foretell.records import Target
    >>> from foretell.testing import tiny_graph
    >>> units = extract_units(Workload(tiny_graph(), Target(find_device("h200"))))
    >>> units.features.shape == (len(units), len(COLUMNS))
    True
    """
    graph = workload.running_graph
    laid_out = layouts(graph)
    hardware = workload.target.hardware
    units = tuple(_units(workload, graph))
    rows, bounds = [], []
    # reuse distances depend on the order of units, so units are described and run one by one
    running = (position for unit in units for position in unit.nodes)
    reuse = Reuse(graph, running, sum(unit.cost.bytes for unit in units))
    for unit in units:
        compute_us, memory_us = _minimum_us(unit, hardware)
        bound_us = max(compute_us, memory_us) + unit.cost.launches * hardware.device.launch_overhead_us
        shapes = describe_shapes(graph, unit.node, unit.cost, laid_out, hardware.sms, unit.reached)
        rows.append((*_describe(unit, compute_us, memory_us, bound_us), *reuse.describe(unit.nodes), *shapes))
        reuse.run(unit.nodes, unit.cost.bytes)
        bounds.append(bound_us)
    features = np.array(rows, dtype=np.float32).reshape(len(units), len(COLUMNS))
    return Units(
        tuple(unit.operator for unit in units),
        tuple(unit.phase for unit in units),
        tuple(unit.nodes for unit in units),
        features,
        np.array(bounds, dtype=np.float64),
    )


def _units(workload: Workload, graph: Graph) -> Iterator[_Unit]:
    """The units in the order in which they run: forward, then backward from the last node to the first, then update."""
    table = graph_costs(graph)
    for group in run_groups(table):
        if group.cost.launches:
            node = _main_node(graph, group.nodes)
            yield _Unit(group.op, "forward", group.nodes, group.cost, node, _dtype(graph, node))
    if workload.is_training:
        step = training_step(graph, workload.optimizer or "sgd")
        for position in range(len(step.backward) - 1, -1, -1):
            if step.backward[position].launches:
                node = graph.nodes[position]
                dtype, cost = _dtype(graph, node), step.backward[position]
                yield _Unit(node.op, "backward", (position,), cost, node, dtype, reached=step.reached)
        if step.optimizer.launches:
            yield _Unit("optimizer", "optimizer", (), step.optimizer, None, "fp32", _parameters(graph))


def _parameters(graph: Graph) -> int:
    return sum(tensor.kind == "parameter" for tensor in graph.tensors.values())


def _main_node(graph: Graph, positions: tuple[int, ...]) -> Node:
    """The node of a group that does most of its work."""
    nodes = [graph.nodes[position] for position in positions]
    for kind in ("attention", "contraction", "recurrent", "normalisation"):
        for node in nodes:
            if lookup(node.op, node.domain).kind == kind:
                return node
    return nodes[0]


def _dtype(graph: Graph, node: Node) -> str:
    outputs = [name for name in node.outputs if name]
    return graph.tensors[outputs[0]].dtype if outputs else "fp32"


def _minimum_us(unit: _Unit, hardware: Hardware) -> tuple[float, float]:
    """The least time that the arithmetic and the memory traffic of a unit need, in µs."""
    # other integers and booleans are taken to run at the rate of fp32
    dtype = unit.dtype if unit.dtype in ("fp64", "fp32", "bf16", "fp16", "fp8", "int8") else "fp32"
    cost, on_tensor_cores = unit.cost, 2 * unit.cost.tensor_core_macs
    compute_s = on_tensor_cores / flops_per_s(hardware.peak_tflops(dtype, tensor_cores=True))
    compute_s += (cost.flops - on_tensor_cores) / flops_per_s(hardware.peak_tflops(dtype, tensor_cores=False))
    return us(compute_s), us(cost.bytes / bytes_per_s(hardware.bandwidth_gb_per_s))


def _log(value: float) -> float:
    return math.log2(value + 1.0)


def _fine_log(value_us: float) -> float:
    """A logarithm that still tells times far below a microsecond apart."""
    return math.log2(value_us + 1e-4)


def _describe(unit: _Unit, compute_us: float, memory_us: float, bound_us: float) -> tuple[float, ...]:
    """The first columns of a row, in the order of `COLUMNS`."""
    cost = unit.cost
    kind = lookup(unit.operator, unit.node.domain if unit.node else "").kind
    return (
        float(operator_code(unit.operator)),
        float(KINDS.index(kind)),
        float(PHASES.index(unit.phase)),
        float(DTYPES.index(unit.dtype)) if unit.dtype in DTYPES else -1.0,
        float(len(unit.nodes) or unit.parameters),
        _log(cost.launches),
        _log(cost.flops),
        _log(cost.macs),
        cost.tensor_core_macs / cost.macs if cost.macs else -1.0,
        _log(cost.bytes_read),
        _log(cost.bytes_written),
        _log(cost.parameter_bytes),
        _fine_log(compute_us),
        _fine_log(memory_us),
        _fine_log(bound_us),
        _fine_log(cost.flops / cost.bytes) if cost.bytes else -20.0,
    )
