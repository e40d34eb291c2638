"""Drift: equal measurements agree; slower ones, and ones that change with time, ask for new measurements."""

from pathlib import Path

import numpy as np
import pytest

import foretell
from foretell.errors import InputError
from foretell.workflows.adapting.check import check, runs_score


def slower(table: Path, factor: float) -> Path:
    lines = table.read_text().splitlines()
    rows = [line.rpartition(",") for line in lines[1:]]
    file = table.with_name("new.csv")
    file.write_text("\n".join([lines[0], *(f"{head},{float(value) * factor}" for head, _, value in rows)]))
    return file


def test_the_same_measurements_are_no_drift(table: Path) -> None:
    foretell.adapt("p4", table)
    found = check("p4", table)
    assert not found.measure_again
    assert found.shift == pytest.approx(1.0, abs=0.1)


def test_a_slower_device_is_measured_again(table: Path) -> None:
    foretell.adapt("p4", table)
    found = check("p4", slower(table, 1.5))
    assert found.measure_again
    assert "slower than when it was measured" in found.reason
    assert len(found.to_dict()["rows"]) == 6


def test_a_single_measurement_outside_of_its_interval_shows_nothing(table: Path) -> None:
    foretell.adapt("p4", table)
    lines = slower(table, 2.0).read_text().splitlines()
    few = table.with_name("one.csv")
    few.write_text("\n".join(lines[:2]))
    for factor in np.geomspace(2.0, 1.05, 40):
        found = check("p4", slower(few, factor / 2.0))
        if not found.measure_again:
            break
    assert found.interval_share == 0.0, "a shift that is no proof, and lies outside of the interval"
    assert found.heading() == "p4: no drift shown"
    assert "too little to tell" in found.reason


def test_without_a_predictor_there_is_nothing_to_check(table: Path) -> None:
    with pytest.raises(InputError, match=r"no adapted predictor of p4 .*run foretell adapt"):
        check("p4", table)


def test_runs() -> None:
    assert runs_score(np.array([1.0, -1.0] * 8)) < 0
    assert runs_score(np.array([1.0] * 8 + [-1.0] * 8)) > 3
    assert runs_score(np.ones(9)) is None
