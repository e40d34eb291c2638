"""Where to serve a language model: a bar and a row for each place, reasons, everything escaped, nothing loaded."""

from foretell.records import Estimate
from foretell.rendering.html.serving_page import ServingRow, serving_page


def row(place: str = "1 × h200, fp8", *, at_risk: bool = False) -> ServingRow:
    one = Estimate(2.0, 1.8, 2.2)
    return ServingRow(place, "a cloud", 32, one, None, one, one, None, 3, True, at_risk)


def test_every_text_is_escaped_and_nothing_is_loaded() -> None:
    nasty = "<script>"
    page = serving_page(nasty, nasty, [row(nasty)], [(nasty, nasty)], [nasty], nasty)
    assert nasty not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_place_has_its_numbers_its_interval_and_its_doubts() -> None:
    page = serving_page("title", "lead", [row(at_risk=True)], [], [], "foretell report")
    assert "2.00<small>1.80 – 2.20</small>" in page
    assert "extrapolated" in page
    assert "may miss a limit" in page
    assert page.count("<svg") == 1


def test_reasons_are_the_answer_where_there_is_no_place() -> None:
    page = serving_page("title", "lead", [], [("t4", "it does not fit")], [], "foretell report")
    assert "it does not fit" in page
    assert "<details>" not in page
    assert "<svg" not in page


def test_more_than_eight_places_are_folded() -> None:
    page = serving_page("title", "lead", [row(f"place {at}") for at in range(10)], [("t4", "why")], [], "x")
    assert "2 more places" in page
    assert "1 excluded" in page
