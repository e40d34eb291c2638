"""The decorator of `foretell.frozen` against the standard one: the same class, twice."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from foretell import frozen


class Fields:
    """Fields of all kinds that records have."""

    KNOWN: ClassVar[int] = 3
    a: int
    b: float = 1.5
    c: Mapping[str, int] = field(default_factory=dict, hash=False)
    d: str = field(default="x", compare=False)
    e: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")

    @property
    def doubled(self) -> int:
        return 2 * self.a


def a_class(decorator: Any, name: str, **options: Any) -> Any:
    body = {key: value for key, value in vars(Fields).items() if key not in ("__dict__", "__weakref__")}
    return decorator(frozen=True, **options)(type(name, (), {**body, "__module__": __name__, "__qualname__": name}))


Ours, Theirs = a_class(frozen.dataclass, "Ours"), a_class(dataclass, "Theirs")
OursSlotted = a_class(frozen.dataclass, "OursSlotted", slots=True)
TheirsSlotted = a_class(dataclass, "TheirsSlotted", slots=True)
PAIRS = [(Ours, Theirs), (OursSlotted, TheirsSlotted)]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}), ((1,), {"b": 2.0}), ((1, 2.0, {"k": 1}), {}), ((1,), {"d": "other"}), ((1,), {"e": (1, 2)}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_instances_are_equal_hash_and_show_as_those_of_the_standard_decorator(ours: Any, theirs: Any) -> None:
    mine, others = [[made(*a, **k) for a, k in CALLS] for made in (ours, theirs)]
    for one, other in zip(mine, others, strict=True):
        assert repr(one) == repr(other).replace("Theirs", "Ours")
        assert hash(one) == hash(other)
        assert (asdict(one), astuple(one)) == (asdict(other), astuple(other))
        assert replace(one, a=7).doubled == 14
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one
    assert [[x == y for y in mine] for x in mine] == [[x == y for y in others] for x in others]
    assert mine[0] != others[0]
    assert mine[0].c is not mine[1].c
    assert ours.__match_args__ == theirs.__match_args__
    assert [(f.name, f.type, f.default) for f in fields(ours)] == [(f.name, f.type, f.default) for f in fields(theirs)]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert hasattr(mine[0], "__dict__") == hasattr(others[0], "__dict__")
    for made in (ours, theirs):
        with pytest.raises(ValueError, match="negative"):
            made(-1)
        with pytest.raises(TypeError):
            made()
        with pytest.raises(TypeError):
            made(1, unknown=2)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("name", ["a", "e", "new"])
def test_nothing_can_be_assigned_or_deleted(ours: Any, theirs: Any, name: str) -> None:
    for made in (ours, theirs):
        one = made(1)
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(one, name, 2)
        with pytest.raises((FrozenInstanceError, TypeError)):
            delattr(one, name)


def test_what_a_class_defines_itself_stays() -> None:
    @frozen.dataclass(frozen=True)
    class Own:
        """A record with methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

        @cached_property
        def later(self) -> int:
            return self.a + 1

    assert Own(1) == Own(2)
    assert (hash(Own(1)), repr(Own(1)), Own(1).later) == (5, "own", 2)
    assert Own.__init__.__qualname__.endswith("Own.__init__")


def test_records_are_inherited_by_frozen_ones_only() -> None:
    @dataclass(frozen=True)
    class Child(Ours):  # type: ignore[misc, valid-type]
        """A child that the standard decorator makes."""

        f: int = 0

    @frozen.dataclass(frozen=True)
    class Grandchild(Child):  # type: ignore[misc, valid-type]
        """A child of it, by ours."""

        g: int = 0

    assert repr(Grandchild(1, f=2, g=3)).endswith("Grandchild(a=1, b=1.5, c={}, d='x', f=2, g=3)")
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Open", (Ours,), {"__annotations__": {"h": int}}))
    with pytest.raises(TypeError, match="frozen"):
        frozen.dataclass(frozen=False)
    assert dataclasses.is_dataclass(Grandchild)
