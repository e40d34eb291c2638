"""The examples in the laboratory's docstrings, run module by module, as the product's are."""

import doctest
import importlib
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1]


def with_examples() -> list[str]:
    files = (path.relative_to(LAB.parent) for path in sorted(LAB.rglob("*.py")) if ">>> " in path.read_text("utf-8"))
    return [".".join(path.with_suffix("").parts) for path in files if "tests" not in path.parts]


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
