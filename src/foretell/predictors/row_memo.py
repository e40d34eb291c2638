"""Predictors: a memo of what a model says of rows, so that it is asked once about equal units of many workloads.

Rows that are equal byte by byte are answered from the memo. Networks of one search space share most of their units:
what depends on the whole network, such as the bytes that a run moves, is rounded (`foretell.features.reuse`).

The table is bounded: one that is full starts again.
"""

from collections.abc import Callable
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foretell.features.pooled import bytes_of

MAX_ROWS = 32_768  # about a kilobyte each

Values = NDArray[np.float64]
Rows = NDArray[np.float32]
Compute = Callable[[Rows, Values], Values]


class RowMemo:
    """Values by row and a number beside it."""

    def __init__(self, width: int, most: int = MAX_ROWS) -> None:
        self._width, self._most = width, most
        self._places: dict[bytes, int] = {}
        self._values = np.empty((256, width))
        self._lock = Lock()

    def values(self, rows: Rows, beside: Values, compute: Compute) -> Values:
        """A row of values for each row; ``compute`` is called at most once, for all that have to be computed."""
        with self._lock:
            keys = _keys(rows, beside)
            places = list(map(self._places.get, keys))
            if None not in places:
                return np.asarray(self._values[np.array(places, np.intp)])
            new = [position for position, place in enumerate(places) if place is None]
            found = self._values[np.array([place or 0 for place in places], np.intp)]
            missing = {keys[position]: position for position in new}
            if len(self._places) + len(missing) > self._most:
                self._places.clear()
            at = np.fromiter(missing.values(), np.intp, len(missing))
            self._add(list(missing), compute(rows[at], beside[at]))
            found[new] = self._values[[self._places[keys[position]] for position in new]]
            return found

    def _add(self, keys: list[bytes], values: Values) -> None:
        start = len(self._places)
        while start + len(keys) > len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[start : start + len(keys)] = values
        self._places.update(zip(keys, range(start, start + len(keys)), strict=True))


def _keys(rows: Rows, beside: Values) -> list[bytes]:
    """The bytes of each row and of the number beside it."""
    size = rows.shape[1] * rows.itemsize
    joined = np.empty((len(rows), size + beside.itemsize), np.uint8)
    joined[:, :size] = np.ascontiguousarray(rows).view(np.uint8)
    joined[:, size:] = np.ascontiguousarray(beside)[:, None].view(np.uint8)
    return bytes_of(joined)
