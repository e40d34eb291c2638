"""Folds are fitted one by one or side by side; what fails is named, what ends is kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.errors import DataError
from lab.papers.lilou.folds import (
    Log,
    PlannedFit,
    complete,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    plan_folds,
    read_predictions,
)


def fit(prepared: Path, settings: Any, fold: int, seconds: float | None, log: Log) -> tuple[Any, Mapping[str, float]]:
    """No network: its settings times the fold; the third fails as an accelerator without memory does."""
    if fold == 2:
        raise RuntimeError("CUDA out of\nmemory")
    log(f"fitting {fold}")
    return {"told": np.full(3, settings * fold)}, {"epochs": fold + 1, "seconds": seconds or 0.0}


@pytest.mark.parametrize("processes", [1, 2])
def test_one_that_fails_does_not_cost_the_others(processes: int, tmp_path: Path) -> None:
    prepared = tmp_path / "lilou-edges-0123.npz"
    planned = plan_folds(prepared, {"a": 10}, 1, 4)
    lines: list[str] = []
    with pytest.raises(DataError, match=r"1 of 4 fits failed, the first with: a, fold 3: CUDA out of memory"):
        fit_folds(planned, fit, prepared, 7.0, processes, lines.append)
    assert [planned_fit.file.exists() for planned_fit in planned] == [True, True, False, True]
    assert any("fold 4: epochs 4, seconds 7" in line for line in lines)
    predictions, facts = read_predictions(planned[3].file)
    assert predictions["told"].tolist() == [30, 30, 30]
    assert facts == {"epochs": 4, "seconds": 7.0}
    lines.clear()
    with pytest.raises(DataError, match="1 of 1 fits failed"):  # what is kept is not fitted again
        fit_folds(planned, fit, prepared, 7.0, 1, lines.append)
    assert fit_table([planned[0], planned[3]]).rows["a"] == {"epochs": 2.5, "seconds": 7.0}


def test_files_are_named_by_what_they_depend_on(tmp_path: Path) -> None:
    def folders(name: str, fits: Mapping[str, object], version: int = 1) -> set[Path]:
        return {planned_fit.file.parent for planned_fit in plan_folds(tmp_path / name, fits, version, 2)}

    first = folders("lilou-edges-1.npz", {"a": 1, "b": 1})
    assert len(first) == 2
    assert all(folder.name.startswith("lilou-edges-folds-") for folder in first)
    assert not first & folders("lilou-edges-2.npz", {"a": 1, "b": 1})
    assert not first & folders("lilou-edges-1.npz", {"a": 2})
    assert not first & folders("lilou-edges-1.npz", {"a": 1}, version=2)


def test_a_fold_is_apart_from_what_teaches_and_what_chooses() -> None:
    fold, checked = np.array([0, 0, 1, 1, 2]), np.array([True, False, True, False, False])
    taught, chooses, held_out = parts_of(fold, checked, 0)
    assert (taught.tolist(), chooses.tolist(), held_out.tolist()) == ([3, 4], [2], [0, 1])
    assert parts_of(fold, np.zeros(5, bool), 0)[1].tolist() == [2, 3, 4]
    with pytest.raises(DataError, match="nothing to learn from"):
        parts_of(np.zeros(3, np.int64), np.zeros(3, bool), 0)


def test_facts_name_the_best_epoch() -> None:
    facts = facts_of([{"score": 0.5, "seconds": 1.0}, {"score": 0.9, "seconds": 2.0}, {"score": 0.7, "seconds": 3.0}])
    assert facts == {"epochs": 3, "seconds": 3.0, "best": 0.9, "best_epoch": 2, "last_tenth": 0.0}


def test_a_network_that_lacks_a_fold_is_left_out_and_named(tmp_path: Path) -> None:
    planned = [
        PlannedFit(name, None, fold, tmp_path / f"{name}-{fold}.npz") for name in ("one", "two") for fold in (0, 1)
    ]
    for planned_fit in planned[:3]:
        planned_fit.file.touch()
    messages: list[str] = []
    assert complete(planned, messages.append) == planned[:2]
    assert messages == ["two is left out: fold 2 is not fitted; --only-networks fits it"]
