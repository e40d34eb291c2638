"""Random and damaged models end with an answer or with an error of ours; whatever once did not is replayed."""

import ctypes
import faulthandler
import os
import time
from pathlib import Path

import pytest

from foretell.processes.confine import confined
from foretell.processes.parent import resident_bytes
from fuzz.inputs import MAKERS, make_input
from fuzz.runs import CORPUS, SHAPES, Tally, keep, run_here, run_one, run_pool
from fuzz.whole_path import ALL, Choice, follow

COUNTS = {"onnx": 300, "pt2": 120, "torchscript": 60, "config": 12, "graph": 120}
NEEDS = {"torchscript": "torch", "config": "transformers"}
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the readers work in this process: a cage would turn a foreign error into one of ours."""
    monkeypatch.setattr("foretell.frontends.caged.confined", lambda: frozenset({"limits"}))


def _skip_without(reader: str) -> None:
    if reader in NEEDS:
        pytest.importorskip("torch")
        pytest.importorskip(NEEDS[reader])


@pytest.mark.parametrize("reader", list(MAKERS))
@pytest.mark.parametrize("part", range(2))
def test_every_input_ends_as_it_should(reader: str, part: int) -> None:
    _skip_without(reader)
    half = COUNTS[reader] // 2
    tally = run_here(reader, 0, range(part * half, (part + 1) * half))
    assert tally.failures == {}
    assert tally.count == half
    if reader in ("onnx", "pt2", "graph"):
        assert tally.ends["answered"] > half // 10, (
            "too few inputs are answered: the rules of what follows are not seen"
        )


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda p: p.name)
def test_what_once_fell(path: Path) -> None:
    reader = path.name.partition("-")[0]
    _skip_without(reader)
    for choice in ALL if reader in ("onnx", "pt2", "graph") else ALL[:1]:
        follow(path, choice, SHAPES.get(reader, ()))


def test_the_same_numbers_give_the_same_input() -> None:
    for reader in MAKERS:
        assert make_input(reader, 3, 4) == make_input(reader, 3, 4)
        assert make_input(reader, 3, 4) != make_input(reader, 3, 5)


def test_a_failure_is_seen_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("fuzz.runs.follow", fail)
    monkeypatch.setattr("fuzz.runs.CORPUS", tmp_path / "corpus")
    end = run_one("onnx", 0, 5, tmp_path)
    assert end.startswith("!ZeroDivisionError")
    tally = Tally()
    tally.add(5, end, 0.1)
    assert (tally.ends["failed"], list(tally.failures.values())) == (1, [5])
    path = keep("onnx", 0, next(iter(tally.failures)), 5)
    assert path.parent == tmp_path / "corpus"
    assert path.read_bytes() == make_input("onnx", 0, 5)[1]


def test_crashes_and_hangs_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [make_input("onnx", 0, number)[1] for number in range(6)]

    def follow_oddly(path: Path, choice: Choice, shapes: tuple[str, ...]) -> str:
        number = inputs.index(path.read_bytes())
        if number == 1:
            faulthandler.disable()
            ctypes.string_at(0)  # reads at address 0: SIGSEGV
        if number == 3:
            while True:
                pass
        if number == 4:
            time.sleep(600)
        return "answered"

    monkeypatch.setattr("fuzz.runs._import_all", lambda _: None)
    monkeypatch.setattr("fuzz.runs.follow", follow_oddly)
    monkeypatch.setattr("fuzz.runs.LIMIT_S", 1.0)
    monkeypatch.setattr("fuzz.runs.IDLE_LIMIT_S", 6.0)
    tally = run_pool("onnx", 0, 6, 600.0, 2)
    assert tally.ends == {"answered": 3, "failed": 3}
    assert tally.failures.pop("died of signal 11") == 1
    # a busy machine may not give a second of processor time within six
    assert sorted(tally.failures.values())[-1] == 4
    assert all(failure.startswith("took more than") for failure in tally.failures)


def test_only_the_input_that_ended_a_process_is_followed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    third = make_input("onnx", 0, 3)[1]

    def die_when_confined(path: Path, choice: Choice, shapes: tuple[str, ...]) -> str:
        if path.read_bytes() == third and confined():
            faulthandler.disable()
            ctypes.string_at(0)  # reads at address 0: SIGSEGV
        return "answered"

    monkeypatch.setattr("fuzz.runs._import_all", lambda _: None)
    monkeypatch.setattr("fuzz.runs.follow", die_when_confined)
    assert run_pool("onnx", 0, 7, 600.0, 2).ends == {"answered": 6, "in a cage: answered": 1}


def test_memory_is_judged_by_input(monkeypatch: pytest.MonkeyPatch) -> None:
    second = make_input("onnx", 0, 2)[1]

    def grow(path: Path, choice: Choice, shapes: tuple[str, ...]) -> str:
        if path.read_bytes() == second:
            bytearray(os.urandom(2**20) * 400)
        return "answered"

    monkeypatch.setattr("fuzz.runs._import_all", lambda _: None)
    monkeypatch.setattr("fuzz.runs.follow", grow)
    monkeypatch.setattr("fuzz.runs.MOST_GROWTH_BYTES", 2**27)
    monkeypatch.setattr("fuzz.runs.LIMIT_BYTES", resident_bytes() + 2**28)
    tally = run_pool("onnx", 0, 6, 600.0, 1)
    assert (tally.ends["answered"], tally.ends["failed"]) == (5, 1)
    assert list(tally.failures.values()) == [2]
