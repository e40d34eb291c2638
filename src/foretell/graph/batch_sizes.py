"""Graph: the records of a graph at a new batch size, from those at three others.

Idea. A new batch size gives every node a new signature (`foretell.graph.signatures`), although nothing but sizes along
one axis has changed. Of the operators below, every count of bytes and operations is a + b · batch size, and strides do
not depend on it at all, if the batch is the first of at least two axes. Two batch sizes give a and b, a third one
checks them, and all later ones are computed for all nodes at once. Where a rule could answer otherwise, the rule is
asked: at a batch size of 1 (an axis of size 1 has no order), where an operand without a batch happens to be as large as
the result, and where an operand lies differently in memory than it did before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from foretell.frozen import dataclass as frozen_dataclass
from foretell.graph.ir.graph import Graph
from foretell.graph.signatures import Memo, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from foretell.graph.ir.layout import Layouts

KNOWN = 3  # batch sizes from which those that follow are computed
_LEAST = 2
_MAX_FAMILIES = 4  # of one graph: its dtypes and memory formats
_OPERATORS = ("Conv", "Gemm", "MatMul", "BatchNormalization", "LayerNormalization", "MaxPool", "AveragePool")
_ELEMENTWISE = "elementwise"
_WITHOUT_WORKSPACES = ("BatchNormalization", "LayerNormalization")


@frozen_dataclass(frozen=True, slots=True)
class _Template:
    """What is the same of a node at every batch size, and the batch sizes at which the rules must be asked."""

    inputs: tuple[tuple[int, ...], ...]  # their strides
    outputs: tuple[tuple[int, ...], ...]
    shares: tuple[bool, ...]
    unusual: frozenset[int]
    has_workspaces: bool


class Kind(NamedTuple):
    """The nodes that had the same record at all known batch sizes: the first of them, and the results of all."""

    position: int
    template: int  # −1 where it has none
    results: list[list[int]]  # the tensors that all of them make first, second, …


@dataclass
class Family:
    """A graph in one dtype and memory format at several batch sizes. ``known`` has the first few."""

    known: dict[int, Layouts] = field(default_factory=dict)
    rows: Any = None  # for rooms above this one
    kinds: list[Kind] = field(default_factory=list)  # in the order of their first nodes
    kind_of: list[int] = field(default_factory=list)  # of each node
    positions: list[int] = field(default_factory=list)  # of the first node of each template
    _templates: list[_Template] = field(default_factory=list)
    _lines: NDArray[np.int64] | None = None  # (2, templates, fields of a cost): a and b
    _reads: NDArray[np.intp] | None = None  # what each node reads, and what the first of its kind reads instead

    def learn(self, graph: Graph, laid_out: Layouts) -> None:
        """Remember a batch size, if another one is of use."""
        if len(self.known) < KNOWN:
            self.known[graph.batch_size] = laid_out

    def at(self, graph: Graph) -> Sized | None:
        """The records at another batch size, or None where the rules have to be asked."""
        if len(self.known) < KNOWN or graph.batch_size in self.known:
            return None
        return Sized(self, graph.batch_size) if self.kinds or self._prepare(graph) else None

    def costs(self, batch_size: int) -> NDArray[np.int64]:
        """The cost of each template, field by field."""
        assert self._lines is not None
        found: NDArray[np.int64] = self._lines[0] + self._lines[1] * batch_size
        return found

    def reads_alike(self, operands: list[int]) -> bool:
        """Whether the nodes of each kind read equal operands."""
        import numpy as np

        assert self._reads is not None
        own, first = np.array(operands, np.intp)[self._reads]
        return bool((own == first).all())

    def _prepare(self, graph: Graph) -> bool:
        """Find the templates of all nodes; returns whether every rule has been asked at all known batch sizes."""
        import numpy as np  # commands that predict nothing start without it

        layouts, sizes, edges = list(self.known.values()), list(self.known), next(iter(self.known.values())).edges
        if not edges.inputs or any(record.cost is None for laid_out in layouts for record in laid_out.records):
            return False
        values = attrgetter(*(one.name for one in fields(layouts[0].records[0].cost)))
        found: dict[tuple[int, ...], int] = {}
        kinds, kind_of, templates, positions = list[Kind](), list[int](), list[_Template](), list[int]()
        lines, own, first = [], list[int](), list[int]()
        for position, records in enumerate(zip(*(laid_out.records for laid_out in layouts), strict=True)):
            key = tuple(map(id, records))
            if key not in found:
                template = _template(graph, position, layouts)
                line = _line(sizes, [values(record.cost) for record in records])
                number = -1
                if template is not None and line is not None:
                    number = len(templates)
                    templates.append(template)
                    positions.append(position)
                    lines.append(line)
                found[key] = len(kinds)
                kinds.append(Kind(position, number, [[] for _ in edges.outputs[position]]))
            kind = kinds[found[key]]
            kind_of.append(found[key])
            for column, output in zip(kind.results, edges.outputs[position], strict=True):
                column.append(output)
            own.extend(edges.inputs[position])
            first.extend(edges.inputs[kind.position])
        self._reads = np.array([own, first], np.intp)
        self._lines = np.array(lines, np.int64).reshape(len(lines), 2, -1).transpose(1, 0, 2)
        self._templates, self.positions, self.kind_of = templates, positions, kind_of
        self.kinds = kinds  # the last: other threads take it that all is there
        return True


@dataclass
class Sized:
    """A family at one more batch size: ``made`` has the records that were made without asking the rules."""

    family: Family
    batch_size: int
    made: dict[int, Record] = field(default_factory=dict)  # by template

    @cached_property
    def costs(self) -> NDArray[np.int64]:
        """The cost of each template, field by field."""
        return self.family.costs(self.batch_size)

    @cached_property
    def _costs(self) -> list[list[int]]:
        return self.costs.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _cost_type(self) -> Callable[..., Any]:
        return type(next(iter(self.family.known.values())).records[0].cost)

    def record(
        self, number: int, inputs: tuple[int, ...], outputs: tuple[int, ...], laid_out: Layouts
    ) -> Record | None:
        """The record of a template, given the tensors that one of its nodes reads and makes."""
        if number < 0:
            return None
        template, memo = self.family._templates[number], laid_out.memo
        operands, strides = laid_out.operands, memo.strides
        if self.batch_size in template.unusual or tuple([strides[operands[one]] for one in inputs]) != template.inputs:
            return None
        types, record = laid_out.types, Record()
        results = zip(outputs, template.outputs, strict=True)
        record.operands = tuple([memo.operand(types[output], lies) for output, lies in results])
        record.shares, record.has_views = template.shares, any(template.shares)
        record.cost = self._cost_type(*self._costs[number])
        if not template.has_workspaces:
            record.working = record.library = ()
        self.made[number] = record
        return record


def family_of(graph: Graph, memo: Memo, flags: int) -> Family | None:
    """The family of a graph; None for one item, where axes of size 1 change the rules."""
    if graph.batch_size < _LEAST:
        return None
    families: dict[Any, Family] = graph.signed.setdefault("families", {})
    key = (memo.serial, flags, *[own.dtype for own in graph.classes.types])
    if key not in families:
        if len(families) >= _MAX_FAMILIES:
            families.clear()
        families[key] = Family()
    return families[key]


def _template(graph: Graph, position: int, layouts: list[Layouts]) -> _Template | None:
    """What three batch sizes have in common; None where they differ, or where the rules are not lines."""
    node, edges = graph.nodes[position], layouts[0].edges
    if node.bodies:
        return None
    is_elementwise = edges.kinds[position] == _ELEMENTWISE
    if not is_elementwise and (node.op not in _OPERATORS or edges.kinds[position] == "unknown"):
        return None
    if "Pool" in node.op and node.integers("kernel_shape") is None:
        return None
    tensors = [graph.tensors[name] for name in (*node.inputs, *node.outputs) if name]
    if any(tensor.batch_axis is not None and (tensor.batch_axis or len(tensor.shape) < 2) for tensor in tensors):
        return None
    if any(not name or graph.tensors[name].batch_axis is None for name in node.outputs):
        return None
    inputs, outputs = (
        {tuple([one.memo.strides[one.operands[number]] for number in numbers]) for one in layouts}
        for numbers in (edges.inputs[position], edges.outputs[position])
    )
    shares = {one.records[position].shares for one in layouts}
    if max(len(inputs), len(outputs), len(shares)) > 1:
        return None
    per_item = {graph.tensors[name].elements // graph.batch_size for name in node.outputs}
    fixed = [tensor.elements for tensor in tensors if tensor.batch_axis is None]
    unusual = frozenset(size // item for size in fixed for item in per_item if item and size % item == 0)
    has_workspaces = not (is_elementwise or node.op in _WITHOUT_WORKSPACES)
    return _Template(inputs.pop(), outputs.pop(), shares.pop(), unusual, has_workspaces)


def _line(sizes: list[int], counts: list[tuple[int, ...]]) -> tuple[list[int], list[int]] | None:
    """a and b of every count = a + b · size; None where there are none.

    >>> _line([2, 4, 10], [(5, 7), (9, 7), (21, 7)]), _line([2, 4, 10], [(5,), (9,), (20,)])
    (([1, 7], [2, 0]), None)
    """
    starts, slopes = [], []
    for first, second, third in zip(*counts, strict=True):
        slope, rest = divmod(second - first, sizes[1] - sizes[0])
        start = first - slope * sizes[0]
        if rest or start + slope * sizes[2] != third:
            return None
        starts.append(start)
        slopes.append(slope)
    return starts, slopes
