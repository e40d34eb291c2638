"""Scales with round ticks, text that any name is safe in, colours in two schemes."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.rendering.svg.canvas import (
    CHART_CSS,
    axes,
    finite,
    heading,
    number,
    picture,
    safe,
    scale,
    shorten,
    svg_text,
    text_width,
    tick_label,
    with_fixed_colours,
)

NUMBERS = st.floats(min_value=1e-9, max_value=1e15)


@settings(deadline=None, max_examples=200)
@given(st.lists(NUMBERS, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_a_scale_holds_its_values_and_its_ticks(values: list[float], log: bool, from_zero: bool) -> None:
    axis = scale(values, 50.0, 650.0, log=log, from_zero=from_zero)
    assert axis.low <= min(values) * (1 + 1e-9)
    assert axis.high >= max(values) * (1 - 1e-9)
    for value in (*values, *axis.ticks):
        assert 50.0 - 1e-3 <= axis.place(value) <= 650.0 + 1e-3
    assert len(set(axis.ticks)) == len(axis.ticks)
    assert 1 <= len(axis.ticks) <= 12


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 9.7], (0, 2, 4, 6, 8, 10)),
        ([0.0, 0.003], (0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003)),
        ([-3.0, 4.0], (-4, -2, 0, 2, 4)),
    ],
)
def test_linear_ticks_are_round(values: list[float], ticks: tuple[float, ...]) -> None:
    assert scale(values, 0.0, 420.0).ticks == pytest.approx(ticks)


def test_log_ticks_are_decades_or_parts_of_them() -> None:
    assert scale([1.0, 1000.0], 0.0, 700.0, log=True).ticks == pytest.approx((1, 3, 10, 30, 100, 300, 1000))
    wide = scale([1e-3, 1e9], 0.0, 300.0, log=True).ticks
    assert all(math.log10(tick) == pytest.approx(round(math.log10(tick))) for tick in wide)


def test_batch_sizes_are_their_own_ticks() -> None:
    assert scale([1, 2, 4, 8, 16], 0.0, 700.0, log=True).ticks == (1, 2, 4, 8, 16)


def test_zero_is_shown_where_it_is_near_and_not_where_it_is_far() -> None:
    assert scale([2.0, 10.0], 0.0, 400.0, from_zero=True).low == 0
    assert scale([98.0, 100.0], 0.0, 400.0, from_zero=True).low == pytest.approx(98)


def test_one_value_and_none_have_a_scale() -> None:
    assert scale([5.0], 0.0, 100.0).low < 5 < scale([5.0], 0.0, 100.0).high
    assert scale([], 0.0, 100.0, log=True).ticks
    assert scale([0.0], 0.0, 100.0).place(0.0) == pytest.approx(50)


def test_what_an_axis_cannot_show_is_left_out() -> None:
    values = [1.0, 0.0, -1.0, math.inf, math.nan]
    assert finite(values, log=True) == [1.0]
    assert finite(values, log=False) == [1.0, 0.0, -1.0]


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=30))
def test_any_name_is_xml_and_comes_out_as_it_was(name: str) -> None:
    svg = picture(name, 100, 50, [svg_text(0, 0, name), heading(name, 100)])
    root = ElementTree.fromstring(svg)
    if name.isprintable():
        assert root[0].text == (name or None)


def test_markup_stays_text() -> None:
    assert "<script" not in picture("<script>alert(1)</script>", 10, 10, [svg_text(0, 0, '"><script>')])
    assert safe("a\x00b\ud800") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


def test_text_is_cut_to_its_room() -> None:
    name = "a very long name of an operator"
    assert text_width(shorten(name, 90)) <= 90
    assert shorten(name, 90).endswith("…")
    assert shorten(name, 900) == name


def test_a_picture_scales_has_a_name_and_both_schemes() -> None:
    svg = picture("t", 300, 200, [])
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == "0 0 300 200"
    assert root.get("role") == "img"
    assert "prefers-color-scheme:dark" in svg
    assert "var(" not in svg, "not every viewer knows variables"
    assert "var(--chart-ink)" in CHART_CSS
    assert "prefers-color-scheme:dark" in CHART_CSS


def test_a_still_has_one_scheme() -> None:
    svg = picture("t", 300, 200, [])
    light, dark = with_fixed_colours(svg), with_fixed_colours(svg, dark=True)
    assert "#ffffff" in light
    assert "#ffffff" not in dark
    assert "@media" not in light + dark


def luminance(colour: str) -> float:
    """Of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_texts_and_names_of_lines_can_be_read(dark: bool) -> None:
    rules = with_fixed_colours(picture("t", 10, 10, []), dark=dark)
    fills = dict(re.findall(r"ch-f-(\w+)\{fill:(#\w+)\}", rules))
    paper = luminance(fills.pop("paper"))
    for name, colour in fills.items():
        ends = sorted((paper, luminance(colour)))
        assert (ends[1] + 0.05) / (ends[0] + 0.05) >= 4.5, name
    assert len(fills) == 8


def test_numbers_are_short() -> None:
    assert [tick_label(v) for v in (1e15, 2.5e9, 10_000, 2000, 0.5)] == ["1P", "2.5G", "10k", "2,000", "0.5"]
    assert [number(v) for v in (1234.5, 12.345, 0.0001234)] == ["1,234", "12.3", "0.000123"]


def test_axes_name_what_they_count() -> None:
    x, y = scale([0, 1], 40, 200), scale([1, 100], 180, 20, log=True)
    text = "".join(axes(x, y, "batch", "ms & more"))
    assert "batch" in text
    assert "ms &amp; more" in text
