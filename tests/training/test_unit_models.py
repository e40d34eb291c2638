"""Fitting to a store and judging: a file with its checksum, and tables that can be remade."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from foretell.datasets.splits import TEST
from foretell.errors import DeviceError, InputError
from foretell.predictors.fitted_files import shipped_index
from foretell.predictors.unit.fit_model import Settings
from foretell.predictors.unit.model import UnitModel
from foretell.predictors.unit.predictor import UnitPredictor
from foretell.training import unit_models as workflow
from foretell.training.examples.samples import fingerprint, read_samples
from foretell.training.judging.protocol import Run, sides
from foretell.training.unit_models import FITTERS, SPLITS, evaluate, finished, train, write_report
from small.small_samples import QUICK, small_samples, workload
from small.small_store import SETTINGS, WIDTHS, write_store

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small trees."""

    def settings(**options: int) -> Settings:
        return replace(QUICK, **options)

    monkeypatch.setattr(workflow, "Settings", settings)


def silent(_: str) -> None:
    pass


def test_what_is_fitted_is_written_with_its_checksum(store: Path, cache: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    out = tmp_path / "a" / "trained"
    file = train(store, "h200", cache, out, predictor="unit-trees", seed=3, log=messages.append)
    assert file == tmp_path / "a" / "trained" / "unit-trees-h200.zip"
    assert "units, all" in messages
    assert shipped_index(file.parent) == json.loads((file.parent / "index.json").read_text(encoding="utf-8"))
    index = shipped_index(file.parent)
    assert [(device, list(fitted)) for device, fitted in index.items()] == [("h200", ["unit-trees"])]
    entry = index["h200"]["unit-trees"]
    assert entry["file"] == file.name
    assert entry["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert entry["workloads"] == len(WIDTHS) * len(SETTINGS)
    trees = UnitModel.load(file.read_bytes())
    assert (entry["held_out"], trees.card["seed"]) == (trees.card["held_out"], 3)
    assert sorted(path.name for path in file.parent.iterdir()) == [
        "checksums.json",
        "index.json",
        "unit-trees-h200.zip",
    ]
    again = train(store, "h200", cache, tmp_path / "b", predictor="unit-trees", seed=3, log=silent)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("name", ["unit-network", "unit-trees"])
def test_what_is_fitted_knows_the_store(store: Path, cache: Path, tmp_path: Path, name: str) -> None:
    predictor = UnitPredictor.from_file(train(store, "h200", cache, tmp_path, predictor=name, log=silent))
    by_id = {sample.workload_id: sample for sample in read_samples(store, "h200", cache)}
    prediction = predictor.predict(workload(64, 16, "fp16"))
    truth = by_id["64-16-fp16-inference"].truth
    for metric in ("latency_ms", "memory_mib", "power_w"):
        assert getattr(prediction, metric).value == pytest.approx(truth[metric], rel=0.15), metric


def test_other_devices_stay_in_the_index(store: Path, cache: Path, tmp_path: Path) -> None:
    other = {"unit-trees": {"file": "unit-trees-x.zip", "sha256": "0"}}
    (tmp_path / "index.json").write_text(json.dumps({"x": other, "h200": {"mine": {"file": "m"}}}), encoding="utf-8")
    train(store, "h200", cache, tmp_path, predictor="unit-trees", log=silent)
    index = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    assert index["x"] == other
    assert {name: entry["file"] for name, entry in index["h200"].items()} == {
        "mine": "m",
        "unit-trees": "unit-trees-h200.zip",
    }


def test_a_device_has_one_name_however_it_is_written(store: Path, cache: Path, tmp_path: Path) -> None:
    file = train(store, "NVIDIA H200", cache, tmp_path, predictor="unit-trees", log=silent)
    assert file is not None
    assert file.name == "unit-trees-h200.zip"
    with pytest.raises(DeviceError, match="Did you mean 'h200'"):
        train(store, "h20o", cache, tmp_path, log=silent)


def test_the_roofline_needs_no_fit_and_is_the_analytic_answer() -> None:
    samples = small_samples()[:4]
    predicted = FITTERS["roofline"]([], [], 0)(samples)
    np.testing.assert_allclose(predicted["latency_ms"], [sample.roofline_ms for sample in samples])
    np.testing.assert_allclose(predicted["memory_mib"], [sample.setting.memory_mib for sample in samples])
    np.testing.assert_allclose(predicted["energy_j"], predicted["latency_ms"] * predicted["power_w"] / 1000)


@pytest.mark.parametrize("name", list(FITTERS))
def test_every_predictor_learns_and_answers(name: str) -> None:
    parts = sides(small_samples(), "random", 1)
    train_side, validation, test = parts["train"], parts["validation"], parts[TEST]
    predicted = FITTERS[name](train_side, validation, 0)(test)
    for metric in ("latency_ms", "memory_mib", "power_w", "energy_j"):
        assert predicted[metric].shape == (len(test),)
        assert (predicted[metric] > 0).all()
    assert ("latency_ms_low" in predicted) == (name in ("unit-trees", "unit-network"))


def test_predictors_are_judged_on_every_split_and_seed(store: Path, cache: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    names, runs_folder = ["roofline", "unit-trees"], tmp_path / "runs"
    runs = evaluate(
        names, store, "h200", cache, runs_folder, splits=("random", "architecture"), seeds=(0, 3), log=messages.append
    )
    assert {(run.predictor, run.split, run.seed) for run in runs} == {
        (name, split, seed) for name in names for split in ("random", "architecture") for seed in (0, 3)
    }
    # the network takes longest to fit: once
    runs += evaluate(["unit-network"], store, "h200", cache, runs_folder, splits=("random",), seeds=(0,), log=silent)
    names.append("unit-network")
    judged = [run for run in runs if "latency_ms" in run.figures]
    assert {run.predictor for run in judged} == set(names), "some test side must be large enough, or nothing is shown"
    mape = {
        name: np.mean([run.figures["latency_ms"]["all"]["mape"] for run in judged if run.predictor == name])
        for name in names
    }
    assert mape["unit-trees"] < mape["roofline"]
    assert mape["unit-network"] < mape["roofline"]
    (folder,) = runs_folder.iterdir()
    assert folder.name == f"h200-{fingerprint(store, 'h200', judging=workflow.JUDGING_VERSION)}"
    assert len(list(folder.iterdir())) == len(runs) == 9
    assert "unit-trees, split by architecture, seed 3" in messages


def test_networks_can_be_fitted_on_one_machine_and_the_rest_on_another(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"splits": ("random",), "seeds": (1,), "log": silent}
    assert evaluate(["unit-network"], store, "h200", tmp_path, tmp_path / "runs", only_networks=True, **options) == []
    assert train(store, "h200", tmp_path, tmp_path / "out", only_networks=True, log=silent) is None
    assert sorted(path.name for path in tmp_path.glob("networks-*/*")) == ["all-0.npz", "random-1.npz"]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("foretell.training.cross_fits.cross_fit_networks", None)
    (run,) = evaluate(["unit-network"], store, "h200", tmp_path, tmp_path / "runs", **options)
    assert run.predictor == "unit-network"
    file = train(store, "h200", tmp_path, tmp_path / "out", log=silent)
    assert file == tmp_path / "out" / "unit-network-h200.zip"
    model = UnitModel.load(file.read_bytes())
    assert "latency_ms" in model.models
    assert "power_w" in model.models  # small trees correct what the network tells


def test_training_an_unknown_predictor_is_refused(store: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'unit-tree' cannot be fitted\. Did you mean 'unit-trees'"):
        train(store, "h200", cache, tmp_path, predictor="unit-tree", log=silent)


def test_an_evaluation_that_was_stopped_goes_on(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counting(train: object, validation: object, seed: int) -> object:
        calls.append(seed)
        return FITTERS["roofline"]([], [], seed)

    monkeypatch.setattr(workflow, "FITTERS", {"counting": counting})
    first = evaluate(["counting"], store, "h200", cache, tmp_path, splits=("random",), seeds=range(2), log=silent)
    both = evaluate(["counting"], store, "h200", cache, tmp_path, splits=("random",), seeds=range(3), log=silent)
    assert calls == [0, 1, 2]
    assert both[:2] == first


def test_unknown_names_are_refused_before_any_work(tmp_path: Path) -> None:
    def go(names: list[str], **options: object) -> None:
        evaluate(names, tmp_path, "h200", tmp_path, tmp_path, log=silent, **options)  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"Unknown predictor 'unit-treees'\. Did you mean 'unit-trees'"):
        go(["roofline", "unit-treees"])
    with pytest.raises(InputError, match=r"Unknown split 'familly'\. Did you mean 'family'"):
        go(["roofline"], splits=["familly"])
    assert not list(tmp_path.iterdir())


def test_a_report_has_every_table_in_both_forms(tmp_path: Path) -> None:
    figures = {"count": 9.0, "mape": 0.25, "kendall_tau": None}
    runs = [
        Run(name, split, 0, {TEST: 9}, {"latency_ms": {"all": figures, "training": {**figures, "mape": mape}}})
        for name, mape in (("roofline", 0.5), ("unit-trees", 0.125))
        for split in SPLITS
    ]
    file = write_report(runs, tmp_path / "reports")
    assert sorted(path.name for path in file.parent.iterdir()) == ["evaluation.json", "evaluation.md"]
    tables = json.loads((file.parent / "evaluation.json").read_text(encoding="utf-8"))
    assert [table["title"] for table in tables] == [
        f"latency_ms, {mode}, split by {split}, 1 seed" for split in SPLITS for mode in ("all", "training")
    ]
    assert tables[1]["rows"]["unit-trees"]["mape"]["mean"] == 0.125
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# Predictors compared\n")
    assert text.count("### latency_ms, training, split by family, 1 seed") == 1
    assert "**12.5**" in text


def test_runs_of_other_calls_are_found_in_the_order_of_the_tables(store: Path, cache: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert finished(store, "h200", runs) == []
    others = {"theirs": lambda split, seed: FITTERS["roofline"]}
    theirs = evaluate(["theirs"], store, "h200", cache, runs, splits=["random"], seeds=[0], others=others, log=silent)
    roofline = evaluate(["roofline"], store, "h200", cache, runs, splits=["random"], seeds=[1, 0], log=silent)
    (folder,) = runs.iterdir()
    shares = Run("trappm 10%, no pre-training", "random", 0, {}, {})
    (folder / "trappm.json").write_text(json.dumps(asdict(shares)), encoding="utf-8")
    assert finished(store, "h200", runs) == [*roofline[::-1], *theirs, shares]
