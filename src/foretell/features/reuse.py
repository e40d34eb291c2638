"""Features: the reuse distance of a unit's input: how many bytes are moved between writing a tensor and reading it.

A tensor that was written a short while ago is still in the L2 cache, so reading it is fast. A weight was last read in
the previous run, so a whole run's traffic lies between two of its reads.
"""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from foretell.frozen import dataclass
from foretell.graph import Graph
from foretell.graph.ir.layout import layouts
from foretell.graph.wiring import wiring

MOVED_IN_ALL = "log_moved_in_all"
REUSE_COLUMNS = ("log_moved_since", MOVED_IN_ALL)
_MIN_LOG, _MAX_LOG = 18, 32  # log2 of bytes: 256 KiB fit into every L2 cache, 4 GiB into none
_MAX_KEPT = 8  # lists of units of one graph whose reads are kept

Values = NDArray[np.float64]
Units = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Reads:
    """Which unit reads which tensor, one entry each, in the order of the units; parameters are left out.

    ``writer`` is the unit that wrote the tensor before, −1 where that was none of this run. ``starts`` are the first
    entries of the units that read something, ``group`` is the number of an entry's unit among these.
    """

    tensor: NDArray[np.intp]
    unit: NDArray[np.intp]
    writer: NDArray[np.intp]
    starts: NDArray[np.intp]
    group: NDArray[np.intp]


def reuse_columns(graph: Graph, units: Units, moved_bytes: Values) -> Values:
    """Return a row of `REUSE_COLUMNS` for each unit: the distance of its largest input counts.

    ``units`` are the nodes of each unit in the order in which they run, ``moved_bytes`` what each reads and writes.
    """
    kept = graph.structure.setdefault("reads", {})
    reads: _Reads | None = kept.get(units)
    if reads is None:
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        reads = kept[units] = _find_reads(graph, units)
    behind = np.cumsum(moved_bytes)
    in_all = float(behind[-1]) if len(behind) else 0.0
    since = np.full(len(units), in_all)
    if len(reads.unit):
        before = behind - moved_bytes
        sizes = np.array(layouts(graph).bytes, np.float64)[reads.tensor]
        distance = np.where(reads.writer >= 0, before[reads.unit] - behind[reads.writer], in_all)
        # the largest input decides; of equally large ones the one that was written first
        is_largest = sizes == np.maximum.reduceat(sizes, reads.starts)[reads.group]
        since[reads.unit[reads.starts]] = np.maximum.reduceat(np.where(is_largest, distance, -np.inf), reads.starts)
    found = np.empty((len(units), len(REUSE_COLUMNS)))
    # a whole power of two, so that units that differ only a little here stay equal and can merge
    found[:, 0] = np.rint(np.log2(since + 1.0)).clip(_MIN_LOG, _MAX_LOG)
    # half a power of two: graphs that move nearly as much share their units
    found[:, 1] = np.rint(2 * np.log2(in_all + 1.0)) / 2
    return found


def _find_reads(graph: Graph, units: Units) -> _Reads:
    """The reads of all units; the output of a node that no unit runs is a view of its first input."""
    edges = wiring(graph)
    sizes = [len(members) for members in units]
    members = np.fromiter(chain.from_iterable(units), np.intp)
    unit_of_member = np.repeat(np.arange(len(units)), sizes)
    # of a training step a node has several units: the first is its forward one, which writes its results
    writer_of_node = np.full(len(graph.nodes), -1, np.intp)
    writer_of_node[members[::-1]] = unit_of_member[::-1]
    base = np.arange(len(edges.names))
    for position in np.flatnonzero(writer_of_node < 0).tolist():
        inputs = edges.inputs[position]
        if inputs and inputs[0] >= 0:
            base[[output for output in edges.outputs[position] if output >= 0]] = base[inputs[0]]
    # the reads of each member of each unit, one after the other
    tensors, positions = edges.reads
    starts = np.searchsorted(positions, np.arange(len(graph.nodes) + 1))
    counts = (starts[1:] - starts[:-1])[members]
    at = np.repeat(starts[members] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    tensor, unit = base[tensors[at]], np.repeat(unit_of_member, counts)
    producer = edges.producers[tensor]
    writer = np.where(producer >= 0, writer_of_node[producer], -1)
    is_parameter = np.array([first.kind == "parameter" for first in graph.classes.types], bool)
    kinds = np.fromiter(graph.classes.numbers.values(), np.intp)
    # what a unit makes itself it does not read from memory; what a later one makes is of the run before
    kept = ~is_parameter[kinds[tensor]] & (writer != unit)
    is_first = np.diff(unit[kept], prepend=-1) > 0
    return _Reads(
        tensor[kept],
        unit[kept],
        np.where(writer < unit, writer, -1)[kept],
        np.flatnonzero(is_first),
        np.cumsum(is_first) - 1,
    )
