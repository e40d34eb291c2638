"""The page of a roofline: a row a point, nothing from outside, names stay names."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from foretell.rendering.html.roofline_page import roofline_page
from foretell.rendering.svg.roofline import Group, Point, Roof, Roofline

EVIL = '"><script>alert(1)</script>'
POINTS = (
    Point("Conv", EVIL, "1x3 → 1x8", "Conv", 3, 10**9, 10**7, 100.0, 0.6, 0.5, "compute", "cudnn convolution", 0.7),
    Point("Concat", "join", "", "Concat", 1, 0, 10**6, 5.0, 0.4, 0.2, "kernel", "pytorch copy", 0.9),
)
ROOFLINE = Roofline(
    EVIL, "h200", "NVIDIA H200", None, 8, "fp32", "inference", "roofline", "operator", 0.5,
    (Roof("HBM", "memory", 1e12, True, True, "s"), Roof("fp32", "compute", 2e13, True, False, "s")), POINTS,
    (Group("Conv", 3, 1, 1, 300.0, 0.6, 0.5, "compute"), Group("Concat", 1, 0, 1, 5.0, 0.4, 0.2, "kernel")),
    ("a note & more",),
)  # fmt: skip


class Tags(HTMLParser):
    """Which elements a page has, and whether they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_row_a_point_and_one_script() -> None:
    tags = Tags()
    tags.feed(roofline_page(ROOFLINE))
    assert not tags.open
    assert tags.seen.count("tr") == 3
    assert tags.seen.count("svg") == 1
    assert tags.seen.count("script") == 1


def test_every_mark_has_its_row() -> None:
    page = roofline_page(ROOFLINE)
    marks = set(re.findall(r'<g class="ch-point[^>]*data-row="(\d+)"', page))
    rows = set(re.findall(r'<tr data-row="(\d+)"', page))
    assert marks == {"0"}
    assert rows == {"0", "1"}


def test_the_page_loads_nothing_from_the_network() -> None:
    page = roofline_page(ROOFLINE)
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\"' <]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody opens"
    assert "src=" not in page
    assert "@import" not in page


def test_points_by_kernel_have_a_kernel_column() -> None:
    assert "likeliest kernel" not in roofline_page(ROOFLINE)
    page = roofline_page(replace(ROOFLINE, by="kernel"))
    assert "likeliest kernel" in page
    assert "cudnn convolution (70%)" in page


def test_limits_and_notes_are_explained() -> None:
    page = roofline_page(ROOFLINE)
    assert "kernel: less than a quarter" in page
    assert "launch:" not in page
    assert "a note &amp; more" in page
