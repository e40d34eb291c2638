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
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True)
class _Template:
    """What is the same of a node at every batch size, and the batch sizes at which the rules must be asked."""

    inputs: tuple[tuple[int, ...], ...]  # their strides
    outputs: tuple[tuple[int, ...], ...]
    shares: tuple[bool, ...]
    unusual: frozenset[int]
    has_workspaces: bool


@dataclass
class Family:
    """A graph in one dtype and memory format at several batch sizes. ``known`` has the first few."""

    known: dict[int, Layouts] = field(default_factory=dict)
    rows: Any = None  # for rooms above this one
    numbers: list[int] | None = None  # of the template of each node, −1 where it has none
    positions: list[int] = field(default_factory=list)  # of the first node of each template
    _templates: list[_Template] = field(default_factory=list)
    _lines: NDArray[np.int64] | None = None  # (2, templates, fields of a cost): a and b

    def learn(self, graph: Graph, laid_out: Layouts) -> None:
        """Remember a batch size, if another one is of use."""
        if len(self.known) < KNOWN:
            self.known[graph.batch_size] = laid_out

    def at(self, graph: Graph) -> Sized | None:
        """The records at another batch size, or None where the rules have to be asked."""
        if len(self.known) < KNOWN or graph.batch_size in self.known:
            return None
        return Sized(self, graph.batch_size) if self.numbers is not None or self._prepare(graph) else None

    def costs(self, batch_size: int) -> list[list[int]]:
        """The cost of each template, field by field."""
        assert self._lines is not None
        return (self._lines[0] + self._lines[1] * batch_size).tolist()  # type: ignore[no-any-return]

    def _prepare(self, graph: Graph) -> bool:
        """Find the templates of all nodes; returns whether every rule has been asked at all known batch sizes."""
        import numpy as np  # commands that predict nothing start without it

        layouts, sizes = list(self.known.values()), list(self.known)
        if any(record.cost is None for laid_out in layouts for record in laid_out.records):
            return False
        values = attrgetter(*(one.name for one in fields(layouts[0].records[0].cost)))
        found: dict[tuple[int, ...], int] = {}
        self.numbers, lines = [], []
        for position, records in enumerate(zip(*(laid_out.records for laid_out in layouts), strict=True)):
            key = tuple(map(id, records))
            if key not in found:
                template = _template(graph, position, layouts)
                line = _line(sizes, [values(record.cost) for record in records])
                found[key] = -1
                if template is not None and line is not None:
                    found[key] = len(self._templates)
                    self._templates.append(template)
                    self.positions.append(position)
                    lines.append(line)
            self.numbers.append(found[key])
        self._lines = np.array(lines, np.int64).reshape(len(lines), 2, -1).transpose(1, 0, 2)
        return True


@dataclass
class Sized:
    """A family at one more batch size: ``made`` has the records that were made without asking the rules."""

    family: Family
    batch_size: int
    made: dict[int, Record] = field(default_factory=dict)  # by template

    @cached_property
    def _costs(self) -> list[list[int]]:
        return self.family.costs(self.batch_size)

    @cached_property
    def _cost_type(self) -> Callable[..., Any]:
        return type(next(iter(self.family.known.values())).records[0].cost)

    def record(self, position: int, inputs: list[int], types: list[int], memo: Memo) -> Record | None:
        """The record of a node, given the operands that it reads and the types of its results."""
        numbers, strides = self.family.numbers, memo.strides
        number = numbers[position] if numbers is not None else -1
        if number < 0:
            return None
        template = self.family._templates[number]
        if self.batch_size in template.unusual or [strides[one] for one in inputs] != list(template.inputs):
            return None
        record = Record()
        record.operands = tuple([memo.operand(own, lies) for own, lies in zip(types, template.outputs, strict=True)])
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
