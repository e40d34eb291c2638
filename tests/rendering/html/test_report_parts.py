"""Numbers of three digits, intervals, tables."""

from foretell.records import Estimate
from foretell.rendering.html.report_parts import ABSENT, Column, Line, figure, number, span, table, value, with_range
from small.tiny_report import spread


def test_all_numbers_have_three_digits() -> None:
    assert [number(quantity) for quantity in (0.5, 9.999, 10.0, 99.96, 100.0, 2e-7)] == [
        "0.500", "10.00", "10.0", "100.0", "100", "2.00e-07",
    ]  # fmt: skip


def test_an_interval_has_the_decimals_of_its_value() -> None:
    assert span(Estimate(31.0, 9.96, 100.04)) == "10.0 – 100.0"
    assert span(Estimate(2e-7, 1e-7, 3e-7)) == "1.00e-07 – 3.00e-07"


def test_what_is_unknown_is_a_dash_not_a_zero() -> None:
    assert value(None) == with_range(None) == ABSENT
    assert value(spread(3.0), 2) == "1.50"


def test_a_figure_draws_its_interval_on_a_track_of_twice_the_value() -> None:
    drawn = figure("Latency", Estimate(10.0, 5.0, 40.0), "ms")
    assert 'style="left:25.0%;width:75.0%"' in drawn  # the track ends at 20


def test_cards_carry_the_heads_of_their_columns() -> None:
    columns = (Column("a&b"), Column("n", "number", minor=True))
    lines = [Line(("x", "1"), "own")]
    assert '<tr class="own"><td>x</td><td class="n hide">1</td></tr>' in table(columns, lines)
    assert '<td data-head="a&amp;b">x</td>' in table(columns, lines, cards=True)
