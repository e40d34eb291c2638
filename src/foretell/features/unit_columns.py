"""Features: the units of a graph as columns: everything about them that does not depend on the device.

The columns of a graph are made once and stay with it, so that a sweep over devices and slices only computes the few
that depend on the hardware (`foretell.features.units`). The row of a unit follows from the signature of its main node
(`foretell.graph.signatures`) and from its cost. So a row is described once, too, for all equal units of all graphs:
it lies in a table, and a graph gathers its rows from there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import operator_code
from foretell.features.reuse import REUSE_COLUMNS, reuse_columns
from foretell.features.schema import COLUMNS, DTYPES, KINDS, PHASES
from foretell.features.shapes import describe_shapes
from foretell.graph import Cost, Graph, graph_costs, training_step
from foretell.graph.ir.groups import group_costs, group_members
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.signatures import Memo

Values = NDArray[np.float64]
# behind the columns: what a device's times follow from
WORK = ("flops", "tensor_core_flops", "bytes", "launches", "rate")
RATES = ("fp64", "fp32", "bf16", "fp16", "fp8", "int8")  # dtypes that have a peak of their own
_ONE_SM = 1  # the sizes of kernels are described as for a device of one SM
_AT = {name: position for position, name in enumerate(COLUMNS)}
_WORK_AT = {name: position for position, name in enumerate(WORK, len(COLUMNS))}
_WIDTH = len(COLUMNS) + len(WORK)
_PARAMETER_BYTES = _AT["log_parameter_bytes"]
_REUSE = slice(_AT[REUSE_COLUMNS[0]], _AT[REUSE_COLUMNS[-1]] + 1)
_TABLE = "unit rows"  # in what a memo knows
_NO_LAUNCH = -1  # the row of a node that launches nothing


@dataclass(frozen=True)
class UnitColumns:
    """The units in the order in which they run, one row each of `COLUMNS` and `WORK`.

    ``costs`` are those of whole units; ``first_dtypes`` are the dtypes of the first results of their first nodes.
    """

    operators: tuple[str, ...]
    phases: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    costs: tuple[Cost, ...]
    first_dtypes: tuple[str, ...]
    rows: Values

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The operators as a breakdown names them: with "(backward)" behind those of the backward pass."""
        pairs = zip(self.operators, self.phases, strict=True)
        return tuple(f"{operator} (backward)" if phase == "backward" else operator for operator, phase in pairs)

    def work(self, name: str) -> Values:
        """One of the columns `WORK`."""
        return self.rows[:, _WORK_AT[name]]


class RowTable:
    """Rows that are added one by one and read many at a time."""

    def __init__(self, width: int) -> None:
        self._rows = np.empty((64, width))
        self._count = 0
        self._lock = Lock()

    def add(self, row: Sequence[float]) -> int:
        """Add a row; returns its number."""
        with self._lock:
            if self._count == len(self._rows):
                self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._rows[self._count] = row
            self._count += 1
            return self._count - 1

    def take(self, numbers: Sequence[int]) -> Values:
        """The rows of these numbers, as an array of their own."""
        return self._rows[np.array(numbers, np.intp)]


def unit_columns(graph: Graph, optimizer: str | None = None) -> UnitColumns:
    """Return the units of a forward pass; with an optimizer, those of a training step. They are cached on the graph."""
    cache: dict[Any, UnitColumns] = vars(graph).setdefault("_unit_columns", {})  # a graph never changes
    if optimizer not in cache:
        cache[optimizer] = _find_columns(graph, optimizer)
    return cache[optimizer]


def _find_columns(graph: Graph, optimizer: str | None) -> UnitColumns:
    """The units in the order in which they run: forward, then backward from the last node to the first, then update."""
    records, rows = layouts(graph).records, _table(layouts(graph).memo)
    units = _forward(graph, rows)
    operators, nodes, costs, dtypes, numbers = units
    owned = [cost.parameter_bytes for cost in costs]
    phases = ["forward"] * len(operators)
    if optimizer is not None:
        step = training_step(graph, optimizer)
        for position in range(len(step.backward) - 1, -1, -1):
            cost = step.backward[position]
            if not cost.launches:
                continue
            node, record = graph.nodes[position], records[position]
            key = (len(step.reached.intersection(node.inputs)), _counted(cost))
            number = record.known.get(key)
            if number is None:
                row = _row(graph, node.op, "backward", 1, cost, node, step.reached)
                number = record.known[key] = rows.add(row)
            operators.append(node.op)
            nodes.append((position,))
            costs.append(cost)
            dtypes.append(_dtype(graph, node))
            numbers.append(number)
        phases += ["backward"] * (len(operators) - len(phases))
    found = rows.take(numbers) if numbers else np.empty((0, _WIDTH))
    found[: len(owned), _PARAMETER_BYTES] = np.log2(np.array(owned, np.float64) + 1.0)
    if optimizer is not None and step.optimizer.launches:
        parameters = sum(tensor.kind == "parameter" for tensor in graph.tensors.values())
        update = _row(graph, "optimizer", "optimizer", parameters, step.optimizer, None)
        found = np.concatenate([found, [update]])
        operators.append("optimizer")
        phases.append("optimizer")
        nodes.append(())
        costs.append(step.optimizer)
        dtypes.append("fp32")
    members_of = tuple(nodes)
    found[:, _REUSE] = reuse_columns(graph, members_of, found[:, _WORK_AT["bytes"]])
    return UnitColumns(tuple(operators), tuple(phases), members_of, tuple(costs), tuple(dtypes), found)


def _forward(graph: Graph, rows: RowTable) -> tuple[list[str], list[tuple[int, ...]], list[Cost], list[str], list[int]]:
    """Of each forward unit its operator, nodes, cost, the dtype of its first result, and the number of its row."""
    table, laid_out = graph_costs(graph), layouts(graph)
    groups, costs, records = group_members(graph), group_costs(table), laid_out.records
    numbers: list[int] = []
    for (_, op, members), cost in zip(groups, costs):
        record = records[members[0]]
        if len(members) == 1:
            # of one node, all but the parameters follows from the signature
            number = record.row
            if number is None:
                row = _row(graph, op, "forward", 1, cost, graph.nodes[members[0]]) if cost.launches else None
                number = record.row = _NO_LAUNCH if row is None else rows.add(row)
        elif cost.launches:
            nodes = [graph.nodes[position] for position in members]
            main = _main_node(nodes)
            record, key = records[members[nodes.index(main)]], (op, len(members), _counted(cost))
            number = record.known.get(key)
            if number is None:
                number = record.known[key] = rows.add(_row(graph, op, "forward", len(members), cost, main))
        else:
            number = _NO_LAUNCH
        numbers.append(number)
    launches = [number >= 0 for number in numbers]
    if not all(launches):
        groups, numbers = list(compress(groups, launches)), [number for number in numbers if number >= 0]
        costs = tuple(compress(costs, launches))
    outputs, types, dtypes = laid_out.edges.outputs, graph.classes.types, list(graph.classes.numbers.values())
    first = [next((output for output in outputs[members[0]] if output >= 0), -1) for _, _, members in groups]
    return (
        [op for _, op, _ in groups],
        [members for _, _, members in groups],
        list(costs),
        [types[dtypes[tensor]].dtype if tensor >= 0 else "fp32" for tensor in first],
        numbers,
    )


def _table(memo: Memo) -> RowTable:
    table = memo.known.get(_TABLE)
    return memo.known.setdefault(_TABLE, RowTable(_WIDTH)) if table is None else table  # type: ignore[no-any-return]


def _counted(cost: Cost) -> tuple[int, ...]:
    return (
        cost.macs, cost.flops, cost.bytes_read, cost.bytes_written, cost.tensor_core_macs, cost.launches,
    )  # fmt: skip


def _main_node(nodes: Sequence[Node]) -> Node:
    """The node of a group that does most of its work."""
    for kind in ("attention", "contraction", "recurrent", "normalisation"):
        for node in nodes:
            if lookup(node.op, node.domain).kind == kind:
                return node
    return nodes[0]


def _dtype(graph: Graph, node: Node) -> str:
    name = next(filter(None, node.outputs), "")
    return graph.tensors[name].dtype if name else "fp32"


def _log(value: float) -> float:
    return math.log2(value + 1.0)


def fine_log(value_us: float) -> float:
    """A logarithm that still tells times far below a microsecond apart."""
    return math.log2(value_us + 1e-4)


def _row(
    graph: Graph,
    operator: str,
    phase: str,
    members: int,
    cost: Cost,
    node: Node | None,
    reached: frozenset[str] | None = None,
) -> tuple[float, ...]:
    """The row of a unit, in the order of `COLUMNS` and `WORK`; what depends on the device or on other units is 0.

    ``node`` is its main node, None for the optimizer, whose ``members`` are the parameters that it updates at once.
    """
    dtype = _dtype(graph, node) if node else "fp32"
    described = (
        float(operator_code(operator)),
        float(KINDS.index(lookup(operator, node.domain if node else "").kind)),
        float(PHASES.index(phase)),
        float(DTYPES.index(dtype)) if dtype in DTYPES else -1.0,
        float(members),
        _log(cost.launches),
        _log(cost.flops),
        _log(cost.macs),
        cost.tensor_core_macs / cost.macs if cost.macs else -1.0,
        _log(cost.bytes_read),
        _log(cost.bytes_written),
        0.0,  # parameters: they belong to one of several equal nodes
        0.0,
        0.0,
        0.0,
        fine_log(cost.flops / cost.bytes) if cost.bytes else -20.0,
    )
    shapes = describe_shapes(graph, node, cost, layouts(graph), _ONE_SM, reached)
    # other integers and booleans are taken to run at the rate of fp32
    rate = float(RATES.index(dtype if dtype in RATES else "fp32"))
    work = float(cost.flops), 2.0 * cost.tensor_core_macs, float(cost.bytes), float(cost.launches), rate
    return (*described, 0.0, 0.0, *shapes, *work)
