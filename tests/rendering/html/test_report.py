"""The page of a report: one file that asks nobody for anything, well-formed, and nothing of a model in it runs."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from foretell.rendering.html.report import report_page
from foretell.rendering.html.report_content import Report
from small.tiny_report import bare_report, tiny_report

VOID = {"meta", "link", "br"}
SELF_CLOSED = {"path", "rect", "circle"}


class Reader(HTMLParser):
    """The tags of a page, in order, checked to be closed as they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(params=["whole", "bare"])
def report(request: pytest.FixtureRequest) -> Report:
    return tiny_report() if request.param == "whole" else bare_report()


def test_nothing_of_a_model_becomes_markup_and_nothing_is_fetched(report: Report) -> None:
    tags = Reader(report_page(report)).tags
    assert "script" not in {tag for tag, _ in tags}
    for tag, attributes in tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert "src" not in attributes
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("#", "data:"))
    style = report_page(report).partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(attributes["content"] for tag, attributes in tags if attributes.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")


def test_every_link_has_its_part(report: Report) -> None:
    tags = Reader(report_page(report)).tags
    linked = [str(attributes["href"])[1:] for tag, attributes in tags if tag == "a"]
    assert linked == [attributes["id"] for tag, attributes in tags if tag == "section"]
    assert "roofline" in linked


def test_the_summary_has_numbers_with_intervals_and_doubts() -> None:
    page = report_page(tiny_report())
    assert "<b>8.00 <small>ms</small></b>" in page
    assert "7.20 – 9.60" in page
    assert "0.500 J an item" in page
    assert "8.3% mean error of the latency" in page
    assert "<li>Odd: &lt;script&gt;" in page


def test_unknown_values_are_named() -> None:
    page = report_page(bare_report())
    assert "memory, energy, power" in page
    assert "not fitted to measurements of this device" in page
    for part in bare_report().missing.values():
        assert part in page


def test_provenance_has_the_command_that_makes_the_report() -> None:
    page = report_page(tiny_report()).partition('id="provenance"')[2]
    assert "4,242 measured workloads" in page
    assert "cafe" in page
    assert "2026-08" in page
    assert "1.2.3" in page
    assert "<pre>&lt;script&gt;" in page


def test_many_inputs_are_counted() -> None:
    report = tiny_report()
    inputs = tuple(f"past_{number}: 4x8" for number in range(9))
    page = report_page(replace(report, provenance=replace(report.provenance, inputs=inputs)))
    assert "past_5: 4x8<br>3 more" in page
