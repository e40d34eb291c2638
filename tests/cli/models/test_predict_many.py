"""``foretell predict-many``."""

import importlib
import json
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.models.predict_many import describe, summary
from foretell.workflows.many.predict_plan import PlannedPredictions, PlanProgress

workflow = importlib.import_module("foretell.workflows.many.predict_plan")
PLAN = '[models]\nspecs = ["timm:resnet18", "timm:resnet34"]\n[options]\nbatch_sizes = [1, 8, 64]\n'


def planned(**changes: object) -> PlannedPredictions:
    values = {
        "out": Path("o"), "models": 2, "predictions": 6, "errors": 0, "shards": 1, "known_before": 0, "seconds": 3.0,
        "workers": 2, "lost": 0, "repeated": 0, "interrupted": False,
    }  # fmt: skip
    return PlannedPredictions(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return str(path)


def test_options_reach_the_workflow_and_the_result_is_printed(
    plan: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = {}

    def predict_plan(path: Path, **options: object) -> PlannedPredictions:
        calls.update(options, plan=path)
        return planned()

    monkeypatch.setattr(workflow, "predict_plan", predict_plan)
    shown = run(capsys, "predict-many", plan, "-o", "o", "--ray", "auto", "--workers", "3", "--trust")
    assert (calls["plan"], calls["out"], calls["ray"]) == (Path(plan), Path("o"), "auto")
    assert (calls["workers"], calls["trust"]) == (3, True)
    assert shown == "6 predictions in 1 shards of o\n6 in 3 s by 2 workers: 2.0 a second, 1.0 a worker\n"
    found = json.loads(run(capsys, "predict-many", plan, "-o", "o", "--json"))
    assert (found["predictions"], found["predictions_per_s_per_worker"]) == (6, 1.0)


def test_a_plan_is_checked_and_each_mistake_has_its_line(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "predict-many", plan, "-o", "o", "--check") == "2 models, 6 predictions, 1 shards\n"
    assert json.loads(run(capsys, "predict-many", plan, "-o", "o", "--check", "--json"))["predictions"] == 6
    Path(plan).write_text(PLAN.replace("batch_sizes", "sizes") + "[shards]\nmodels = 0\n")
    lines = run(capsys, "predict-many", plan, "-o", str(tmp_path / "out"), code=2).splitlines()
    assert len(lines) == 2
    assert all(line.startswith("foretell: ") for line in lines)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"interrupted": True}, 130, "The same command continues"),
        ({"errors": 6}, 2, "nothing could be predicted"),
        ({"errors": 5}, 0, "5 of them errors"),
    ],
)
def test_the_exit_code_tells_scripts_what_happened(
    plan: str,
    changes: dict[str, object],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(workflow, "predict_plan", lambda *_, **__: planned(**changes))
    assert said in run(capsys, "predict-many", plan, "-o", "o", code=code)


def test_progress_and_the_end_in_words() -> None:
    state = PlanProgress(done=3000, total=10000, errors=2, known_before=1000, elapsed_s=10.0)
    assert describe(state) == "3,000/10,000 predicted · 2 errors · 200 a second · 35 s left"
    assert describe(PlanProgress(0, 10, 0, 0, 0.0)) == "0/10 predicted"
    assert summary(planned(known_before=6)).endswith("nothing was left to do")
    assert "1 workers died" in summary(planned(lost=1))
