"""The style: for light, dark, phones and paper, and nothing in it that is fetched."""

from foretell.rendering.html.report_style import REPORT_CSS


def test_the_style_covers_screen_print_and_dark_mode() -> None:
    for medium in ("(prefers-color-scheme:dark)", "(max-width:40rem)", "@media print"):
        assert medium in REPORT_CSS
    assert REPORT_CSS.count("{") == REPORT_CSS.count("}")


def test_it_fetches_nothing_and_ends_no_tag() -> None:
    for word in ("url(", "@import", "@font-face", "http", "<"):
        assert word not in REPORT_CSS
