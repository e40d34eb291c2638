import numpy as np

from foretell.predictors.row_memo import RowMemo


def asked_of(memo, rows):
    """The values of some rows, and the rows that had to be computed."""
    asked = []

    def compute(new):
        asked.extend(rows[new].ravel().tolist())
        return rows[new] * 10.0

    return memo.values(rows, compute).ravel().tolist(), asked


def column(*values):
    return np.array(values, np.float64)[:, None]


def test_each_row_is_computed_once():
    memo = RowMemo(1)
    assert asked_of(memo, column(1, 2, 1)) == ([10, 20, 10], [1, 2])
    assert asked_of(memo, column(3, 2)) == ([30, 20], [3])
    assert asked_of(memo, column(1, 2, 3)) == ([10, 20, 30], [])
    assert asked_of(memo, np.empty((0, 1))) == ([], [])


def test_it_grows_up_to_its_limit_and_starts_again():
    memo = RowMemo(1, most=1000)
    values, asked = asked_of(memo, column(*range(900)))
    assert values == [10 * i for i in range(900)]
    assert len(asked) == len(memo) == 900
    values, asked = asked_of(memo, column(*range(850, 1050)))
    assert values == [10 * i for i in range(850, 1050)]
    assert len(asked) == len(memo) == 200
    values, _ = asked_of(memo, column(*range(2000)))
    assert values == [10 * i for i in range(2000)], "a request larger than the memo is answered all the same"
