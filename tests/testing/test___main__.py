"""``python -m foretell.testing`` and the GitHub action that runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from foretell.testing import tiny_onnx
from foretell.testing.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(tiny_onnx(), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def test_the_exit_code_says_whether_the_budget_is_kept(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main([model, "--device", "l4", "--latency-ms", "50", "--memory-mib", "4000", "--sure"]) == 0
    assert capsys.readouterr().out.count("ok: ") == 3
    assert main([model, "--device", "l4", "--latency-ms", "0.001"]) == 1
    assert "over budget: " in capsys.readouterr().out
    assert summary.read_text().count("- ok: ") == 4
    assert main([model, "--device", "l5"]) == 2
    assert capsys.readouterr().err.startswith("foretell: Unknown device 'l5'")


def action() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    document: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return document


def test_the_action_uses_the_inputs_that_it_has() -> None:
    document = action()
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([a-z-]+)", text)) == set(document["inputs"])
    for step in document["runs"]["steps"]:
        # a value inside a script could become a command
        assert "${{" not in step.get("run", "")
        assert "uses" in step or step["shell"] == "bash"
    assert [name for name, field in document["inputs"].items() if field.get("required")] == ["model"]


@pytest.mark.parametrize(("latency_ms", "code", "verdict"), [("50", 0, "ok: "), ("0.001", 1, "over budget: ")])
def test_the_script_of_the_action_runs(model: str, latency_ms: str, code: int, verdict: str) -> None:
    document = action()
    step = document["runs"]["steps"][-1]
    given = {"model": model, "device": "l4", "latency-ms": latency_ms}
    values = {name: given.get(name, field.get("default", "")) for name, field in document["inputs"].items()}
    variables = {
        name: values[re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)[1]]  # type: ignore[index]
        for name, text in step["env"].items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env={**os.environ, **variables, "PATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert verdict in ended.stdout
