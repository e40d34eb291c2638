"""graph: two descriptions of one program, side by side: which step of the one is which step of the other.

Both run in the same order, so that the best order-preserving assignment is found by dynamic programming, as two texts
are compared (Needleman and Wunsch, 1970), with one difference: several steps may share a partner, at a lower score.
"""

from typing import Any

import numpy as np

NONE = -1


def align(own: Any, shared: Any) -> list[int]:
    """For each row the column it is assigned to, or `NONE`; columns never decrease.

    Args:
        own: Scores (rows by columns, whole numbers) of an assignment to a column that no earlier row has; 0 forbids it.
        shared: Scores of an assignment to a column that an earlier row may have; 0 forbids it.

    >>> align([[2, 0, 0], [0, 0, 0], [0, 2, 2]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]])
    [0, -1, 1]
    """
    own, shared = np.asarray(own, np.int32), np.asarray(shared, np.int32)
    rows, columns = own.shape
    best = np.zeros((rows + 1, columns + 1), np.int32)
    for row in range(rows):
        before = best[row]
        here = before.copy()
        np.maximum(here[1:], np.where(own[row] > 0, before[:-1] + own[row], 0), out=here[1:])
        np.maximum(here[1:], np.where(shared[row] > 0, before[1:] + shared[row], 0), out=here[1:])
        best[row + 1] = np.maximum.accumulate(here)
    return _trace_back(best, own)


def _trace_back(best: Any, own: Any) -> list[int]:
    rows, columns = own.shape
    found = [NONE] * rows
    column = columns
    for row in range(rows - 1, -1, -1):
        while column and best[row + 1, column] == best[row + 1, column - 1]:
            column -= 1
        if not column or best[row + 1, column] == best[row, column]:
            continue
        found[row] = column - 1
        if own[row, column - 1] > 0 and best[row + 1, column] == best[row, column - 1] + own[row, column - 1]:
            column -= 1
    return found
