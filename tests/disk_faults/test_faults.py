"""Faults of the disk, a sample of those that ``benchmarks/faults.py`` lets happen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disk_faults.run_faults import Outcome, run_fault
from disk_faults.scenarios import SCENARIOS, Scenario
from disk_faults.shim import CUT, KINDS, Disk, failing, in_child

pytest.importorskip("duckdb")
TESTS = Path(__file__).parents[1]


def test_nothing_is_lost_doubled_or_shortened(tmp_path: Path) -> None:
    """In a small process: a fork of this one, with all that tests import, takes longer than what is tested."""
    command = [sys.executable, "-W", "error", "-m", "disk_faults.run_faults", str(tmp_path)]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = [Outcome(**values) for values in json.loads(done.stdout)]
    assert [(one.scenario, one.kind) for one in outcomes] == [(one.name, kind) for one in SCENARIOS for kind in KINDS]
    assert [one for one in outcomes if not one.is_good] == []


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
