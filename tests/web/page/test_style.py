"""Nothing of the page comes from elsewhere."""

import re

from foretell.web.page import style


def test_no_address_of_another_host() -> None:
    for text in (style.CSS, style.DROP_TEMPLATE, style.DROP_SCRIPT, style.download_script("a.json")):
        assert not re.search(r"https?:|//\w|@import|url\(", text)


def test_a_download_has_its_name_and_kind() -> None:
    assert "'report.html'" in style.download_script("report.html")
    assert "text/html" in style.download_script("report.html")
    assert "application/json" in style.download_script("a.json")


def test_braces_are_balanced() -> None:
    for text in (style.CSS, style.DROP_SCRIPT, style.download_script("a.json")):
        assert text.count("{") == text.count("}")
