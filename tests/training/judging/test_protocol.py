"""One predictor, one split, one seed: nobody is judged by what they learned from, and nothing is done twice."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.errors import DataError
from foretell.predictors.sample import Sample
from foretell.training.judging import MeanSpread
from foretell.training.judging.protocol import (
    METRICS,
    Predicted,
    Run,
    SamplePredictor,
    compare,
    groups_of,
    judge,
    run_once,
    sides,
)
from small.small_samples import sample_of, small_samples, workload

SEEDS = range(8)


def measured(count: int = 12, mode: str = "inference") -> list[Sample]:
    sample = sample_of(workload(8, 2, "fp32", mode), "tiny:w8")
    return [replace(sample, truth={**sample.truth, "latency_ms": 1.0 + number}) for number in range(count)]


def off_by(samples: Sequence[Sample], factor: float) -> dict[str, np.ndarray]:
    return {"latency_ms": np.array([sample.truth["latency_ms"] for sample in samples]) * factor}


class Counting:
    """A fitter that is a tenth off, and knows how often it was asked and with what."""

    def __init__(self) -> None:
        self.seen: list[tuple[set[str], set[str], int]] = []

    def __call__(self, train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
        self.seen.append(({s.workload_id for s in train}, {s.workload_id for s in validation}, seed))

        def answer(test: Sequence[Sample]) -> Predicted:
            return off_by(test, 1.1)

        return answer


@pytest.mark.parametrize("split", ["architecture", "family", "random"])
def test_no_group_is_on_two_sides(split: str) -> None:
    group = {
        "architecture": lambda s: groups_of([s])[0],
        "family": lambda s: s.family,
        "random": lambda s: s.workload_id,
    }
    filled = set()
    for seed in SEEDS:
        parts = sides(small_samples(), split, seed)
        owners: dict[str, set[str]] = {}
        for side, part in parts.items():
            filled |= {side} if part else set()
            for sample in part:
                owners.setdefault(group[split](sample), set()).add(side)
        assert all(len(owner_sides) == 1 for owner_sides in owners.values())
    assert filled == {TRAIN, VALIDATION, TEST}, "some seed must fill every side, or nothing is shown"


def test_all_that_was_measured_is_on_some_side_and_benches_only_teach() -> None:
    benches = {sample.workload_id for sample in small_samples() if not sample.captured}
    taught = set()
    for seed in SEEDS:
        parts = sides(small_samples(), "random", seed)
        on = {side: {sample.workload_id for sample in part} for side, part in parts.items()}
        assert not (on[VALIDATION] | on[TEST]) & benches
        taught |= on[TRAIN] & benches
        assert on[TRAIN] | on[VALIDATION] | on[TEST] >= {s.workload_id for s in small_samples() if s.captured}
    assert taught == benches


def test_the_seed_decides_and_the_order_does_not() -> None:
    def test_side(samples: Sequence[Sample], seed: int) -> set[str]:
        return {sample.workload_id for sample in sides(samples, "architecture", seed)[TEST]}

    assert test_side(small_samples(), 3) == test_side(small_samples()[::-1], 3)
    assert len({frozenset(test_side(small_samples(), seed)) for seed in SEEDS}) > 3


def test_figures_are_over_all_and_by_mode_where_there_are_enough() -> None:
    test = [*measured(12), *measured(7, "training")]
    result = judge(test, off_by(test, 1.1))
    assert set(result) == {"latency_ms"}, "what nobody predicted is not judged"
    assert set(result["latency_ms"]) == {"all", "inference"}, "seven workloads are too few for a figure"
    assert result["latency_ms"]["all"]["count"] == 19
    assert result["latency_ms"]["inference"]["count"] == 12
    assert result["latency_ms"]["inference"]["mape"] == pytest.approx(0.1)
    assert set(judge(measured(8), off_by(measured(8), 1.0))["latency_ms"]) == {"all", "inference"}
    assert judge(measured(7), off_by(measured(7), 1.0)) == {}


def test_what_was_not_measured_does_not_judge() -> None:
    test = measured(12)
    test[0] = replace(test[0], truth={**test[0].truth, "latency_ms": math.nan})
    predicted = off_by(test, 2.0)
    predicted["latency_ms"][0] = 5.0
    assert judge(test, predicted)["latency_ms"]["all"]["count"] == 11
    assert judge(test, predicted)["latency_ms"]["all"]["mape"] == pytest.approx(1.0)


def test_a_predictor_that_answers_nan_is_not_let_through() -> None:
    with pytest.raises(DataError, match="NaN"):
        judge(measured(12), off_by(measured(12), math.nan))


def test_a_mode_that_a_predictor_is_not_made_for_does_not_judge_it() -> None:
    test = [*measured(12), *measured(9, "training"), *measured(3, "decode")]
    predicted = off_by(test, 1.1)
    predicted["latency_ms"][12:] = math.nan
    result = judge(test, predicted)["latency_ms"]
    assert set(result) == {"inference"}, "over all, others would be judged by more workloads"
    assert result["inference"]["count"] == 12
    assert result["inference"]["mape"] == pytest.approx(0.1)
    predicted["latency_ms_low"] = predicted["latency_ms"] * 0.5
    predicted["latency_ms_high"] = predicted["latency_ms"] * 2
    assert judge(test, predicted)["latency_ms"]["inference"]["coverage"] == 1.0


def test_a_nan_among_numbers_is_not_let_through() -> None:
    test = [*measured(12), *measured(9, "training")]
    predicted = off_by(test, 1.1)
    predicted["latency_ms"][3] = math.nan
    with pytest.raises(DataError, match="NaN"):
        judge(test, predicted)
    test[3] = replace(test[3], truth={**test[3].truth, "latency_ms": math.nan})
    assert judge(test, predicted)["latency_ms"]["all"]["count"] == 20, "it is of no account where nothing was measured"


def test_intervals_and_distances_are_judged_where_there_are_some() -> None:
    test = measured(10)
    predicted = off_by(test, 1.0)
    plain = judge(test, predicted)["latency_ms"]["all"]
    assert not {"coverage", "median_relative_width", "warned"} & set(plain)
    truth = predicted["latency_ms"]
    predicted |= {"latency_ms_low": truth * 0.9, "latency_ms_high": truth * 1.1}
    predicted["latency_ms_low"][:2] = truth[:2] * 1.05
    predicted["distance"] = np.array([2.0] * 3 + [0.5] * 7)
    result = judge(test, predicted)["latency_ms"]["all"]
    assert result["coverage"] == pytest.approx(0.8)
    assert result["median_relative_width"] == pytest.approx(0.2)
    assert result["warned"] == pytest.approx(0.3)


def test_a_run_learns_from_its_side_and_is_judged_by_another(tmp_path: Path) -> None:
    fitter = Counting()
    seed = next(seed for seed in range(50) if len(sides(small_samples(), "architecture", seed)[TEST]) >= 10)
    run = run_once("counting", fitter, small_samples(), "architecture", seed, tmp_path)
    parts = sides(small_samples(), "architecture", seed)
    (seen,) = fitter.seen
    assert seen == ({s.workload_id for s in parts[TRAIN]}, {s.workload_id for s in parts[VALIDATION]}, seed)
    assert run.sizes == {side: len(part) for side, part in parts.items()}
    assert run.figures["latency_ms"]["all"]["count"] == len(parts[TEST])
    assert run.figures["latency_ms"]["all"]["mape"] == pytest.approx(0.1)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    fitter, folder = Counting(), tmp_path / "runs"
    first = run_once("counting", fitter, small_samples(), "random", 0, folder)
    assert run_once("counting", fitter, small_samples(), "random", 0, folder) == first
    assert len(fitter.seen) == 1
    assert [path.name for path in folder.iterdir()] == ["counting-random-0.json"], "no partial file stays"
    for name, split, seed in (("other", "random", 0), ("counting", "family", 0), ("counting", "random", 1)):
        run_once(name, fitter, small_samples(), split, seed, folder)
    assert len(fitter.seen) == 4


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
        raise DataError("no")

    with pytest.raises(DataError):
        run_once("bad", fail, small_samples(), "random", 0, tmp_path)
    assert not list(tmp_path.iterdir())


def run_of(predictor: str, seed: int, mape: float, split: str = "random", tau: float | None = 0.5) -> Run:
    figures = {"count": 20.0, "mape": mape, "kendall_tau": tau}
    return Run(predictor, split, seed, {TEST: 20}, {"latency_ms": {"all": figures}})


def test_a_comparison_has_the_mean_over_seeds() -> None:
    runs = [run_of("a", 0, 0.1), run_of("a", 1, 0.3), run_of("b", 0, 0.5), run_of("a", 0, 0.9, "family")]
    table = compare(runs, "random", "latency_ms", "all")
    assert table is not None
    assert set(table.rows) == {"a", "b"}
    mape = table.rows["a"]["mape"]
    assert isinstance(mape, MeanSpread)
    assert (mape.mean, mape.seeds) == (pytest.approx(0.2), 2)
    assert mape.spread == pytest.approx(np.std([0.1, 0.3], ddof=1))
    assert "count" not in table.rows["a"]
    assert table.title == "latency_ms, all, split by random, 2 seeds"
    alone = compare(runs, "family", "latency_ms", "all")
    assert alone is not None
    assert alone.title.endswith("1 seed")


def test_a_figure_that_no_seed_has_is_absent() -> None:
    table = compare([run_of("a", 0, 0.1, tau=None), run_of("a", 1, 0.1, tau=None)], "random", "latency_ms", "all")
    assert table is not None
    assert table.rows["a"]["kendall_tau"] is None
    some = compare([run_of("a", 0, 0.1, tau=None), run_of("a", 1, 0.1, tau=0.8)], "random", "latency_ms", "all")
    assert some is not None
    assert some.rows["a"]["kendall_tau"] == MeanSpread(0.8, 0.0, 1)


@pytest.mark.parametrize(
    ("split", "metric", "mode"),
    [("device", "latency_ms", "all"), ("random", "power_w", "all"), ("random", "latency_ms", "decode")],
)
def test_a_table_without_runs_is_an_error(split: str, metric: str, mode: str) -> None:
    assert compare([run_of("a", 0, 0.1)], split, metric, mode) is None


def test_what_was_written_can_be_compared(tmp_path: Path) -> None:
    fitter = Counting()
    for _ in range(2):  # once from the fit, once from the file
        runs = [run_once("counting", fitter, measured(80), "random", seed, tmp_path) for seed in (0, 1)]
    assert len(fitter.seen) == 2
    assert json.loads((tmp_path / "counting-random-0.json").read_text(encoding="utf-8"))["predictor"] == "counting"
    assert runs[0].predictor == "counting"


def test_variants_of_an_architecture_are_one_group() -> None:
    sample = small_samples()[0]
    specs = ("timm:resnet50.a1_in1k", "torchvision:resnet50", "timm:resnet101")
    groups = groups_of([replace(sample, spec=spec) for spec in specs])
    assert groups[0] == groups[1] != groups[2]


def test_metrics_are_those_that_samples_know() -> None:
    assert set(METRICS) <= set(small_samples()[0].truth)
