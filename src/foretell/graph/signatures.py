"""Graph: signatures: nodes to which every rule gives the same answer are recognised, so that each is computed once.

Layouts, costs, workspaces and features of a node follow from its operator and attributes, from the shape, dtype, kind
and strides of its operands, and from the types of its results. Networks repeat their blocks, and networks of one search
space repeat those of others. So each node gets a `Record` that all nodes of its signature share, in all graphs: a rule
runs for the first of them, and its answer stays in the record.

Idea: hash-consing (E. Goto, 1974). A tensor's type, its strides, and what is fixed about a node become small numbers
the first time they are seen; a signature is a tuple of such numbers, which is cheap to hash and to compare.

Limits: names are no part of a signature, except for which operands are the same tensor. Nodes with sub-graphs are never
shared. The tables are bounded: a memo that is full is replaced by an empty one, and lives on only as long as graphs
that were numbered with it.
"""

from collections.abc import Callable, Mapping
from itertools import count
from marshal import dumps
from threading import Lock
from types import MappingProxyType
from typing import Any

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.tensor import DTYPE_BITS, TensorClasses, TensorType

MAX_RECORDS = 50_000  # about 3 KiB each
_FLAGS = 4  # what a whole graph sets: memory format, precision of products
ABSENT = 0  # the number of an optional operand that is absent


_NOTHING: Mapping[Any, Any] = MappingProxyType({})  # most records need no table of their own


class Record:
    """What is known of the nodes of one signature; what no rule has asked for yet is None.

    ``operands`` numbers the type and strides of each output, ``shares`` says of each whether it lies in the storage of
    the first input. ``row`` and ``known`` are for rooms above this one.
    """

    __slots__ = ("cost", "has_views", "known", "library", "operands", "owning", "row", "shares", "working")

    def __init__(self) -> None:
        self.operands: tuple[int, ...] = ()
        self.shares: tuple[bool, ...] = ()
        self.has_views = False
        self.cost: Any = None
        self.owning: Mapping[tuple[int, ...], Any] = _NOTHING  # the cost where parameters of these types are its own
        self.row: int | None = None
        self.working: tuple[int, ...] | None = None
        self.library: tuple[int, ...] | None = None
        self.known: Mapping[Any, Any] = _NOTHING

    def own(self, types: tuple[int, ...], cost: Any) -> None:
        """Keep the cost where parameters of these types belong to the node."""
        self.owning = {**self.owning, types: cost}

    def know(self, key: Any, value: Any) -> None:
        """Keep what a room above this one found out."""
        if self.known is _NOTHING:
            self.known = {}
        self.known[key] = value  # type: ignore[index]


_serials = count()


class Memo:
    """The tables that turn types, strides and nodes into numbers, and the record of every signature."""

    def __init__(self) -> None:
        self._types: dict[tuple[tuple[int, ...], str, str], int] = {}
        self._classes: dict[TensorType, int] = {}
        self._own: dict[object, dict[TensorType, int]] = {}
        self._operands: dict[tuple[int, tuple[int, ...]], int] = {}
        self._nodes: dict[tuple[object, ...], int] = {}
        self._lock = Lock()
        self.serial = next(_serials)
        self.records: dict[tuple[Any, ...], Record] = {}
        self.strides: list[tuple[int, ...]] = [()]  # by the number of an operand
        self.bytes: list[int] = [0]  # by the number of a type
        self.elements: list[int] = [0]
        self.known: dict[Any, Any] = {}  # tables of rooms above this one, as large as the records are many

    @property
    def is_full(self) -> bool:
        """Whether further graphs should start with another memo."""
        many = max(len(self.records), len(self._types), len(self._classes), len(self._operands), len(self._nodes))
        return many >= MAX_RECORDS

    def types_of(self, classes: TensorClasses) -> list[int]:
        """The number of the type of each class."""
        # the batch axis and whether a dtype is fixed are no part of a signature, but looking a whole type up is faster
        found = list(map(self._classes.get, classes.types))
        if None not in found:
            return found  # type: ignore[return-value]
        return [self._new_type(own) if number is None else number for own, number in zip(classes.types, found)]

    def _new_type(self, own: TensorType) -> int:
        with self._lock:
            key = own[:3]
            if key not in self._types:
                elements = own.elements
                self.bytes.append(-(-elements * DTYPE_BITS[own.dtype] // 8))
                self.elements.append(elements)
                self._types[key] = len(self.bytes) - 1  # 0 is the absent operand
            self._classes[own] = self._types[key]
            return self._types[key]

    def own_operands(
        self, classes: TensorClasses, types: list[int], strides_of: Callable[[TensorType], tuple[int, ...]], key: object
    ) -> list[int]:
        """The number of each class as an operand that no node makes, `ABSENT` for activations.

        ``strides_of`` says how such a tensor lies; ``key`` names the rule.
        """
        known = self._own.setdefault(key, {})
        found = list(map(known.get, classes.types))
        if None in found:
            for place, (own, number) in enumerate(zip(classes.types, types, strict=True)):
                if found[place] is None:
                    is_made = own.kind == "activation"
                    found[place] = known[own] = ABSENT if is_made else self.operand(number, strides_of(own))
        return found  # type: ignore[return-value]

    def operand(self, type_number: int, strides: tuple[int, ...]) -> int:
        """The number of a type with these strides."""
        key = (type_number, strides)
        number = self._operands.get(key)
        if number is None:
            with self._lock:
                number = self._operands.get(key)
                if number is None:
                    number = len(self.strides)
                    self.strides.append(strides)
                    self._operands[key] = number
        return number

    def nodes_of(self, graph: Graph, flags: int) -> list[int]:
        """The number of each node's fixed part: operator, attributes, and which operands are the same tensor."""
        cached = graph.signed.get("nodes")
        if cached is None or cached[0] is not self:
            cached = graph.signed["nodes"] = (self, self._number_nodes(graph))
        return [number + flags for number in cached[1]] if flags else cached[1]

    def _number_nodes(self, graph: Graph) -> list[int]:
        fixed = graph.structure.get("operators")
        if fixed is None or fixed[0] != self.serial:
            # nodes without attributes are numbered once for all graphs of these edges
            own = [(node.op, node.domain, _repeated(node.inputs)) for node in graph.nodes]
            # the memo's own number instead of the memo: a structure must not keep one that was replaced
            fixed = graph.structure["operators"] = (self.serial, own, [self._node((*key, b"")) for key in own])
        _, operators, numbers = fixed
        known, numbers = self._nodes, numbers.copy()
        for position, node in enumerate(graph.nodes):
            if node.attributes:
                # attributes as bytes: 1, 1.0 and True are equal as keys, but not to every rule. The format of version 2
                # depends on nothing but the values.
                given = node.attributes
                key = (*operators[position], dumps(given if type(given) is dict else dict(given), 2))
                numbers[position] = known.get(key) or self._node(key)
        return numbers

    def _node(self, key: tuple[object, ...]) -> int:
        number = self._nodes.get(key)
        if number is None:
            with self._lock:
                number = self._nodes.setdefault(key, (len(self._nodes) + 1) * _FLAGS)
        return number


def _repeated(inputs: tuple[str, ...]) -> tuple[int, ...]:
    """The first place of each operand, where one occurs twice; empty where all differ."""
    return tuple(map(inputs.index, inputs)) if len(set(inputs)) < len(inputs) else ()


_memo = Memo()


def current_memo() -> Memo:
    """The memo for graphs that have none yet."""
    global _memo  # one memo serves the whole process
    if _memo.is_full:
        _memo = Memo()
    return _memo
