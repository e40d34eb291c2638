"""The script that spoils modules: its mutants differ in one place, can be read, and leave alone what cannot matter."""

import ast
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "mutate"

MODULE = '''"""A module of 3 lines."""

from dataclasses import dataclass

__all__ = ["between"]
Pair = tuple[int, 2]


@dataclass(frozen=True)
class Box:
    """Holds 1 thing."""

    size: int = 7


def between(value: "int | 5", low: int, *others: int) -> bool:
    """Whether it lies between 2 others."""
    if value < low:
        raise ValueError(f"{value + 1} is below {low - 1}")
    most = max(others, default=9)
    return low <= value <= most and value in ("é", 3)
'''


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    loader = SourceFileLoader("mutate_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def test_each_mutant_differs_in_one_line_that_can_be_named(mutate: ModuleType) -> None:
    mutants = mutate.mutants_of("some.py", MODULE)
    before = MODULE.splitlines()
    for mutant in mutants:
        after = mutant.new.splitlines()
        changed = [number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new]
        assert changed == [mutant.line]
        assert after[mutant.line - 1].strip() in mutant.diff()
        ast.parse(mutant.new)
    assert len({mutant.new for mutant in mutants}) == len(mutants)
    assert mutants == mutate.mutants_of("some.py", MODULE)


def test_the_usual_changes_are_made_and_words_are_left_alone(mutate: ModuleType) -> None:
    made = {mutant.new.splitlines()[mutant.line - 1].strip() for mutant in mutate.mutants_of("some.py", MODULE)}
    assert made >= {
        "if (value <= low):",
        "if (value >= low):",
        "most = min(others, default=9)",
        "most = max(others)",
        "most = max(others, default=10)",
        "return None",
        "return (low <= value <= most or value in ('é', 3))",
        "return low <= value <= most and (value in ('é',))",
        'return (low < value <= most) and value in ("é", 3)',
    }
    lines = {mutant.line for mutant in mutate.mutants_of("some.py", MODULE)}
    untouched = {number for number, line in enumerate(MODULE.splitlines(), 1) if line.strip() and number not in lines}
    assert {1, 3, 5, 6, 9, 10, 11, 13, 16, 17, 19} <= untouched


def test_every_module_of_the_table_has_its_tests(mutate: ModuleType) -> None:
    for module, (mirror, room) in mutate.MODULES.items():
        assert (ROOT / mutate.SOURCE / module).is_file()
        assert (ROOT / mutate.TESTS / mirror).is_file()
        assert (ROOT / mutate.TESTS / room).is_dir()
        assert mirror.startswith(f"{room}/")
