"""The papers' predictors beside the product's: the same splits, seeds and test sides."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.datasets.splits import TEST
from foretell.errors import InputError
from foretell.predictors.unit.fit_model import Settings
from foretell.training import unit_models
from foretell.training.judging.protocol import sides
from lab.judging import graph_fits
from lab.judging.comparison import BASELINES, GRAPH_NETWORKS, evaluate
from small.small_samples import QUICK, small_samples
from small.small_store import write_store
from small.tiny_workloads import tiny_recipe

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small trees, and small graph networks."""

    def settings(**options: int) -> Settings:
        return replace(QUICK, **options)

    monkeypatch.setattr(unit_models, "Settings", settings)
    monkeypatch.setattr(graph_fits, "find_recipe", tiny_recipe)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize("name", ["linear", "gradient-boosting"])
def test_benches_do_not_teach_graph_level_predictors(name: str) -> None:
    samples = small_samples()
    slow = [
        sample if sample.captured else replace(sample, truth=dict.fromkeys(sample.truth, 1e4)) for sample in samples
    ]
    plain, other = (BASELINES[name](taught, [], 0)(samples[:5])["latency_ms"] for taught in (samples, slow))
    np.testing.assert_array_equal(other, plain)


def test_graph_networks_are_fitted_on_one_machine_and_judged_on_another(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, options = list(GRAPH_NETWORKS), {"splits": ("random",), "seeds": (0,), "log": silent}
    places = (store, "h200", tmp_path, tmp_path / "runs")
    assert evaluate(names, *places, only_networks=True, fit_seconds=100.0, **options) == []
    files = sorted(path.name for path in tmp_path.glob("networks-*/*"))
    assert files == sorted([*(f"{name}-random-0.npz" for name in names), "encoder-random-0.npz"])
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr("lab.judging.graph_fits.default_device", None)
    monkeypatch.setattr("lab.judging.comparison.read_graph_set", None)
    runs = {run.predictor: run for run in evaluate(["roofline", *names], *places, **options)}
    assert list(runs) == ["roofline", *names]
    assert runs["roofline"].figures["latency_ms"].keys() >= {"all", "inference"}
    for name, answered in (("dippm", {"inference"}), ("mlp", {"all", "inference"})):
        assert set(runs[name].figures["latency_ms"]) == answered, name
        assert runs[name].figures["latency_ms"]["inference"]["mape"] > 0
    for file in tmp_path.glob("networks-*/*"):
        file.unlink()
    again = evaluate(names, *places, **options)
    assert [run.predictor for run in again] == names, "a run that was judged needs no network"


def test_trappm_is_compared_by_its_share_of_labels(store: Path, cache: Path, tmp_path: Path) -> None:
    runs = evaluate(
        ["trappm"], store, "h200", cache, tmp_path, splits=("random",), seeds=(0,), label_shares=(0.5, 1.0), log=silent
    )
    assert [run.predictor for run in runs] == [
        "trappm 50%", "trappm 50%, no pre-training", "trappm 100%", "trappm 100%, no pre-training",
    ]  # fmt: skip
    assert len({json.dumps(run.sizes) for run in runs}) == 1, "the same test side"


@pytest.mark.parametrize("name", list(BASELINES))
def test_every_baseline_learns_and_answers(name: str) -> None:
    parts = sides(small_samples(), "random", 1)
    predicted = BASELINES[name](parts["train"], parts["validation"], 0)(parts[TEST])
    for metric in ("latency_ms", "memory_mib", "power_w", "energy_j"):
        assert predicted[metric].shape == (len(parts[TEST]),)
        assert (predicted[metric] > 0).all()


def test_predictors_baselines_and_graph_networks_have_different_names() -> None:
    assert not set(BASELINES) & set(unit_models.FITTERS)
    assert not set(GRAPH_NETWORKS) & {*BASELINES, *unit_models.FITTERS}


def test_unknown_names_are_refused_before_any_work(tmp_path: Path) -> None:
    def go(names: list[str], **options: object) -> None:
        evaluate(names, tmp_path, "h200", tmp_path, tmp_path, log=silent, **options)  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"Unknown predictor 'trapm'\. Did you mean 'trappm'"):
        go(["trapm"])
    with pytest.raises(InputError, match=r"Unknown split 'familly'\. Did you mean 'family'"):
        go(["linear"], splits=["familly"])
    with pytest.raises(InputError, match="Shares of labels are for trappm"):
        go(["dippm"], label_shares=(0.5,))
    with pytest.raises(InputError, match="share of labels of 2"):
        go(["trappm"], label_shares=(2.0,))
    with pytest.raises(InputError, match="Got a limit of 0 seconds"):
        go(["dippm"], fit_seconds=0.0)
    assert not list(tmp_path.iterdir())
