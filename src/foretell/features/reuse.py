"""Features: the reuse distance of a unit's input: how many bytes are moved between writing a tensor and reading it.

A tensor that was written a short while ago is still in the L2 cache, so reading it is fast. A weight was last read in
the previous run, so a whole run's traffic lies between two of its reads.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.graph import Graph
from foretell.graph.ir.layout import layouts

MOVED_IN_ALL = "log_moved_in_all"
REUSE_COLUMNS = ("log_moved_since", MOVED_IN_ALL)
_MIN_LOG, _MAX_LOG = 18, 32  # log2 of bytes: 256 KiB fit into every L2 cache, 4 GiB into none
_MAX_KEPT = 8  # lists of units of one graph whose reads are kept

Values = NDArray[np.float64]
Units = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Reads:
    """Which unit reads which tensors, one entry each; parameters are left out.

    ``writer`` is the unit that wrote the tensor before, −1 where that was none of this run.
    """

    names: list[str]
    unit: NDArray[np.intp]
    writer: NDArray[np.intp]


def reuse_columns(graph: Graph, units: Units, moved_bytes: Values) -> Values:
    """Return a row of `REUSE_COLUMNS` for each unit: the distance of its largest input counts.

    ``units`` are the nodes of each unit in the order in which they run, ``moved_bytes`` what each reads and writes.
    """
    kept = graph.structure.setdefault("reads", {})
    if units not in kept:
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        kept[units] = _find_reads(graph, units)
    reads: _Reads = kept[units]
    behind = np.cumsum(moved_bytes)
    in_all = float(behind[-1]) if len(behind) else 0.0
    since = np.full(len(units), in_all)
    if len(reads.unit):
        before = behind - moved_bytes
        laid_out = layouts(graph)
        sizes = np.array([laid_out.memo.bytes[laid_out.types[name]] for name in reads.names], np.float64)
        distance = np.where(reads.writer >= 0, before[reads.unit] - behind[reads.writer], in_all)
        # the largest input decides; of equally large ones the one that was written first
        order = np.lexsort((distance, sizes, reads.unit))
        is_last = np.append(np.diff(reads.unit[order]) > 0, True)
        chosen = order[is_last]
        since[reads.unit[chosen]] = distance[chosen]
    # a whole power of two, so that units that differ only a little here stay equal and can merge
    rounded = np.clip(np.rint(np.log2(since + 1.0)), _MIN_LOG, _MAX_LOG)
    # half a power of two: graphs that move nearly as much share their units
    whole = np.rint(2 * np.log2(in_all + 1.0)) / 2
    return np.stack([rounded, np.full(len(units), whole)], axis=1)


def _find_reads(graph: Graph, units: Units) -> _Reads:
    """The reads of all units; the output of a node that no unit runs is a view of its first input."""
    launching = {position for members in units for position in members}
    base: dict[str, str] = {}
    for position, node in enumerate(graph.nodes):
        if position not in launching and node.inputs and node.inputs[0]:
            base.update(dict.fromkeys(node.outputs, base.get(node.inputs[0], node.inputs[0])))
    names: list[str] = []
    readers: list[int] = []
    writers: list[int] = []
    written: dict[str, int] = {}
    for unit, members in enumerate(units):
        nodes = [graph.nodes[position] for position in members]
        outputs = nodes[0].outputs if len(nodes) == 1 else [name for node in nodes for name in node.outputs]
        inputs = nodes[0].inputs if len(nodes) == 1 else [name for node in nodes for name in node.inputs]
        for name in {base.get(name, name) for name in inputs}.difference(outputs):
            if name and graph.tensors[name].kind != "parameter":
                names.append(name)
                readers.append(unit)
                writers.append(written.get(name, -1))
        for name in outputs:
            written.setdefault(name, unit)
    return _Reads(names, np.array(readers, np.intp), np.array(writers, np.intp))
