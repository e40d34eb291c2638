"""The examples in docstrings, run module by module.

Pytest's own ``--doctest-modules`` passes over test files that cannot be imported: they would be lost without a word.
"""

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"


def with_examples() -> list[str]:
    files = (path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8"))
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in files]


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("foretell"):
            raise
        pytest.skip(f"needs {error.name}")
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples() -> None:
    assert len(with_examples()) > 40
