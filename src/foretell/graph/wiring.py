"""Graph: the edges of a graph as numbers: which tensors each node reads and makes.

A tensor's number is its place among the tensors of the graph. Rules that visit every node walk over lists of numbers,
or over arrays of all edges at once. The wiring depends on nodes and edges alone, so that a graph at another batch size
or dtype shares it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from foretell.frozen import dataclass
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.operators import DOMAINS, OPERATORS, UNKNOWN

if TYPE_CHECKING:  # numpy is imported when it is needed: commands that predict nothing start without it
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.intp]

NONE = -1  # the number of an operand that is absent
_Getter = Callable[[Sequence[int]], Any]  # an entry of a list, or a tuple of several


@dataclass(frozen=True)
class Wiring:
    """The numbers of the tensors that each node reads and makes, and the kind of its operator."""

    names: list[str]
    numbers: Mapping[str, int]
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    kinds: list[str]

    @cached_property
    def getters(self) -> tuple[list[_Getter], list[_Getter], list[int]]:
        """For each node what picks its inputs and its outputs from a list, and its output where it has only one."""
        readers, makers = (
            [cast(_Getter, itemgetter(*own) if own else _nothing) for own in edges]
            for edges in (self.inputs, self.outputs)
        )
        return readers, makers, [own[0] if len(own) == 1 else NONE for own in self.outputs]

    @cached_property
    def reads(self) -> tuple[Numbers, Numbers]:
        """All edges into nodes in the order in which they run: the tensor, and the position of the node."""
        return _flat(self.inputs)

    @cached_property
    def makes(self) -> tuple[Numbers, Numbers]:
        """All edges out of nodes: the tensor, and the position of the node."""
        return _flat(self.outputs)

    @cached_property
    def producers(self) -> Numbers:
        """The position of the node that makes each tensor; −1 where none does."""
        return self._last(*self.makes)

    @cached_property
    def first_readers(self) -> Mapping[int, int]:
        """The position of the first node that reads each tensor."""
        tensors, positions = self.reads
        return dict(zip(tensors[::-1].tolist(), positions[::-1].tolist(), strict=True))

    @cached_property
    def last_readers(self) -> Numbers:
        """The position of the last node that reads each tensor; −1 where none does."""
        return self._last(*self.reads)

    def _last(self, tensors: Numbers, positions: Numbers) -> Numbers:
        """The last of the positions of each tensor; −1 where it has none."""
        import numpy as np

        found = np.full(len(self.names), NONE, np.intp)
        found[tensors] = positions  # of several the last one stays
        return found


def wiring(graph: Graph) -> Wiring:
    """Return the wiring of a graph. It is found once for all its batch sizes and dtypes."""
    found: Wiring | None = graph.structure.get("wiring")
    if found is None:
        names = list(graph.tensors)
        numbers = dict(zip(names, range(len(names)), strict=True))
        number_of = {**numbers, "": NONE}.__getitem__
        found = graph.structure["wiring"] = Wiring(
            names,
            numbers,
            [tuple(map(number_of, node.inputs)) for node in graph.nodes],
            [tuple(map(number_of, node.outputs)) for node in graph.nodes],
            [(OPERATORS.get(node.op, UNKNOWN) if node.domain in DOMAINS else UNKNOWN).kind for node in graph.nodes],
        )
    return found


def numbers_of(graph: Graph, *kinds: str) -> list[int]:
    """The numbers of the tensors of some kinds, in their order."""
    key = ("tensors", *kinds)
    if key not in graph.structure:
        classes = graph.classes
        is_asked = [tensor.kind in kinds for tensor in classes.types]
        graph.structure[key] = [tensor for tensor, member in enumerate(classes.numbers.values()) if is_asked[member]]
    return graph.structure[key]  # type: ignore[no-any-return]


def _nothing(_: Sequence[int]) -> tuple[int, ...]:
    return ()


def _flat(edges: list[tuple[int, ...]]) -> tuple[Numbers, Numbers]:
    """The edges of all nodes that are present, and the node of each."""
    import numpy as np

    tensors = np.array(list(chain.from_iterable(edges)), np.intp)
    positions = np.repeat(np.arange(len(edges)), [len(own) for own in edges])
    is_present = tensors != NONE
    return (tensors, positions) if is_present.all() else (tensors[is_present], positions[is_present])
