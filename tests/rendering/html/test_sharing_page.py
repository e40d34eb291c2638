"""Models that share a GPU: two bars each, every name escaped, nothing loaded."""

from xml.etree import ElementTree

from foretell.records import Estimate
from foretell.rendering.html.sharing_page import SharedRow, sharing_chart, sharing_page


def about(value: float) -> Estimate:
    return Estimate(value, 0.9 * value, 1.1 * value)


def row(model: str = "net", *, fits: bool = True, limit: str = "") -> SharedRow:
    together, slowdown = (about(4.0), about(2.0)) if fits else (None, None)
    return SharedRow(model, "inference, batch 1", about(2.0), together, slowdown, limit)


def bars(svg: str) -> list[ElementTree.Element]:
    shapes = ElementTree.fromstring(svg).iter()
    return [bar for bar in shapes if bar.tag.endswith("rect") and bar.get("class") in ("ch-f-0", "ch-f-1")]


def test_a_model_has_a_bar_alone_and_one_together() -> None:
    found = bars(sharing_chart("Sharing", [row(), row()]))
    assert [bar.get("class") for bar in found] == ["ch-f-0", "ch-f-1"] * 2
    alone, together = (float(bar.get("width") or 0) for bar in found[:2])
    assert 1.9 < together / alone < 2.1
    assert len(bars(sharing_chart("Sharing", [row(fits=False), row(fits=False)]))) == 2


def test_words_after_bars_are_not_cut() -> None:
    svg = sharing_chart("Sharing", [row(), row()])
    assert svg.count(">together<") == 2
    assert "…" not in svg


def test_the_page_is_escaped_loads_nothing_and_marks_a_broken_limit() -> None:
    page = sharing_page("<script>", [row("<script>"), row(limit="3 ms broken")], [("warning", "<script>")])
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert page.count('class="own"') == 1
    assert "2.00" in page
    assert "4.00<small>3.60 – 4.40</small>" in page
    assert sharing_page("Sharing", [row(fits=False)], []).count("<svg") == 1
