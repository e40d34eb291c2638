"""LILOU's analyser: units, their sums and their kernels, by networks that have not seen the architecture."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from foretell.errors import DataError
from foretell.training.examples.samples import read_samples
from lab.papers.lilou import analyser as lilou_analyser
from lab.papers.lilou.analyser import (
    BY_KERNEL,
    LILOU,
    LINEAR,
    OURS,
    evaluate,
    latency_tables,
    linear_ms,
    places_of,
    write_report,
)
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.sets import load_units, prepare_units, summed_samples
from lab.papers.lilou.subgraph_network import SubgraphFit
from small.small_samples import small_samples
from small.small_store import WIDTHS, write_store, write_table

FITS = {LILOU: SubgraphFit(Gat(width=16, layers=2, direction="mutual"), Schedule(rate=1e-2, batch=16, epochs=4))}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_store(tmp_path_factory.mktemp("store"), WIDTHS[:4])
    write_table(folder / "one", "kernel_names", [{"name_id": 1, "name": "splitKreduce_kernel"}])
    return folder


@pytest.fixture(scope="module")
def cache(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    assert evaluate(store, "h200", folder, only_networks=True, fits=FITS) == []
    return folder


def test_networks_are_kept_and_judged_elsewhere(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lilou_analyser, "fit_subgraph_network", lambda *_: pytest.fail("fitted again"))
    lines: list[str] = []
    report_tables = evaluate(store, "NVIDIA H200", cache, fits=FITS, log=lines.append)
    assert [line.partition(":")[0] for line in lines if "forest" not in line] == [
        f"not compared with {OURS}",
        "not compared with kernel-classes",
    ]
    units, overall, by_family, classes, fits = report_tables
    assert units.rows[LILOU]["mape"] > 0
    assert overall.title == "End to end: 24 workloads of inference"
    assert set(overall.rows) == {LILOU, BY_KERNEL, "roofline"}  # a line through so few workloads tells nothing
    assert 0 < overall.rows[BY_KERNEL]["mape"] < overall.rows["roofline"]["mape"]
    assert overall.rows[LILOU]["rmspe"] >= overall.rows[LILOU]["mape"]
    assert sum(row["count"] for row in by_family.rows.values()) == 24
    assert classes.rows[LILOU]["at once"] == 1.0  # there is one kernel only
    assert fits.rows[LILOU]["epochs"] == 4
    assert "each is one node" in write_report(report_tables, tmp_path).read_text(encoding="utf-8")


def test_sums_are_over_units_and_errors_by_their_number(store: Path, cache: Path) -> None:
    samples = summed_samples(read_samples(store, "h200", cache))
    twice = np.concatenate([2 * sample.units.bound_us for sample in samples])  # as long as each unit took
    units, overall, _ = latency_tables(samples, {LILOU: twice, "half": twice / 2})
    assert units.rows[LILOU]["mape"] == pytest.approx(0.0, abs=1e-6)
    assert units.rows["half"] == pytest.approx({"mape": 0.5, "by time": 0.5}, abs=1e-6)
    assert overall.rows[LILOU]["mape"] < 0.2 < overall.rows["half"]["mape"]


def test_workloads_are_found_whatever_their_order(store: Path, cache: Path) -> None:
    loaded = load_units(prepare_units(store, "h200", cache))
    samples = read_samples(store, "h200", cache)
    assert [samples[::-1][place].workload_id for place in places_of(loaded, samples[::-1])] == loaded.ids.tolist()
    with pytest.raises(DataError, match="has changed since"):
        places_of(loaded, samples[1:])


def test_foretells_own_networks_are_compared_where_they_are_kept(
    store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = read_samples(store, "h200", cache)
    bounds = np.concatenate([sample.units.bound_us for sample in everything])
    monkeypatch.setattr(lilou_analyser, "unit_network_us", lambda *_: 2 * bounds)
    monkeypatch.setattr(lilou_analyser, "our_classes", lambda *_: {"ours": {"at once": 0.25}})
    units, overall, _, classes, _ = evaluate(store, "h200", cache, fits=FITS)
    assert units.rows[OURS]["mape"] == pytest.approx(0.0, abs=1e-6)
    assert overall.rows[OURS]["mape"] < 0.2
    assert classes.rows["ours"]["at once"] == 0.25


def test_a_line_is_fitted_to_other_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [sample for sample in small_samples() if sample.captured]
    monkeypatch.setattr(lilou_analyser, "fold_of", lambda spec: len(spec) % 2)
    predicted = linear_ms(samples)[LINEAR]
    assert predicted.shape == (len(samples),)
    assert (predicted > 0).all()
