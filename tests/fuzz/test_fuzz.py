"""Random and damaged models end with an answer or with an error of ours; whatever once did not is replayed."""

from pathlib import Path

import pytest

from fuzz.inputs import MAKERS, make_input
from fuzz.runs import CORPUS, SHAPES, Tally, keep, run_here, run_one, run_pool
from fuzz.whole_path import ALL, Choice, follow

COUNTS = {"onnx": 300, "pt2": 120, "torchscript": 4, "config": 4}
NEEDS = {"torchscript": "torch", "config": "transformers"}
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


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
    if reader in ("onnx", "pt2"):
        assert tally.ends["answered"] > half // 10, (
            "too few inputs are answered: the rules of what follows are not seen"
        )


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*")), ids=lambda p: p.name)
def test_what_once_fell(path: Path) -> None:
    reader = path.name.partition("-")[0]
    _skip_without(reader)
    for choice in ALL if reader in ("onnx", "pt2") else ALL[:1]:
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
    def follow_oddly(path: Path, choice: Choice, shapes: tuple[str, ...]) -> str:
        import os
        import signal
        import time

        if path.stat().st_size % 3 == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        if path.stat().st_size % 3 == 1:
            time.sleep(60)
        return "answered"

    monkeypatch.setattr("fuzz.runs._import_all", lambda _: None)
    monkeypatch.setattr("fuzz.runs.follow", follow_oddly)
    monkeypatch.setattr("fuzz.runs.LIMIT_S", 0.5)
    tally = run_pool("onnx", 0, 6, 600.0, 2)
    sizes = [len(make_input("onnx", 0, n)[1]) % 3 for n in range(6)]
    assert tally.count == 6
    assert tally.ends["failed"] == sum(s < 2 for s in sizes)
    assert ("died of signal 11" in tally.failures) == (0 in sizes)
    assert any("took more" in f for f in tally.failures) == (1 in sizes)
