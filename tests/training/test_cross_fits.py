"""Networks for many splits at once, kept and not fitted again."""

from pathlib import Path

import numpy as np
import pytest

from foretell.predictors.unit.fit_model import folds_of
from small.small_samples import QUICK, architectures, small_samples

pytest.importorskip("torch")

from dataclasses import replace

from foretell.training import cross_fits as workflow

SETTINGS = replace(QUICK, network=replace(QUICK.network, epochs=2))


def test_what_is_kept_is_not_fitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = small_samples()
    folds = folds_of(architectures(samples), SETTINGS)
    held_out = np.where(folds == 0, -1, folds)
    fold_sets = {"all": folds, "part": held_out}
    files = {name: tmp_path / "kept" / f"{name}.npz" for name in fold_sets}
    messages: list[str] = []
    first = workflow.cross_fits(samples, fold_sets, SETTINGS, files, messages.append)
    assert len([line for line in messages if line.startswith("networks on units for")]) == 2
    assert all(file.exists() for file in files.values())

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(workflow, "cross_fit_networks", never)
    again = workflow.cross_fits(samples, fold_sets, SETTINGS, files)
    for name in fold_sets:
        np.testing.assert_allclose(again[name].predictions.log_ratio, first[name].predictions.log_ratio, rtol=1e-6)
        np.testing.assert_allclose(again[name].predictions.power_w, first[name].predictions.power_w, rtol=1e-6)
        assert again[name].network == first[name].network
    assert np.abs(first["all"].predictions.log_ratio - first["part"].predictions.log_ratio).max() > 0
