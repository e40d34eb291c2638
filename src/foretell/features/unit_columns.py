"""Features: the units of a graph as columns: everything about them that does not depend on the device.

The columns of a graph are made once and stay with it, so that a sweep over devices and slices only computes the few
that depend on the hardware (`foretell.features.units`). The row of a unit follows from the signature of its main node
(`foretell.graph.signatures`) and from its cost. So a row is described once, too, for all equal units of all graphs:
it lies in a table, and a graph gathers its rows from there.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import compress, count
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.batch_rows import add_rows
from foretell.features.operator_codes import operator_code
from foretell.features.reuse import REUSE_COLUMNS, reuse_columns
from foretell.features.schema import COLUMNS, DTYPES, KINDS, PHASES
from foretell.features.shapes import describe_shapes
from foretell.frozen import dataclass
from foretell.graph import Cost, Graph, graph_costs
from foretell.graph.ir.groups import group_costs, group_members, is_ungrouped
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.signatures import Memo, Record

if TYPE_CHECKING:
    from foretell.graph.cost.training import TrainingStep

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
_MAX_REUSE = 64  # above the logarithm of any distance
_NOT_IN_TABLE = -1  # the number of the optimizer's row
_NO_LAUNCH = -1  # the row of a node that launches nothing
_MAX_KEPT = 8  # lists of units of one structure
# operators, phases, nodes, and the number of the first result of the first node
_Launching = tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]


@dataclass(frozen=True)
class UnitColumns:
    """The units in the order in which they run; ``member`` is the row of each, of `COLUMNS` and `WORK`.

    A long network has many units and few rows, in the order in which they first occur. ``costs`` are those of whole
    units; ``first_dtypes`` are the dtypes of the first results of their first nodes.
    """

    operators: tuple[str, ...]
    phases: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    costs: tuple[Cost, ...]
    first_dtypes: tuple[str, ...]
    rows: Values
    member: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def names(self) -> tuple[str, ...]:
        """The operators as a breakdown names them: with "(backward)" behind those of the backward pass."""
        if "backward" not in self.phases:
            return self.operators
        pairs = zip(self.operators, self.phases, strict=True)
        return tuple([f"{operator} (backward)" if phase == "backward" else operator for operator, phase in pairs])

    def work(self, name: str) -> Values:
        """One of the columns `WORK`, for each unit."""
        return self.rows[:, _WORK_AT[name]][self.member]

    def work_of_rows(self, name: str) -> Values:
        """One of the columns `WORK`, for each row."""
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

    def extend(self, rows: Values) -> int:
        """Add several rows; returns the number of the first."""
        with self._lock:
            while self._count + len(rows) > len(self._rows):
                self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
            self._rows[self._count : self._count + len(rows)] = rows
            self._count += len(rows)
            return self._count - len(rows)

    def take(self, numbers: NDArray[np.intp]) -> Values:
        """The rows of these numbers, as an array of their own."""
        return self._rows[numbers]

    def column(self, numbers: NDArray[np.intp], position: int) -> Values:
        """One column of these rows."""
        return np.asarray(self._rows[numbers, position])


def unit_columns(graph: Graph, optimizer: str | None = None) -> UnitColumns:
    """Return the units of a forward pass; with an optimizer, those of a training step. They are cached on the graph."""
    cache: dict[Any, UnitColumns] = vars(graph).setdefault("_unit_columns", {})  # a graph never changes
    if optimizer not in cache:
        cache[optimizer] = _find_columns(graph, optimizer)
    return cache[optimizer]


def _find_columns(graph: Graph, optimizer: str | None) -> UnitColumns:
    """The units in the order in which they run: forward, then backward from the last node to the first, then update."""
    rows = _table(layouts(graph).memo)
    numbers, costs, launching = _forward(graph, rows)
    operators, phases, nodes, first = launching
    classes = graph.classes
    of_class, class_of = [own.dtype for own in classes.types], list(classes.numbers.values())
    dtypes = tuple([of_class[class_of[tensor]] if tensor >= 0 else "fp32" for tensor in first])
    owned, update = [cost.parameter_bytes for cost in costs], None
    if optimizer is not None:
        from foretell.graph import training_step  # here, because most predictions are of forward passes

        step = training_step(graph, optimizer)
        backward = _backward(graph, step, rows)
        numbers = [*numbers, *backward.values()]
        ran = [graph.nodes[position] for position in backward]
        operators += tuple([node.op for node in ran])
        phases += ("backward",) * len(ran)
        nodes += tuple([(position,) for position in backward])
        costs += tuple([step.backward[position] for position in backward])
        dtypes += tuple([_dtype(graph, node) for node in ran])
        if step.optimizer.launches:
            parameters = sum(tensor.kind == "parameter" for tensor in graph.tensors.values())
            update = _row(graph, "optimizer", "optimizer", parameters, step.optimizer, None)
            numbers.append(_NOT_IN_TABLE)
            operators, phases, nodes = (*operators, "optimizer"), (*phases, "optimizer"), (*nodes, ())
            costs, dtypes = (*costs, step.optimizer), (*dtypes, "fp32")
    found, member = _gather(graph, nodes, rows, np.array(numbers, np.intp), owned, update)
    return UnitColumns(operators, phases, nodes, costs, dtypes, found, member)


def _gather(
    graph: Graph,
    nodes: tuple[tuple[int, ...], ...],
    rows: RowTable,
    numbers: NDArray[np.intp],
    owned: list[int],
    update: tuple[float, ...] | None,
) -> tuple[Values, NDArray[np.intp]]:
    """The distinct rows of units, and the row of each unit.

    A row of the table (``numbers``) is not all: parameters (``owned``, their bytes) belong to one of several equal
    nodes, and reuse depends on the units before. ``update`` is the row of the last unit, where that is the optimizer's.
    """
    moved_bytes = rows.column(numbers, _WORK_AT["bytes"])
    if update is not None:
        moved_bytes[-1] = update[_WORK_AT["bytes"]]
    reuse = reuse_columns(graph, nodes, moved_bytes)
    sizes: defaultdict[int, int] = defaultdict(count().__next__)  # a new size gets the next number
    none = sizes[0]
    parameters = np.full(len(numbers), none)  # the number of their size
    parameters[: len(owned)] = list(map(sizes.__getitem__, owned))
    keys = (numbers * len(sizes) + parameters) * _MAX_REUSE + reuse[:, 0].astype(np.intp)
    places: defaultdict[int, int] = defaultdict(count().__next__)  # a new key gets the next number
    member = np.array(list(map(places.__getitem__, keys.tolist())), np.intp)
    first = np.empty(len(places), np.intp)
    first[member[::-1]] = np.arange(len(member) - 1, -1, -1)  # of several the first one stays
    found = rows.take(numbers[first])
    if update is not None:
        found[-1] = update  # the last unit, so that its row is the last as well
    of_parameters = np.log2(np.array(list(sizes), np.float64) + 1.0)
    found[:, _PARAMETER_BYTES] = of_parameters[parameters[first]]
    found[:, _REUSE] = reuse[first]
    return found, member


def _backward(graph: Graph, step: "TrainingStep", rows: RowTable) -> dict[int, int]:
    """The number of the row of each backward unit by the position of its node, from the last node to the first."""
    records, numbers = layouts(graph).records, dict[int, int]()
    for position in range(len(step.backward) - 1, -1, -1):
        cost = step.backward[position]
        if not cost.launches:
            continue
        node, record = graph.nodes[position], records[position]
        key = (len(step.reached.intersection(node.inputs)), _counted(cost))
        number = record.known.get(key)
        if number is None:
            number = rows.add(_row(graph, node.op, "backward", 1, cost, node, step.reached))
            record.know(key, number)
        numbers[position] = number
    return numbers


def _forward(graph: Graph, rows: RowTable) -> tuple[list[int], tuple[Cost, ...], _Launching]:
    """Of each forward unit that launches something the number of its row and its cost; and which units these are."""
    groups, costs, records = group_members(graph), group_costs(graph_costs(graph)), layouts(graph).records
    sized = layouts(graph).sized
    if sized is not None:
        add_rows(sized, rows)
    described = [record.row for record in records] if is_ungrouped(graph) else [None] * len(groups)
    numbers = [
        _number(graph, op, members, cost, records, rows) if number is None else number
        for (_, op, members), cost, number in zip(groups, costs, described, strict=True)
    ]
    if _NO_LAUNCH not in numbers:
        return numbers, costs, _launching(graph, b"", groups)
    launches = [number != _NO_LAUNCH for number in numbers]
    return (
        list(compress(numbers, launches)),
        tuple(compress(costs, launches)),
        _launching(graph, bytes(launches), groups),
    )


def _number(
    graph: Graph, op: str, members: tuple[int, ...], cost: Cost, records: Sequence[Record], rows: RowTable
) -> int:
    """The number of the row of a forward unit; it is described where nobody has before."""
    record = records[members[0]]
    if len(members) == 1:
        # of one node, all but the parameters follows from the signature
        if record.row is None:
            row = _row(graph, op, "forward", 1, cost, graph.nodes[members[0]]) if cost.launches else None
            record.row = _NO_LAUNCH if row is None else rows.add(row)
        return record.row
    if not cost.launches:
        return _NO_LAUNCH
    nodes = [graph.nodes[position] for position in members]
    main = _main_node(nodes)
    record, key = records[members[nodes.index(main)]], (op, len(members), _counted(cost))
    number: int | None = record.known.get(key)
    if number is None:
        number = rows.add(_row(graph, op, "forward", len(members), cost, main))
        record.know(key, number)
    return number


def _launching(graph: Graph, launches: bytes, groups: Sequence[tuple[str, str, tuple[int, ...]]]) -> _Launching:
    """Operators, phases, nodes and first results of the groups that launch something; all do if ``launches`` is empty.

    Graphs of the same edges share them.
    """
    kept = graph.structure.setdefault("launching", {})
    found: _Launching | None = kept.get(launches)
    if found is None:
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        own, outputs = list(compress(groups, launches)) if launches else groups, layouts(graph).edges.outputs
        found = kept[launches] = (
            tuple([op for _, op, _ in own]),
            ("forward",) * len(own),
            tuple([members for _, _, members in own]),
            tuple([next((output for output in outputs[members[0]] if output >= 0), -1) for _, _, members in own]),
        )
    return found


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
    return (*described, 0.0, 0.0, *shapes, *_work(cost, rate))


def _work(cost: Cost, rate: float) -> tuple[float, ...]:
    """The columns `WORK`."""
    return float(cost.flops), 2.0 * cost.tensor_core_macs, float(cost.bytes), float(cost.launches), rate
