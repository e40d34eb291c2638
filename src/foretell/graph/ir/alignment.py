"""Graph: aligns two descriptions of one program, for example the nodes of a graph and the kernels of a trace.

Both descriptions list their steps in the order in which they run. The best assignment that keeps this order is found by
dynamic programming, as in the comparison of two sequences (Needleman and Wunsch, 1970). One thing differs: several rows
may be assigned to the same column, at a lower score.
"""

from typing import Any

import numpy as np

NONE = -1


def align(own: Any, shared: Any) -> list[int]:
    """Assign each row to a column, or to `NONE`; the columns never decrease.

    Args:
        own: Integer scores, rows by columns, for a column that no earlier row is assigned to; 0 forbids the assignment.
        shared: Scores for a column that an earlier row may be assigned to as well; 0 forbids the assignment.

    >>> align([[2, 0, 0], [0, 0, 0], [0, 2, 2]], [[0, 0, 0], [0, 0, 0], [0, 0, 0]])
    [0, -1, 1]
    """
    own, shared = np.asarray(own, np.int32), np.asarray(shared, np.int32)
    rows, columns = own.shape
    best = np.zeros((rows + 1, columns + 1), np.int32)
    for row in range(rows):
        previous = best[row]
        current = previous.copy()
        np.maximum(current[1:], np.where(own[row] > 0, previous[:-1] + own[row], 0), out=current[1:])
        np.maximum(current[1:], np.where(shared[row] > 0, previous[1:] + shared[row], 0), out=current[1:])
        best[row + 1] = np.maximum.accumulate(current)
    return _trace_back(best, own)


def _trace_back(best: Any, own: Any) -> list[int]:
    """Read the assignment off the table of best scores, from the last row to the first."""
    rows, columns = own.shape
    assigned = [NONE] * rows
    column = columns
    for row in range(rows - 1, -1, -1):
        while column and best[row + 1, column] == best[row + 1, column - 1]:
            column -= 1  # this column added nothing
        if not column or best[row + 1, column] == best[row, column]:
            continue  # this row added nothing: it stays unassigned
        assigned[row] = column - 1
        if own[row, column - 1] > 0 and best[row + 1, column] == best[row, column - 1] + own[row, column - 1]:
            column -= 1
    return assigned
