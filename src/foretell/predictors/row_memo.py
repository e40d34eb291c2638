"""Predictors: a memo of what a model says of rows, so that it is asked once about equal units of many workloads."""

from collections.abc import Callable
from threading import Lock

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 65_536  # about half a kilobyte each
Values = NDArray[np.float64]


class RowMemo:
    """Values by row, for rows that are equal byte by byte; when it is full, it starts again.

    >>> memo, rows = RowMemo(1), np.array([[1.0], [2.0], [1.0]])
    >>> memo.values(rows, lambda new: rows[new] * 10.0).ravel().tolist()
    [10.0, 20.0, 10.0]
    """

    def __init__(self, width: int, most: int = MAX_ROWS) -> None:
        self._width, self._most = width, most
        self._places: dict[bytes, int] = {}
        self._values = np.empty((256, width))
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._places)

    def values(self, rows: NDArray[np.generic], compute: Callable[[NDArray[np.intp]], Values]) -> Values:
        """A row of values for each row; ``compute`` gets the positions of those that are new, all at once."""
        data = np.ascontiguousarray(rows).tobytes()
        size = max(len(data) // max(len(rows), 1), 1)
        keys = [data[start : start + size] for start in range(0, len(data), size)]
        with self._lock:
            places = self._places
            missing = {key: position for position, key in enumerate(keys) if key not in places}
            if missing and len(places) + len(missing) > self._most:
                places.clear()
                missing = {key: position for position, key in enumerate(keys)}
            if missing:
                self._store(list(missing), compute(np.fromiter(missing.values(), np.intp, len(missing))))
            return self._values[np.fromiter(map(places.__getitem__, keys), np.intp, len(keys))]

    def _store(self, keys: list[bytes], values: Values) -> None:
        start = len(self._places)
        while start + len(keys) > len(self._values):
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[start : start + len(keys)] = values
        self._places.update((key, start + number) for number, key in enumerate(keys))
