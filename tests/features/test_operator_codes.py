"""The codes of operators: an operator keeps its code for ever, because fitted predictors know it by that number."""

import hashlib

from foretell.features import SCHEMA
from foretell.features.operator_codes import CODED, FIRST_CODED, UNKNOWN_CODE, operator_code
from foretell.graph.ir.operators import OPERATORS
from foretell.predictors.fusion.edges import EDGE_SCHEMA
from foretell.predictors.unit.model import _UNKNOWN_OPERATOR

# how many names, and their digest: after adding operators, add a line and change none
PINNED = {267: "6e9db8c45d7642bc"}


def digest(count: int) -> str:
    return hashlib.sha256(" ".join(CODED[:count]).encode()).hexdigest()[:16]


def test_no_code_ever_changes() -> None:
    assert {count: digest(count) for count in PINNED} == PINNED
    newest = f"{len(CODED)}: {digest(len(CODED))!r}"
    assert len(CODED) in PINNED, f"The names at the end have no pin: add {newest} to PINNED."


def test_every_operator_has_one_code() -> None:
    missing = sorted(set(OPERATORS) - set(CODED))
    assert not missing, f"Append to CODED in features/operator_codes.py: {missing}"
    assert len(set(CODED)) == len(CODED)
    assert [operator_code(name) for name in CODED] == list(range(len(CODED)))
    assert operator_code("NoSuchThing") == UNKNOWN_CODE == -1


def test_there_is_room_for_more() -> None:
    assert len(CODED) < _UNKNOWN_OPERATOR


def test_the_schemas_of_the_shipped_fits_do_not_grow_with_the_list() -> None:
    assert len(FIRST_CODED) == min(PINNED)
    assert (SCHEMA, EDGE_SCHEMA) == ("f6ef6a66b1f852b3", "3afae4bada56ee74")
