"""Plug-ins are found by name, and a wrong name is answered with the right one."""

import sys

import pytest

from foretell.errors import UnknownNameError
from foretell.registry import Registry, did_you_mean


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    sys.modules.pop("colorsys", None)
    registry = Registry("plug-in", {"colour": "colorsys:rgb_to_hsv"})
    assert "colour" in registry
    assert list(registry) == ["colour"]
    assert "colorsys" not in sys.modules
    assert registry.load("colour").__module__ == "colorsys"


def test_wrong_names() -> None:
    registry = Registry("plug-in", {"colour": "colorsys:rgb_to_hsv", "json": "json:loads"})
    with pytest.raises(UnknownNameError, match=r"Unknown plug-in 'color'\. Did you mean 'colour'\?"):
        registry.load("color")
    with pytest.raises(UnknownNameError, match=r"Choose from: colour, json\."):
        registry.load("zzz")
    assert registry.targets["json"] == "json:loads"


def test_many_choices_are_not_listed() -> None:
    assert did_you_mean("zzz", (f"name{i}" for i in range(50))) == ""
    assert did_you_mean("zzz", ()) == ""
    assert did_you_mean("name1x", (f"name{i}" for i in range(50))) == " Did you mean 'name1'?"
