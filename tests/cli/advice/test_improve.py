"""``foretell improve``: the answer first, then the changes."""

import json
from pathlib import Path

import onnx
import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "net.onnx"
    onnx.save(tiny_onnx(size=64), file)
    return str(file)


def test_the_first_line_is_the_answer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "improve", model, "-b", "64", "--by", "throughput", "--devices", "none")
    first, *rest = shown.splitlines()
    assert first.startswith(f"{model}: ")
    assert "times as many items a second (" in first
    assert any(line.startswith("now: ") and "on h200, batch 64, fp32, cuda-graph" in line for line in rest)
    assert any(line.strip().startswith("why: ") for line in rest)


def test_json_has_the_changes_and_the_changed_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "improve", model, "-b", "64", "--devices", "none", "--json", "--apply-check"))
    assert answer["by"] == "latency"
    names = [change["change"] for change in answer["changes"]]
    assert {"gain", "accuracy", "how", "after", "sure"} <= set(answer["changes"][0])
    assert all(change["reason"] for change in answer["rejected"])
    applied = answer["applied"]
    assert applied["change"] == answer.get("together", answer["changes"][0])["change"]
    assert applied["change"].split(" + ")[0] in names
    assert applied["latency_ms"]["value"] < answer["before"]["latency_ms"]["value"]


def test_the_changed_model_is_shown(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "improve", model, "-b", "64", "--devices", "none", "--apply-check", "--accuracy", "none")
    assert "\nwith " in shown
    assert "where the time goes" in shown


def test_a_wrong_objective_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Unknown objective 'speed'" in run(capsys, "improve", model, "--by", "speed", code=2)
