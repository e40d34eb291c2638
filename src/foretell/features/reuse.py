"""Features: how much is moved between the time a tensor is written and the time it is read.

What was written a little while ago is still in the cache. Weights are read again when the next run begins, after
everything that one run moves.
"""

import math
from collections.abc import Iterable, Sequence

from foretell.graph import Graph

REUSE_COLUMNS = ("log_moved_since", "log_moved_in_all")
_LEAST, _MOST = 18, 32  # from a quarter of a MiB, which always stays, to 4 GiB, which never does


class Reuse:
    """The bytes that a run has moved so far, as its units follow one another."""

    def __init__(self, graph: Graph, running: Iterable[int], bytes_in_all: int) -> None:
        """``running`` are the nodes that launch anything; of others the output is a view of their first input."""
        self._graph = graph
        self._in_all = bytes_in_all
        self._moved = 0
        self._written_at: dict[str, int] = {}
        self._base: dict[str, str] = {}
        launching = set(running)
        for position, node in enumerate(graph.nodes):
            if position not in launching and node.inputs and node.inputs[0]:
                base = self._base.get(node.inputs[0], node.inputs[0])
                self._base.update(dict.fromkeys(node.outputs, base))

    def describe(self, nodes: Sequence[int]) -> tuple[float, float]:
        """A unit's `REUSE_COLUMNS`; what it reads was written before it, by nodes of others."""
        outputs = {name for position in nodes for name in self._graph.nodes[position].outputs}
        named = {name for position in nodes for name in self._graph.nodes[position].inputs if name}
        read = {self._base.get(name, name) for name in named} - outputs
        since = [(self._graph.tensors[name].bytes, self._since(name)) for name in read if self._is_activation(name)]
        return _rounded_log(max(since)[1] if since else self._in_all), math.log2(self._in_all + 1.0)

    def run(self, nodes: Sequence[int], moved_bytes: int) -> None:
        """A unit has run."""
        self._moved += moved_bytes
        for position in nodes:
            for name in self._graph.nodes[position].outputs:
                self._written_at.setdefault(name, self._moved)

    def _is_activation(self, name: str) -> bool:
        return self._graph.tensors[name].kind != "parameter"

    def _since(self, name: str) -> int:
        return self._moved - self._written_at[name] if name in self._written_at else self._in_all


def _rounded_log(moved_bytes: int) -> float:
    """Whole powers of two, so that equal units stay equal."""
    return float(min(max(round(math.log2(moved_bytes + 1.0)), _LEAST), _MOST))
