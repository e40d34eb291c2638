"""Rows are computed once, and the table is bounded."""

import numpy as np

from foretell.predictors.row_memo import RowMemo


def column(*values):
    return np.array(values, np.float32)[:, None]


class Counted:
    """A function of rows that counts how many it was asked for."""

    def __init__(self, function):
        self.function, self.asked = function, 0

    def __call__(self, rows, beside):
        self.asked += len(rows)
        return self.function(rows, beside)


def tenfold(rows, beside):
    return rows.astype(np.float64) * 10.0 + beside[:, None]


def asked_of(memo, rows, beside=0.0):
    """The values of some rows, and how many had to be computed."""
    compute = Counted(tenfold)
    return memo.values(rows, np.full(len(rows), beside), compute).ravel().tolist(), compute.asked


def test_each_row_is_computed_once():
    memo = RowMemo(1)
    assert asked_of(memo, column(1, 2, 1)) == ([10, 20, 10], 2)
    assert asked_of(memo, column(3, 2)) == ([30, 20], 1)
    assert asked_of(memo, column(1, 2, 3)) == ([10, 20, 30], 0)
    assert asked_of(memo, column(1), beside=0.5) == ([10.5], 1)
    assert asked_of(memo, np.empty((0, 1), np.float32)) == ([], 0)


def test_it_grows_up_to_its_limit_and_starts_again():
    memo = RowMemo(1, most=1000)
    assert asked_of(memo, column(*range(900)))[1] == 900
    assert asked_of(memo, column(*range(850, 1050))) == ([10 * i for i in range(850, 1050)], 150)
    assert asked_of(memo, column(*range(900, 1050))) == ([10 * i for i in range(900, 1050)], 0)
    assert asked_of(memo, column(*range(2000)))[0] == [10 * i for i in range(2000)], "larger than the memo"
