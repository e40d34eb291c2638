"""Single operators that a student is asked about: drawn again alike, of all kinds, and none that nobody could run."""

import numpy as np

from foretell.features import COLUMNS
from lab.distil.rows import SINGLE
from lab.distil.singles import single_operators


def test_operators_of_all_kinds_are_drawn_and_the_same_seed_draws_the_same() -> None:
    rows = single_operators("h200", 300)
    again = single_operators("h200", 300)
    assert np.array_equal(rows.features, again.features)
    assert 250 < len(rows.bound_us) <= 600
    assert rows.names.tolist() == [SINGLE]
    assert not rows.is_measured.any()
    assert (rows.bound_us < 200_000).all()
    assert len(np.unique(rows.features[:, COLUMNS.index("operator")])) >= 7
    assert len(np.unique(rows.features[:, COLUMNS.index("dtype")])) == 3
