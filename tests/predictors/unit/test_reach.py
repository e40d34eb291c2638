"""The reach of the measurements: which units are new, how far they are beyond, and in which words that is said."""

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.features.operator_codes import operator_code
from foretell.features.units import COLUMNS, DTYPES, KINDS
from foretell.predictors.unit.reach import Reach

CONV = {"operator": operator_code("Conv"), "kind": KINDS.index("contraction"), "input_rank": 4}
ADD = {"operator": operator_code("Add"), "kind": KINDS.index("elementwise"), "input_rank": 4}


def rows(*units: dict[str, float]) -> np.ndarray:
    """One row for each unit; columns that are not named are absent (−1), codes are 0."""
    features = np.full((len(units), len(COLUMNS)), -1.0, np.float32)
    for row, unit in zip(features, units, strict=True):
        row[[COLUMNS.index(name) for name in ("operator", "kind", "phase", "dtype")]] = 0
        for name, value in unit.items():
            row[COLUMNS.index(name)] = value
    return features


@pytest.fixture
def reach() -> Reach:
    return Reach.of(rows({**CONV, "log_m": 10.0, "kernel": 3}, {**CONV, "log_m": 14.0, "kernel": 7}, ADD))


@pytest.mark.parametrize(
    ("unit", "octaves"),
    [
        ({**CONV, "log_m": 12.0, "kernel": 5}, 0.0),
        ({**CONV, "log_m": 14.5, "kernel": 5}, 0.0),  # half an octave is allowed
        ({**CONV, "log_m": 16.0, "kernel": 5}, 1.5),
        ({**CONV, "log_m": 8.0, "kernel": 5}, 1.5),
        ({**CONV, "log_m": 12.0, "kernel": 31}, 1.5),  # 32 is two octaves above 8
        ({**CONV, "log_m": 99.0, "kernel": 5}, 8.0),  # no more than that
        ({**CONV, "log_m": 12.0, "kernel": 5, "dtype": 1}, 8.0),
        ({**CONV, "log_m": 12.0, "kernel": 5, "phase": 1}, 8.0),
        ({**CONV, "log_m": 12.0, "kernel": 5, "input_rank": 3}, 8.0),
        ({**ADD, "input_rank": 6}, 0.0),  # an element-wise operator does not care for axes
        ({"operator": operator_code("Sort")}, 8.0),
    ],
)
def test_units_beyond_what_was_measured_are_counted_in_octaves(
    reach: Reach, unit: dict[str, float], octaves: float
) -> None:
    assert reach.beyond(rows(unit)) == pytest.approx([octaves])


def test_one_half_precision_stands_for_the_other() -> None:
    reach = Reach.of(rows({**CONV, "log_m": 10.0, "dtype": DTYPES.index("bf16")}))
    in_fp16, far, in_fp32 = rows(
        {**CONV, "log_m": 10.0, "dtype": DTYPES.index("fp16")},
        {**CONV, "log_m": 12.0, "dtype": DTYPES.index("fp16")},
        {**CONV, "log_m": 10.0, "dtype": DTYPES.index("fp32")},
    )
    assert reach.beyond(np.stack([in_fp16, far, in_fp32])) == pytest.approx([0.0, 1.5, 8.0])
    assert reach.describe(far) == "rows (M) 4,095, measured up to 1,023"
    assert reach.describe(in_fp32) == "never measured in fp32"


def test_what_is_new_is_said(reach: Reach) -> None:
    above, below, inside, other_dtype, other_rank, unseen = rows(
        {**CONV, "log_m": np.log2(1_000_001), "kernel": 3},
        {**CONV, "log_m": 3.0, "kernel": 3},
        {**CONV, "log_m": 12.0, "kernel": 3},
        {**CONV, "log_m": 12.0, "kernel": 3, "dtype": DTYPES.index("bf16")},
        {**CONV, "log_m": 12.0, "kernel": 3, "input_rank": 3},
        {"operator": operator_code("Sort")},
    )
    assert reach.describe(above) == "rows (M) 1,000,000, measured up to 16,383"
    assert reach.describe(below) == "rows (M) 7, measured from 1,023"
    assert reach.describe(inside) == ""
    assert reach.describe(other_dtype) == "never measured in bf16"
    assert reach.describe(other_rank) == "never measured with 3 axes"
    assert reach.describe(unseen) == "never measured"


def test_a_reach_survives_its_file(reach: Reach) -> None:
    again = Reach.load(reach.to_bytes())
    for name in ("keys", "lows", "highs"):
        np.testing.assert_array_equal(getattr(again, name), getattr(reach, name))
    with pytest.raises(ModelError, match="not a reach of measurements"):
        Reach.load(b"garbage")


def test_nothing_is_within_an_empty_reach() -> None:
    empty = Reach.of(rows())
    assert (empty.beyond(rows(CONV, ADD)) == 8.0).all()
