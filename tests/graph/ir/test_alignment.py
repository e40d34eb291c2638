import numpy as np
import pytest

from foretell.graph.ir.alignment import NONE, align


def _scores(calls, nodes, shareable=""):
    own = [[2 if call == node else 0 for node in nodes] for call in calls]
    shared = [[1 if call == node and call in shareable else 0 for node in nodes] for call in calls]
    return np.array(own).reshape(len(calls), len(nodes)), np.array(shared).reshape(len(calls), len(nodes))


@pytest.mark.parametrize(
    ("calls", "nodes", "expected"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("ac", "abc", [0, 2]),
        ("axc", "abc", [0, NONE, 2]),
        ("ba", "ab", None),  # only one of the two can keep its order
        ("", "abc", []),
        ("ab", "", [NONE, NONE]),
    ],
)
def test_order_is_kept_and_as_much_as_possible_is_assigned(calls, nodes, expected):
    result = align(*_scores(calls, nodes))
    if expected is None:
        assert sorted(result)[0] == NONE
        assert sorted(result)[1] != NONE
    else:
        assert result == expected


def test_a_column_is_shared_only_where_that_is_allowed():
    assert align(*_scores("aab", "ab")) in ([0, NONE, 1], [NONE, 0, 1])
    assert align(*_scores("aab", "ab", shareable="a")) == [0, 0, 1]


def test_an_own_column_is_better_than_a_shared_one():
    assert align(*_scores("aab", "aab", shareable="a")) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_the_assignment_is_the_best_of_all(seed):
    draw = np.random.default_rng(seed)
    own = draw.integers(0, 4, (4, 4)) * draw.integers(0, 2, (4, 4))
    shared = np.minimum(own, draw.integers(0, 2, (4, 4)))

    def best(row, low, used):
        if row == 4:
            return 0
        choices = [best(row + 1, low, used)]
        for column in range(low, 4):
            score = shared[row, column] if used and column == low else own[row, column]
            if score > 0:
                choices.append(score + best(row + 1, column, True))
        return max(choices)

    result = align(own, shared)
    score, last = 0, NONE
    for row, column in enumerate(result):
        if column != NONE:
            assert column >= last
            gained = shared[row, column] if column == last else own[row, column]
            assert gained > 0
            score, last = score + gained, column
    assert score == best(0, 0, False)
