"""A Gantt chart: valid, escaped, and without bars on top of each other."""

from xml.etree import ElementTree

from foretell.rendering.html.packing_page import packing_page
from foretell.rendering.svg.gantt import Task, draw_gantt, lay_lanes
from foretell.rendering.terminal.gantt import text_gantt


def bars(svg: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall("{*}g/{*}rect")


def test_bars_lie_in_their_rows_and_do_not_overlap() -> None:
    spans = [(0, 0.0, 10.0), (0, 2.0, 4.0), (0, 5.0, 9.0), (1, 0.0, 10.0)]
    lanes = lay_lanes(spans)
    tasks = [Task(row, lane, a, b, "t", 0) for (row, a, b), lane in zip(spans, lanes)]
    found = [
        (float(bar.get("y")), float(bar.get("x")), float(bar.get("width")))
        for bar in bars(draw_gantt(["a", "b"], tasks, title="x"))
    ]
    assert len(found) == 4
    assert found[1][0] == found[2][0] != found[0][0]
    assert found[1][1] + found[1][2] <= found[2][1]
    assert found[0][2] == found[3][2] > 2 * found[1][2]


def test_hostile_names_and_empty_charts() -> None:
    svg = draw_gantt(["<script>"], [Task(0, 0, 0.0, 1.0, '"><script>', 0)], title="<b>")
    assert "<script>" not in svg
    ElementTree.fromstring(svg)
    ElementTree.fromstring(draw_gantt([], [], title="nothing"))
    row = {"job": "<script>", "slice": None, "device": "h200", "gpu": 0, "keeps_limit": False}
    row |= {"start_s": 0.0, "end_s": 1.0, "waiting_s": 0.0, "slowdown": 1.0}
    page = packing_page("<script>", [("a", "<script>")], svg, [row] * 1001)
    assert "<script>" not in page
    assert "and 1 more" in page


def test_what_is_not_shown_is_counted() -> None:
    tasks = [Task(row, 0, 0.0, 1.0, "t", row) for row in range(70)]
    svg = draw_gantt([f"gpu {row}" for row in range(70)], tasks, title="x")
    assert len(bars(svg)) == 64
    assert "6 jobs are not shown" in svg


def test_a_terminal_shows_the_first_rows() -> None:
    tasks = [Task(row, 0, 0.0, 1.0, "t", 0) for row in range(40)]
    lines = text_gantt([f"gpu {row}" for row in range(40)], tasks, ["t\x1b"], width=60)
    assert len(lines) == 24 + 3
    assert "and 16 more" in lines[-2]
    assert "\x1b" not in lines[-1]
    assert max(map(len, lines)) <= 62
