"""LILOU's analyser: units, their sums and their kernels, by networks that have not seen the architecture."""

from dataclasses import replace
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
    BEST,
    BY_KERNEL,
    FIT_VERSION,
    LILOU,
    LINEAR,
    OURS,
    bound_us,
    described,
    evaluate,
    latency_tables,
    linear_ms,
    places_of,
    teaching_sums,
    write_report,
)
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.folds import plan_folds
from lab.papers.lilou.input_sizes import networks_ms
from lab.papers.lilou.sets import load_units, prepare_units, summed_samples
from lab.papers.lilou.subgraph_network import NODES, SHAPES, SubgraphFit
from small.small_samples import small_samples
from small.small_store import WIDTHS, write_store, write_table

GAT = Gat(width=16, layers=2, direction="mutual")
FITS = {LILOU: SubgraphFit(GAT, Schedule(rate=1e-2, batch=16, epochs=4))}
OTHER = SubgraphFit(replace(GAT, published=False), Schedule(rate=1e-2, batch=16, epochs=30), known=SHAPES, sums=4)


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
    units, overall, by_family, by_kind, by_time, classes, fits = report_tables
    for parts in (by_kind, by_time):
        assert sum(row["share"] for row in parts.rows.values()) == pytest.approx(1.0)
        assert sum(row["count"] for row in parts.rows.values()) == int(units.title.split()[1].replace(",", ""))
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
    units, overall, _, _, _, classes, _ = evaluate(store, "h200", cache, fits=FITS)
    assert units.rows[OURS]["mape"] == pytest.approx(0.0, abs=1e-6)
    assert overall.rows[OURS]["mape"] < 0.2
    assert classes.rows["ours"]["at once"] == 0.25


def test_a_line_is_fitted_to_other_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [sample for sample in small_samples() if sample.captured]
    monkeypatch.setattr(lilou_analyser, "fold_of", lambda spec: len(spec) % 2)
    predicted = linear_ms(samples)[LINEAR]
    assert predicted.shape == (len(samples),)
    assert (predicted > 0).all()


def test_a_network_without_all_folds_is_judged_on_those_that_it_has(store: Path, cache: Path) -> None:
    fits = {**FITS, BEST: OTHER}
    evaluate(store, "h200", cache, only_networks=True, fits=fits)
    prepared = prepare_units(store, "h200", cache)
    loaded, planned = load_units(prepared), plan_folds(prepared, fits, FIT_VERSION, 5)
    last = next(fit for fit in planned if fit.name == LILOU and fit.fold == loaded.summed_fold[0])
    kept = last.file.read_bytes()
    last.file.unlink()
    found = evaluate(store, "h200", cache, fits=fits)
    last.file.write_bytes(kept)
    ends = {table.title.split(":")[0]: table for table in found if "End to end:" in table.title}
    (partial,) = [table for title, table in ends.items() if title.startswith("Of fold")]
    assert LILOU not in ends["End to end"].rows
    assert {LILOU, BEST} <= set(partial.rows)
    assert f"{last.fold + 1}" not in next(title for title in ends if title.startswith("Of fold")).split()[2:]
    # told what its labels lack, and the sums, it does better
    assert partial.rows[BEST]["mape"] < partial.rows[LILOU]["mape"]
    kernels = next(table for table in found if table.title.startswith("Kernels"))
    assert BEST not in kernels.rows


def test_what_a_network_knows_of_a_unit(store: Path, cache: Path) -> None:
    loaded = load_units(prepare_units(store, "h200", cache))
    samples = summed_samples(read_samples(store, "h200", cache))
    plain, shaped = described(loaded, NODES), described(loaded, SHAPES)
    assert (plain.base_us == 1.0).all()
    traced = len(loaded.rows)
    assert np.allclose(shaped.base_us[traced:], np.concatenate([one.units.bound_us for one in samples]), rtol=1e-4)
    assert np.allclose(bound_us(loaded.shapes)[loaded.summed_shape], shaped.base_us[traced:])
    taught, chosen = teaching_sums(loaded, int(loaded.summed_fold[0]))
    others = loaded.summed_fold != loaded.summed_fold[0]
    assert len(taught) == (others & ~loaded.summed_checked).sum()
    assert len(chosen) == (others & loaded.summed_checked).sum() or chosen is taught
    assert taught.members.min() >= traced


def test_saved_networks_are_judged_by_the_size_of_the_input(
    store: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.papers.lilou.input_sizes.FITS", FITS)
    samples = summed_samples(read_samples(store, "h200", cache))
    found = networks_ms(store, cache, [samples[3].workload_id, "unknown"])
    _, overall, *_ = evaluate(store, "h200", cache, fits=FITS)
    every = networks_ms(store, cache, [sample.workload_id for sample in samples])[LILOU]
    truth_ms = np.array([sample.truth["latency_ms"] for sample in samples])
    assert found[LILOU][0] == pytest.approx(every[3])
    assert np.isnan(found[LILOU][1])
    assert np.abs(every / truth_ms - 1).mean() == pytest.approx(overall.rows[LILOU]["mape"], rel=1e-3)
