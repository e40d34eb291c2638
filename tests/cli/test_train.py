"""``foretell train`` and ``foretell evaluate``."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.train import MODELS
from foretell.predictors.unit.fit_model import Settings
from foretell.training import unit_models as workflow
from foretell.training.judging.protocol import Run
from foretell.training.judging.table import Comparison
from small.small_samples import QUICK
from small.small_store import SETTINGS, WIDTHS, write_store

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")

OPTIONS = {"seed": 5, "threads": 2, "predictor": "unit-trees", "only_networks": False}
ENOUGH = "3"  # seeds, so that some test side is large enough for figures


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_store(tmp_path_factory.mktemp("store")))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and few small trees."""

    def settings(**options: int) -> Settings:
        return replace(QUICK, **options)

    monkeypatch.setattr(workflow, "Settings", settings)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_fitted_predictor_is_written_and_answers(
    store: str, here: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "train", "--store", store) == "written: out/trained/unit-network-h200.zip\n"
    assert names(here / "out" / "trained") == ["checksums.json", "index.json", "unit-network-h200.zip"]
    index = json.loads((here / "out" / "trained" / "index.json").read_text(encoding="utf-8"))
    assert index["h200"]["unit-network"]["workloads"] == len(WIDTHS) * len(SETTINGS)
    file = "out/trained/unit-network-h200.zip"
    output = json.loads(run(capsys, "predict", model, "--device", "h200", "--predictor", file, "--json"))
    assert output["predictor"] == "unit-network"
    assert output["latency_ms"]["low"] <= output["latency_ms"]["value"] <= output["latency_ms"]["high"]


def test_options_of_train_reach_the_workflow(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []

    def record(*places: object, log, **options: object) -> Path:
        log("half way")
        calls.append((places, options))
        return Path("mine/file.zip")

    monkeypatch.setattr(workflow, "train", record)
    arguments = (
        "--store",
        "s",
        "--device",
        "l4",
        "--cache",
        "kept",
        "--out",
        "mine",
        "--seed",
        "5",
        "--threads",
        "2",
        "-p",
        "unit-trees",
    )
    assert run(capsys, "train", *arguments) == "written: mine/file.zip\n", "what goes on is said on stderr"
    assert calls == [((Path("s"), "l4", Path("kept"), Path("mine")), OPTIONS)]
    assert not list(here.iterdir())


def test_predictors_are_judged_and_the_report_is_written_here(
    store: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--store", store, "--split", "random", "--seeds", ENOUGH)
    lines = run(capsys, "evaluate", "roofline", "unit-trees", *arguments, "--report").splitlines()
    assert lines[0] == "written: reports/evaluation.md"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        f"{name}, split by random, seed {seed}" for seed in range(int(ENOUGH)) for name in ("roofline", "unit-trees")
    ]
    assert any("latency_ms" in line and "%" in line for line in lines[1:])
    assert names(here / "reports") == ["evaluation.json", "evaluation.md"]
    assert "| roofline |" in (here / "reports" / "evaluation.md").read_text(encoding="utf-8")
    assert len(list((here / "out" / "runs").glob("*/*.json"))) == 2 * int(ENOUGH)


def test_json_is_json_even_with_a_report(store: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--store", store, "--split", "random", "--seeds", ENOUGH, "--json")
    plain = json.loads(run(capsys, "evaluate", "roofline", *arguments))
    assert not (here / "reports").exists()
    assert json.loads(run(capsys, "evaluate", "roofline", *arguments, "--report")) == plain
    assert (here / "reports" / "evaluation.md").is_file()
    assert [(run_record["predictor"], run_record["split"], run_record["seed"]) for run_record in plain] == [
        ("roofline", "random", seed) for seed in range(int(ENOUGH))
    ]
    assert any(run_record["figures"]["latency_ms"]["all"]["mape"] > 0 for run_record in plain if run_record["figures"])


def test_all_predictors_and_splits_are_judged_by_default(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[list[str], list[str], list[int]]] = []

    def record(names, *_: object, splits, seeds, **others: object) -> list[object]:
        assert others.keys() == {"only_networks", "log"}
        calls.append((list(names), list(splits), list(seeds)))
        return []

    monkeypatch.setattr(workflow, "evaluate", record)
    run(capsys, "evaluate")
    run(capsys, "evaluate", "unit-trees", "--split", "family", "--seeds", "1")
    assert calls == [
        (list(workflow.FITTERS), list(workflow.SPLITS), [0, 1, 2, 3, 4]),
        (["unit-trees"], ["family"], [0]),
    ]
    assert not list(here.iterdir())


def test_a_predictor_of_one_mode_is_shown_by_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        Run("unit-network", "random", 0, {}, {"latency_ms": {"inference": {"mape": 0.25}, "decode": {"mape": 0.5}}}),
        Run("unit-trees", "random", 0, {}, {"latency_ms": {"all": {"mape": 0.125}, "inference": {"mape": 0.25}}}),
    ]
    monkeypatch.setattr(workflow, "evaluate", lambda *_, **__: runs)
    assert run(capsys, "evaluate", "unit-network", "unit-trees").splitlines() == [
        "unit-network, split by random, seed 0: latency_ms in inference 25.0%, latency_ms in decode 50.0%",
        "unit-trees, split by random, seed 0: latency_ms 12.5%",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("evaluate", "unit-tres"),
            "Cannot judge 'unit-tres'. Choose from: roofline, unit-trees, unit-network, partitioner, ",
        ),
        (("evaluate", "roofline", "--split", "famly"), "Unknown split 'famly'. Did you mean 'family'?"),
        (("evaluate", "transfer"), "transfer is for devices without measurements"),
        (
            ("train", "-p", "WRONG"),
            "Choose from: unit-network, unit-trees, partitioner, slices, kernel-classes, compiled, occupancy, sharing, "
            "core-sharing, cpu-runs.",
        ),
        (("train", "--device", "h20o"), "Unknown device 'h20o'. Did you mean 'h200'?"),
        (("train", "--threads", "0"), "Invalid value for '--threads'"),
        (("train",), "data has no measured workload of h200"),
        (("evaluate", "roofline"), "data has no measured workload of h200"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    shown = run(capsys, *arguments, code=2)
    assert message in shown
    assert shown.count("\n") == 1
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("model", "report"),
    [
        ("partitioner", "fusion"),
        ("slices", "slices"),
        ("kernel-classes", "kernels"),
        ("compiled", "compiled"),
        ("cpu-runs", "cpu-runs"),
    ],
)
def test_models_beside_the_predictors_are_fitted_and_judged_by_the_same_commands(
    model: str, report: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = importlib.import_module(MODELS[model])
    tables = [
        Comparison("all of them", {model: {"mape": 0.05}}),
        Comparison("by family", {"a": {"mape": 0.1}}, ranked=False),
    ]
    monkeypatch.setattr(workflow, "train", lambda store, device, cache, out, log: out / f"{store}-{device}-{cache}")
    monkeypatch.setattr(workflow, "evaluate", lambda store, device, cache, log: tables)
    arguments = ("train", "-p", model, "--store", "s", "--cache", "c", "--out", "mine")
    assert run(capsys, *arguments) == "written: mine/s-h200-c\n"
    shown = run(capsys, "evaluate", model, "--report")
    assert shown.startswith(f"written: reports/{report}.md\n### all of them")
    assert "by family" not in shown
    assert "by family" in (here / "reports" / f"{report}.md").read_text(encoding="utf-8")
    assert "1 more tables: --report or --json" in run(capsys, "evaluate", model)
    assert len(json.loads(run(capsys, "evaluate", model, "--json"))) == 2
    assert "without other predictors" in run(capsys, "evaluate", model, "roofline", code=2)


def test_where_nothing_is_compared_the_first_table_is_shown(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = importlib.import_module(MODELS["slices"])
    table = Comparison("alone", {"a": {"mape": 0.1}}, ranked=False)
    monkeypatch.setattr(workflow, "evaluate", lambda *_, log: [table])
    assert run(capsys, "evaluate", "slices").startswith("### alone")
