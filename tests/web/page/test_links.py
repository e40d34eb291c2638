"""Links that carry a question."""

import pytest

from foretell.web.page.links import field_values, link_script, read_link

NAMES = ["model", "devices", "batch_size", "mig", "by"]
DEFAULTS = ["", ["h200"], 1, True, "usd"]


def test_a_link_sets_the_fields_in_their_kinds() -> None:
    tab, given = read_link("?tab=advise&model=timm%3Aresnet50&devices=h200,l4&batch_size=8&mig=false&unknown=1")
    assert tab == "advise"
    assert field_values(NAMES, DEFAULTS, given) == ["timm:resnet50", ["h200", "l4"], 8, False, "usd"]


@pytest.mark.parametrize("text", ["?batch_size=many", "?batch_size=-1", "?batch_size=" + "9" * 4000, "?tab", "", "x"])
def test_what_is_no_value_leaves_the_default(text: str) -> None:
    assert field_values(NAMES, DEFAULTS, read_link(text)[1]) == DEFAULTS


def test_the_script_names_the_fields_and_no_upload() -> None:
    script = link_script("compare", ["model", "", "other"])
    assert "['model', '', 'other']" in script
    assert "tab: 'compare'" in script
    assert "TAB" not in script
