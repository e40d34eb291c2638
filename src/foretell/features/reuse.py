"""Features: the reuse distance of a unit's input: how many bytes are moved between writing a tensor and reading it.

A tensor that was written a short while ago is still in the L2 cache, so reading it is fast. A weight was last read in
the previous run, so a whole run's traffic lies between two of its reads.
"""

import math
from collections.abc import Iterable, Sequence

from foretell.graph import Graph

REUSE_COLUMNS = ("log_moved_since", "log_moved_in_all")
_MIN_LOG, _MAX_LOG = 18, 32  # log2 of bytes: 256 KiB fit into every L2 cache, 4 GiB into none


class Reuse:
    """Counts the bytes that a run has moved so far, unit by unit."""

    def __init__(self, graph: Graph, running: Iterable[int], bytes_in_all: int) -> None:
        """``running`` are the nodes that launch kernels; the output of any other node is a view of its first input."""
        self._graph = graph
        self._in_all = bytes_in_all
        self._moved = 0
        self._written_at: dict[str, int] = {}
        self._base: dict[str, str] = {}
        # views: a read of the view is a read of its base
        launching = set(running)
        for position, node in enumerate(graph.nodes):
            if position not in launching and node.inputs and node.inputs[0]:
                base = self._base.get(node.inputs[0], node.inputs[0])
                self._base.update(dict.fromkeys(node.outputs, base))

    def describe(self, nodes: Sequence[int]) -> tuple[float, float]:
        """Return the `REUSE_COLUMNS` of a unit that is about to run: the distance of its largest input counts."""
        outputs = {name for position in nodes for name in self._graph.nodes[position].outputs}
        names = {name for position in nodes for name in self._graph.nodes[position].inputs if name}
        read = {self._base.get(name, name) for name in names} - outputs
        distances = [(self._graph.tensors[name].bytes, self._since(name)) for name in read if self._is_activation(name)]
        return _rounded_log(max(distances)[1] if distances else self._in_all), math.log2(self._in_all + 1.0)

    def run(self, nodes: Sequence[int], moved_bytes: int) -> None:
        """Record that a unit has run."""
        self._moved += moved_bytes
        for position in nodes:
            for name in self._graph.nodes[position].outputs:
                self._written_at.setdefault(name, self._moved)

    def _is_activation(self, name: str) -> bool:
        return self._graph.tensors[name].kind != "parameter"

    def _since(self, name: str) -> int:
        return self._moved - self._written_at[name] if name in self._written_at else self._in_all


def _rounded_log(moved_bytes: int) -> float:
    """The distance as a whole power of two, so that units that differ only a little here stay equal and can merge."""
    return float(min(max(round(math.log2(moved_bytes + 1.0)), _MIN_LOG), _MAX_LOG))
