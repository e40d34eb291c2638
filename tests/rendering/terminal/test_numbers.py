from foretell.records import Estimate
from foretell.rendering.terminal.numbers import ABSENT, cell, number


def test_three_digits_and_separated_thousands():
    assert [number(value) for value in (0.0, 0.00012345, 9.999, 999.4, 1000, -2.5)] == [
        "0", "0.000123", "10", "999", "1,000", "-2.5",
    ]  # fmt: skip


def test_a_cell_is_a_value_by_parts_or_a_dash():
    assert cell(Estimate(12.0, 10.0, 14.0), 8) == "1.5"
    assert cell(None) == ABSENT
