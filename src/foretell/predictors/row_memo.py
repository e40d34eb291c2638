"""Predictors: a memo of what a model says of rows, so that it is asked once about equal units of many workloads.

Rows that are equal byte by byte are answered from the memo. Units of different networks are seldom equal in one column:
how much the whole run moves, which is a number of the network and not of the unit. A `Smooth` response to one column is
therefore interpolated. Where rows that differ in this column alone were asked often enough, the model is evaluated at
the Chebyshev nodes of the interval between two kinks, and the polynomial through these values answers from then on.
Between kinks the response of a network is analytic, and five nodes in an octave reach what single precision leaves:
about 1e-6 of a unit's log(time / bound) (``docs/lab/0050-fast.md``).

Both tables are bounded: one that is full starts again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 32_768  # about a kilobyte each
_NODES = 5
_WIDEST = 1.0  # of an interval: an octave, where the column is a logarithm
_NARROWEST = 0.01  # in a narrower one the nodes would be too close for single precision

Values = NDArray[np.float64]
Rows = NDArray[np.float32]
Compute = Callable[[Rows, Values], Values]


@dataclass(frozen=True)
class Smooth:
    """A column along which a model's answers are smooth between its kinks."""

    column: int
    edges: Values  # of the intervals: kinks, and points between them where these are far apart
    nodes: Rows  # (intervals, nodes)

    @classmethod
    def along(cls, column: int, kinks: Values) -> "Smooth":
        """Intervals between kinks, and as far beyond the outermost ones as numbers go on.

        >>> smooth = Smooth.along(0, np.array([3.0, 3.5]))
        >>> smooth.edges.tolist(), smooth.interval(np.array([2.9, 3.0, 3.6], np.float32)).tolist()
        ([1.0, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0], [1, 2, 3])
        """
        whole = np.arange(np.floor(kinks.min()) - 2.0, np.ceil(kinks.max()) + 3.0, _WIDEST)
        edges = np.array(sorted({*whole.tolist(), *kinks.tolist()}))  # `np.unique` would import masked arrays: 40 ms
        angles = np.cos((2.0 * np.arange(_NODES) + 1.0) / (2.0 * _NODES) * np.pi)
        middle, half = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges) / 2.0
        return cls(column, edges, (middle[:, None] + half[:, None] * angles).astype(np.float32))

    def interval(self, values: Rows) -> NDArray[np.intp]:
        """The interval of each value; −1 where it is in none, or in one that is too narrow."""
        found = np.searchsorted(self.edges, values, side="right") - 1
        found = np.where((found >= 0) & (found < len(self.nodes)), found, -1)
        return np.where(np.diff(self.edges, append=0.0)[found] >= _NARROWEST, found, -1)

    def weights(self, values: Rows, interval: NDArray[np.intp]) -> Values:
        """Lagrange's weights of the nodes, (values, nodes)."""
        nodes = self.nodes[interval].astype(np.float64)
        from_nodes = values.astype(np.float64)[:, None] - nodes
        between = nodes[:, :, None] - nodes[:, None, :] + np.eye(_NODES)
        products = [np.delete(from_nodes, node, axis=1).prod(axis=1) for node in range(_NODES)]
        return np.asarray(np.stack(products, axis=1) / between.prod(axis=2), np.float64)


class RowMemo:
    """Values by row and a number beside it. Without `smooth`, only rows that are equal byte by byte are remembered."""

    def __init__(self, width: int, most: int = MAX_ROWS, smooth: Smooth | None = None) -> None:
        self._width, self._most, self._smooth = width, most, smooth
        self._known = _Table((width,))
        self._curves = _Table((_NODES, width))
        self._asked: dict[bytes, int] = {}  # how often an interval was asked about that has no curve yet
        self._lock = Lock()

    def values(self, rows: Rows, beside: Values, compute: Compute) -> Values:
        """A row of values for each row; ``compute`` is called at most once, for all that have to be computed."""
        with self._lock:
            keys = _keys(rows, beside)
            missing = [position for position, key in enumerate(keys) if key not in self._known.places]
            if not missing:
                return self._known.take(keys)
            found = np.empty((len(rows), self._width))
            known = [position for position, key in enumerate(keys) if key in self._known.places]
            found[known] = self._known.take([keys[position] for position in known])
            at = np.array(missing, np.intp)
            found[at] = self._missing([keys[position] for position in missing], rows[at], beside[at], compute)
            return found

    def _missing(self, keys: list[bytes], rows: Rows, beside: Values, compute: Compute) -> Values:
        """The values of rows that are not known: on a curve, or computed."""
        # room first, so that nothing that this request needs goes while it is answered
        for table in (self._known, self._curves):
            if len(table.places) + len(rows) > self._most:
                table.places.clear()
        curves, interval, to_draw = self._plan(rows, beside)
        on_curve = np.array([curve in self._curves.places or curve in to_draw for curve in curves], bool)
        direct = list({keys[position]: position for position in np.flatnonzero(~on_curve).tolist()}.values())
        drawn = list(to_draw.values())
        asked, asked_beside = rows[direct], beside[direct]
        if drawn:
            assert self._smooth is not None
            nodes = np.repeat(rows[drawn], _NODES, axis=0)
            nodes[:, self._smooth.column] = self._smooth.nodes[interval[drawn]].ravel()
            asked = np.concatenate([asked, nodes])
            asked_beside = np.concatenate([asked_beside, np.repeat(beside[drawn], _NODES)])
        computed = compute(asked, asked_beside) if len(asked) else np.empty((0, self._width))
        self._known.add([keys[position] for position in direct], computed[: len(direct)])
        self._curves.add(list(to_draw), computed[len(direct) :].reshape(-1, _NODES, self._width))
        found = np.empty((len(rows), self._width))
        elsewhere = np.flatnonzero(~on_curve)
        if len(elsewhere):
            found[elsewhere] = self._known.take([keys[position] for position in elsewhere.tolist()])
        on = np.flatnonzero(on_curve)
        if len(on):
            assert self._smooth is not None
            weights = self._smooth.weights(rows[on, self._smooth.column], interval[on])
            found[on] = np.einsum("nk,nkv->nv", weights, self._curves.take([curves[place] for place in on.tolist()]))
        return found

    def _plan(self, rows: Rows, beside: Values) -> tuple[list[bytes], NDArray[np.intp], dict[bytes, int]]:
        """The curve of each row, empty where there is none; its interval; and the curves that are worth drawing now."""
        if self._smooth is None:
            return [b""] * len(rows), np.full(len(rows), -1), {}
        interval = self._smooth.interval(rows[:, self._smooth.column])
        levelled = rows.copy()
        levelled[:, self._smooth.column] = interval
        curves = [key if place >= 0 else b"" for key, place in zip(_keys(levelled, beside), interval.tolist())]
        if len(self._asked) > self._most:
            self._asked.clear()
        to_draw: dict[bytes, int] = {}
        for position, curve in enumerate(curves):
            if curve and curve not in self._curves.places and curve not in to_draw:
                self._asked[curve] = self._asked.get(curve, 0) + 1
                if self._asked[curve] > _NODES:  # a curve costs as many evaluations as it has nodes
                    to_draw[curve] = position
        for curve in to_draw:
            del self._asked[curve]
        return curves, interval, to_draw


class _Table:
    """Arrays of one shape by key."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.places: dict[bytes, int] = {}
        self._values: NDArray[Any] = np.empty((256, *shape))

    def add(self, keys: list[bytes], values: Values) -> None:
        """Add entries."""
        start = len(self.places)
        while start + len(keys) > len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[start : start + len(keys)] = values
        self.places.update((key, start + number) for number, key in enumerate(keys))

    def take(self, keys: list[bytes]) -> Values:
        """The values of these keys."""
        return np.asarray(self._values[np.fromiter(map(self.places.__getitem__, keys), np.intp, len(keys))])


def _keys(rows: Rows, beside: Values) -> list[bytes]:
    """The bytes of each row and of the number beside it."""
    size = rows.shape[1] * rows.itemsize
    data, more = np.ascontiguousarray(rows).tobytes(), np.ascontiguousarray(beside).tobytes()
    step = beside.itemsize
    return [data[n * size : (n + 1) * size] + more[n * step : (n + 1) * step] for n in range(len(rows))]
