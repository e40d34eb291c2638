"""Curves and bars: what is drawn, what is left out, and that no text lies on another."""

import math
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foretell.rendering.svg.canvas import FONT, text_width
from foretell.rendering.svg.charts import Axis, Bar, Series, bar_chart, mark, spread, xy_chart

SVG = "{http://www.w3.org/2000/svg}"
X, Y = Axis("batch size", log=True), Axis("latency, ms")
CURVE = [(b, 0.5 + 0.1 * b) for b in (1, 2, 4, 8, 16, 32)]


def texts(svg: str) -> dict[str, ElementTree.Element]:
    return {element.text or "": element for element in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def boxes(svg: str) -> list[tuple[str, float, float, float, float]]:
    rectangles = []
    for element in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        style = element.get("style", f"font-size:{FONT}px")
        size = float(style.removeprefix("font-size:").removesuffix("px"))
        text = element.text or ""
        # as wide as fonts mostly are; the layout reckons with a little more
        wide = text_width(text, size) * 0.9
        left = float(element.get("x", 0)) - {"middle": wide / 2, "end": wide}.get(element.get("text-anchor", ""), 0.0)
        base = float(element.get("y", 0))
        rectangles.append((text, left, base - 0.75 * size, left + wide, base + 0.2 * size))
    return rectangles


def assert_apart(svg: str, width: float = 720) -> None:
    for text, left, _, right, _ in boxes(svg):
        assert left >= 0, text
        assert right <= width, text
    for a, b in combinations(boxes(svg), 2):
        over = a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]
        assert not over, (a[0], b[0])


def test_lines_are_named_at_their_ends_apart_from_each_other() -> None:
    series = [Series(f"device {n}", [(x, y * (1 + 0.001 * n)) for x, y in CURVE]) for n in range(5)]
    svg = xy_chart(series, X, Y, title="Latency by batch size")
    assert {f"device {n}" for n in range(5)} <= set(texts(svg))
    assert_apart(svg)


@pytest.mark.parametrize("width", [360, 720])
def test_points_and_many_lines_have_a_legend(width: int) -> None:
    series = [Series(f"a device of some name {n}", [(x, y * (n + 1)) for x, y in CURVE]) for n in range(8)]
    svg = xy_chart([*series, Series("measured", CURVE, "points")], X, Y, title="Latency", width=width)
    assert "measured" in texts(svg)
    assert_apart(svg, width)


def test_one_series_needs_no_name() -> None:
    assert "h200" not in texts(xy_chart([Series("h200", CURVE)], X, Y, title="Latency"))


def test_a_band_is_drawn_behind_its_line() -> None:
    plain = xy_chart([Series("a", CURVE)], X, Y, title="t")
    banded = xy_chart([Series("a", CURVE, band=[(x, y * 0.8, y * 1.3) for x, y in CURVE])], X, Y, title="t")
    assert "fill-opacity" not in plain
    assert banded.index("fill-opacity") < banded.index("stroke-linejoin")


def test_what_cannot_be_shown_is_left_out() -> None:
    points = [(0, 1.0), (1, math.nan), (2, math.inf), (4, 1.0), (8, 2.0)]
    svg = xy_chart([Series("a", points)], X, Axis("ms", log=True), title="t")
    assert svg.count("<circle") == 2
    assert "nan" not in svg
    assert "nothing to show" in xy_chart([Series("a", [])], X, Y, title="t")
    assert "nothing to show" in xy_chart([], X, Y, title="t")


@settings(deadline=None, max_examples=60)
@example([(0.0, 0.0), (0.0, 5e-324)], False, "line")
@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=6), st.booleans(), st.sampled_from(["line", "points"]))
def test_any_numbers_give_a_picture(points: list[tuple[float, float]], log: bool, kind: str) -> None:
    series = Series("a", points, kind, band=[(x, y, y) for x, y in points])  # type: ignore[arg-type]
    svg = xy_chart([series], Axis("x", log=log), Axis("y", log=log), title="t")
    ElementTree.fromstring(svg)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', svg)


def test_every_point_has_its_note_as_title() -> None:
    svg = xy_chart([Series("a", CURVE[:2], "points", notes=["first <one>"])], X, Y, title="t")
    notes = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert notes == ["t", "first <one>", "a: 2, 0.7"]


def test_a_line_follows_x() -> None:
    there = xy_chart([Series("a", CURVE)], X, Y, title="t")
    assert xy_chart([Series("a", CURVE[::-1])], X, Y, title="t") == there


def test_series_differ_without_colour() -> None:
    lines = xy_chart([Series("a", CURVE), Series("b", [(x, 2 * y) for x, y in CURVE])], X, Y, title="t")
    assert lines.count("stroke-dasharray") == 1
    assert len({mark(0, 0, n, 5).replace(f"ch-f-{n}", "") for n in range(6)}) == 6


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 300), max_size=12))
def test_spread_places_keep_their_order_distance_and_ends(places: list[float]) -> None:
    moved = spread(sorted(places), 15.0, 0.0, 300.0)
    assert all(b - a >= 15.0 - 1e-6 for a, b in pairwise(moved))
    assert all(-1e-6 <= place <= 300.0 + 1e-6 for place in moved)


def test_bars_begin_at_zero_and_are_as_long_as_their_values() -> None:
    svg = bar_chart([Bar("Conv", 8.0), Bar("Gemm", 2.0)], title="Time", unit="ms")
    bars = [element for element in ElementTree.fromstring(svg).iter(f"{SVG}rect") if element.get("class") == "ch-f-0"]
    assert float(bars[0].get("width", 0)) == pytest.approx(4 * float(bars[1].get("width", 0)), abs=0.3)
    assert bars[0].get("x") == bars[1].get("x")
    assert {"Conv", "8 ms", "2 ms"} <= set(texts(svg))


def test_bars_keep_their_texts_apart() -> None:
    long = "a very long name of an operator of a model that somebody exported"
    bars = [Bar(long, 5.0, "12 %", 4.0, 9.0), Bar("b", 0.001, "does not fit"), Bar("c", 12345.6, low=12000, high=14000)]
    for width in (400, 720):
        svg = bar_chart(bars, title="Time " + long, unit="ms", width=width)
        assert_apart(svg, width)
        assert long in svg, "a tooltip has all of it"


def test_bars_below_zero_unknown_and_none() -> None:
    svg = bar_chart([Bar("less", -2.0), Bar("more", 3.0), Bar("unknown", math.nan)], title="t", unit="%")
    assert "unknown" not in texts(svg)
    assert all(float(e.get("width", 0)) >= 0 for e in ElementTree.fromstring(svg).iter(f"{SVG}rect"))
    assert "nothing to show" in bar_chart([], title="t", unit="ms")
