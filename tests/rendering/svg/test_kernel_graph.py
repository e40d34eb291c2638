"""A graph of kernels as SVG: well-formed whatever names it has, bounded, nothing in it that runs."""

from xml.etree import ElementTree

import pytest

from foretell.predictors.fusion.kernel_graph import MAX_KERNELS, Flow, Kernel, KernelGraph
from foretell.rendering.svg.kernel_graph import MAX_ARROWS, MAX_BOXES, draw

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def arrows(picture: str) -> list[ElementTree.Element]:
    return [path for path in ElementTree.fromstring(picture).iter(f"{SVG}path") if path.get("class") == "flow"]


def kernel(label: str, *operators: str, time_us: float | None = None) -> Kernel:
    return Kernel(label, operators, ("pointwise",) * len(operators), "pointwise", time_us)


def test_boxes_show_operators_and_shares_and_arrows_show_bytes():
    graph = KernelGraph(
        (kernel("one", "Conv", "Relu", time_us=3.0), kernel("two", "Add", "Add", time_us=1.0)), (Flow(0, 1, 2048),)
    )
    picture = draw(graph, "net under inductor")
    shown = texts(picture)
    assert {"net under inductor", "one", "Conv", "Relu", "Add × 2", "3 µs · 75.0%", "1 µs · 25.0%"} <= set(shown)
    (arrow,) = arrows(picture)
    assert arrow.findtext(f"{SVG}title") == "2 KiB"


def test_a_legend_names_the_kinds_that_occur():
    shown = texts(draw(KernelGraph((kernel("a", "Add"),), ()), "net"))
    assert "pointwise" in shown
    assert "normalisation" not in shown


def test_long_times_are_milliseconds():
    graph = KernelGraph((kernel("a", "Conv", time_us=999.0), kernel("b", "Conv", time_us=2500.0)), ())
    assert {"999 µs · 28.6%", "2.5 ms · 71.4%"} <= set(texts(draw(graph, "net")))


def test_without_times_none_are_shown():
    assert not any("µs" in text for text in texts(draw(KernelGraph((kernel("a", "Add"),), ()), "net")))


def test_a_long_group_is_shortened():
    operators = [f"Op{i}" for i in range(30)]
    shown = texts(draw(KernelGraph((kernel("a", *operators),), ()), "net"))
    assert "Op0" in shown
    assert "Op29" not in shown
    assert "… 25 more" in shown


@pytest.mark.parametrize("name", ["</text><script>alert(1)</script>", "a&b", "]]>", "\x00\x1b[2J", "\ud800", "\"'<"])
def test_names_cannot_break_out(name):
    graph = KernelGraph((kernel(name, name), kernel("b", "Add")), (Flow(0, 1, 4),), (name,))
    picture = draw(graph, name)
    root = ElementTree.fromstring(picture.encode())
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg", "title", "style", "defs", "marker", "path", "rect", "text", "g"
    }  # fmt: skip
    assert not any(key.startswith("on") or "href" in key for element in root.iter() for key in element.attrib)


def test_a_box_is_wide_enough_for_its_name_and_no_name_is_endless():
    picture = draw(KernelGraph((kernel("module." * 500 + "end", "Add"),), ()), "net")
    (name,) = [text for text in texts(picture) if text.endswith("end")]
    assert len(name) < 50
    boxes = [float(rect.get("width", 0)) for rect in ElementTree.fromstring(picture).iter(f"{SVG}rect")]
    assert any(len(name) * 6 < width < len(name) * 12 for width in boxes)


def test_a_huge_graph_is_bounded_and_says_so():
    count = 10_000
    kernels = tuple(kernel(f"k{i}", f"op{i * i % 977}") for i in range(count))
    flows = tuple(Flow(i, j, 4) for i in range(count) for j in range(i + 1, min(i + 7, count)))
    screen = [text for text in texts(draw(KernelGraph(kernels, flows), "net")) if text.startswith("k")]
    assert MAX_BOXES - 10 < len(screen) <= MAX_BOXES
    picture = draw(KernelGraph(kernels, flows), "net", most=10**6)
    drawn = [text for text in texts(picture) if text.startswith("k")]
    assert MAX_KERNELS - 60 < len(drawn) < MAX_KERNELS
    assert 0 < len(arrows(picture)) <= MAX_ARROWS
    assert any("of 10000 kernels are left out" in text for text in texts(picture))
    assert any("arrows are left out" in text for text in texts(picture))


def test_nothing_can_be_drawn():
    assert texts(draw(KernelGraph((), ()), "empty"))[0] == "empty"
