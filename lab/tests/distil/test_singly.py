"""Networks that are fitted one after the other: each is kept, learns from its own samples, and answers for the rest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, folds_of
from foretell.predictors.unit.fit_network import NetworkFit, fit_networks
from foretell.predictors.unit.network import UnitNetwork
from foretell.predictors.unit.rows import UnitRows
from foretell.training.cross_fits import ALL_DATA, cross_fits
from foretell.training.examples import samples as sample_files
from foretell.training.judging.protocol import groups_of
from lab.distil import elsewhere, singly
from tests.small.small_samples import small_samples

FIT = NetworkFit(width=16, blocks=1, bins=4, embedding=4, epochs=2, batch=8, dropout=0.0, bf16=True)
SPLIT = "architecture-0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("packed")
    samples = small_samples()
    sample_files._save(samples, folder / elsewhere.SAMPLES)
    folds = folds_of(groups_of(samples), Settings())
    kernels = np.zeros(len(UnitRows.of(samples).counts), np.int16)
    seen = {ALL_DATA: folds, SPLIT: np.where(folds == 3, -1, folds)}
    elsewhere._write(folder / elsewhere.FOLDS, classes=kernels, **seen)
    return folder


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("fitted")
    assert not singly.fit_missing(folder, out, FIT, ["fold-1"])
    assert [file.stem for file in (out / "networks").iterdir()] == ["fold-1"]
    assert not list(out.glob("*.npz"))
    kept = (out / "networks" / "fold-1.npz").stat().st_mtime_ns
    assert singly.fit_missing(folder, out, FIT)
    assert (out / "networks" / "fold-1.npz").stat().st_mtime_ns == kept
    return out


def test_the_network_of_a_split_answers_for_what_it_has_not_seen_and_those_of_folds_for_the_rest(
    folder: Path, out: Path
) -> None:
    samples, folds, _ = elsewhere.read_packed(folder)
    files = {name: out / f"{name}.npz" for name in (ALL_DATA, SPLIT)}
    fits = cross_fits(samples, folds, Settings(), files)
    of_row = folds[ALL_DATA][UnitRows.of(samples).owner]
    for fold in range(4):
        network = UnitNetwork.load((out / "networks" / f"fold-{fold}.npz").read_bytes())
        said = singly.told(network, samples).log_ratio[of_row == fold]
        assert fits[ALL_DATA].predictions.log_ratio[of_row == fold] == pytest.approx(said, abs=1e-4)
        if fold < 3:
            assert fits[SPLIT].predictions.log_ratio[of_row == fold] == pytest.approx(said, abs=1e-4)
    network = UnitNetwork.load((out / "networks" / f"{SPLIT}.npz").read_bytes())
    said = singly.told(network, samples).log_ratio[of_row == 3]
    assert fits[SPLIT].predictions.log_ratio[of_row == 3] == pytest.approx(said, abs=1e-4)


def test_a_network_learns_nothing_of_what_it_is_asked_about(folder: Path) -> None:
    samples, folds, classes = elsewhere.read_packed(folder)
    part = next(part for part in singly.parts_of(folds) if part.name == "fold-2")
    assert not (part.learns & part.asked).any()
    assert (part.learns | part.asked).all()

    def lied(sample: Sample) -> Sample:
        return replace(sample, truth={**sample.truth, "latency_ms": sample.truth["latency_ms"] / 1e4})

    others = [lied(sample) if asked else sample for sample, asked in zip(samples, part.asked, strict=True)]
    one, other = (singly.fit_part(some, classes, part, FIT).to_bytes() for some in (samples, others))
    assert one == other
    assert singly.fit_part([lied(sample) for sample in samples], classes, part, FIT).to_bytes() != one


def test_the_error_is_that_of_sums_over_units() -> None:
    samples = [sample for sample in small_samples() if sample.captured][:5]
    rows = UnitRows.of(samples)
    said = singly.told(_fitted(rows), samples)
    sums = np.add.reduceat(np.exp(said.log_ratio) * rows.bound_us * rows.counts, rows.starts[:-1])
    assert singly.latency_error(said, samples) == pytest.approx(np.abs(sums / rows.latency_us - 1).mean())


def _fitted(rows: UnitRows) -> UnitNetwork:
    return fit_networks(rows, np.ones((1, len(rows.starts) - 1), bool), replace(FIT, bf16=False)).network([0])
