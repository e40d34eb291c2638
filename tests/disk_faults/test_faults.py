"""Faults of the disk, a sample of those that ``benchmarks/faults.py`` lets happen."""

import os
from pathlib import Path

import pytest

from disk_faults.run_faults import count_changes, run_fault
from disk_faults.scenarios import SCENARIOS, Scenario
from disk_faults.shim import CUT, KINDS, Disk, failing, in_child

pytest.importorskip("duckdb")
PLACES = (0.3, 0.6, 0.85, 1.0)  # one for each kind; the next scenario begins with another


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_doubled_or_shortened(scenario: Scenario, tmp_path: Path) -> None:
    changes = count_changes(scenario, tmp_path / "count")
    turn = SCENARIOS.index(scenario)
    for number, kind in enumerate(KINDS):
        point = max(1, round(changes * PLACES[(number + turn) % len(PLACES)]))
        outcome = run_fault(scenario, tmp_path / "fault", kind, point)
        assert outcome.is_good, outcome


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_fails_at_its_point(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def work() -> str:
        with failing(Disk(2, kind)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(handle, b"12345678")
        return "passed"

    code, answer = in_child(work)
    assert (code, path.read_bytes()) == {
        "cut": (-9, b"1234"), "refused": (1, b"1234"), "full": (1, b"1234"), "killed": (-9, b"12345678"),
    }[kind]  # fmt: skip
    assert (answer is None) == (code == -9)


def test_a_loss_is_counted(tmp_path: Path) -> None:
    """A writer that believes itself before the disk does."""

    def act(folder: Path, safe) -> None:
        safe("a")
        handle = os.open(folder / "a", os.O_WRONLY | os.O_CREAT)
        os.write(handle, b"whole")
        os.close(handle)

    def found(folder: Path) -> dict[str, int]:
        return {path.name: 1 for path in folder.iterdir() if path.read_bytes() == b"whole"}

    scenario = Scenario("careless", lambda folder: folder.mkdir(), act, found, ("a",))
    outcome = run_fault(scenario, tmp_path / "fault", CUT, 2)
    assert outcome.lost == 1
    assert not outcome.is_good
