"""``python -m lab``: the laboratory's own commands."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.training.judging.table import Comparison
from foretell.workflows.measure.collect import CAMPAIGNS
from lab.commands import ALONE, FROM_TABLES, KINDS, main, read_shares
from lab.judging import comparison

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command registers is gone after the test."""
    for kind in KINDS:
        monkeypatch.setitem(CAMPAIGNS.targets, kind, "")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    shown = capsys.readouterr()
    assert ended.value.code == code, shown.err
    return shown.err if code else shown.out


def test_limits_and_shares_of_labels_reach_the_workflow(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []

    def record(*_: object, fit_seconds, label_shares, processes, **others: object) -> list[object]:
        calls.append((fit_seconds, label_shares, processes))
        return []

    monkeypatch.setattr(comparison, "evaluate", record)
    run(capsys, "evaluate", "trappm")
    run(capsys, "evaluate", "trappm", "--fit-seconds", "90", "--label-shares", "0.1, 0.25,1.0", "--processes", "6")
    assert calls == [(None, (), 1), (90.0, (0.1, 0.25, 1.0), 6)]
    assert not list(here.iterdir())


def test_adapt_takes_the_folder_of_public_tables(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lab.adapt import judge as adapt

    calls: list[object] = []

    def record(*_: object, tables: Path, **options: object) -> list[Comparison]:
        calls.append(tables)
        return [Comparison("What was asked", {"a device": {"32: mape": 0.06}})]

    monkeypatch.setattr(adapt, "evaluate", record)
    (here / "tables").mkdir()
    assert run(capsys, "evaluate", "adapt", "tables", "--report").startswith("written: reports/adapt.md")
    assert calls == [Path("tables")]
    assert "is judged by public tables" in run(capsys, "evaluate", "adapt", code=2)


REPORTS = {
    "sharing": "sharing",
    "flattened": "flattened-gpu",
    "dnn-occu": "dnn-occu",
    "mixes": "mixes",
    "transfer": "other-gpus",
}


@pytest.mark.parametrize("model", [name for name in ALONE if name not in FROM_TABLES])
def test_papers_with_tables_of_their_own_are_fitted_on_one_machine_and_judged_on_another(
    model: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    calls: list[object] = []

    def record(*places: object, log: object, **options: object) -> list[Comparison]:
        calls.append(options)
        return [] if options["only_networks"] else [Comparison("all of them", {model: {"mape": 0.05}})]

    monkeypatch.setattr(importlib.import_module(ALONE[model]), "evaluate", record)
    arguments = ("--only-networks", "--fit-seconds", "9", "--processes", "5", "--cache", "kept")
    assert run(capsys, "evaluate", model, *arguments) == "networks are cached in kept\n"
    assert calls == [{"only_networks": True, "fit_seconds": 9.0, "processes": 5}]
    assert run(capsys, "evaluate", model, "--report").startswith(
        f"written: reports/{REPORTS.get(model, 'lilou')}.md\n### all of them"
    )
    assert "name one of them, and nothing else" in run(capsys, "evaluate", model, "linear", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "trappm", "--label-shares", "a,1"), "Got the shares 'a,1'; give numbers"),
        (("evaluate", "dipm"), "Unknown predictor 'dipm'. Did you mean 'dippm'?"),
        (("fit", "dipm"), "Unknown network 'dipm'."),
        (("evaluate", "collectives"), "give their folder after the name"),
        (("evaluate", "collectives", "absent"), "give their folder after the name"),
        (("collect", "absent.toml"), "Cannot read the plan absent.toml"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    shown = run(capsys, *arguments, code=2)
    assert message in shown
    assert shown.count("\n") == 1
    assert not list(here.iterdir())


def test_the_laboratory_has_more_kinds_of_campaigns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "collect", "absent.toml", code=2)
    assert set(KINDS) <= set(CAMPAIGNS)
    assert all(callable(CAMPAIGNS.load(kind)) for kind in KINDS)


def test_shares_are_numbers_with_commas_between() -> None:
    assert read_shares(None) == ()
    assert read_shares("0.1,1") == (0.1, 1.0)
    with pytest.raises(InputError, match="give numbers separated by commas"):
        read_shares("a tenth")


def test_it_runs_from_a_checkout() -> None:
    done = subprocess.run([sys.executable, "-m", "lab", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "evaluate" in done.stdout
