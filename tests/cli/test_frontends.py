"""``foretell frontends``."""

import json
from pathlib import Path

import pytest

from command_line import run
from converted_models import fake_environment
from foretell.frontends.converted import environments


@pytest.fixture(autouse=True)
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path))
    monkeypatch.setattr(environments, "available", lambda module: False)
    fake_environment(tmp_path, "", "paddle")


def test_the_list_shows_python_and_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = run(capsys, "frontends")
    assert f"✓ paddle   PaddlePaddle   none 0.0\n    {tmp_path / 'paddle/bin/python'}" in shown
    assert "✗ keras" in shown
    assert "foretell frontends install keras" in shown
    states = {state["name"]: state for state in json.loads(run(capsys, "frontends", "--json"))}
    assert states["paddle"]["versions"] == "none 0.0"
    assert states["jax"]["python"] is None


def test_doctor_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "doctor", "--json"))["frontends"]
    assert output["PaddlePaddle (.json, .pdmodel)"] is None
    assert output["JAX and Flax functions"] == "foretell frontends install jax"


def test_installing_and_removing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pretend(command: tuple[str, ...], variables: dict[str, str], name: str) -> None:
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)
            (Path(command[-1]) / "bin/python").write_text("")

    monkeypatch.setattr(environments, "_run", pretend)
    assert "keras: tensorflow-cpu 2.21.0" in run(capsys, "frontends", "install", "tensorflow")
    assert (tmp_path / "keras/bin/python").exists()
    assert run(capsys, "frontends", "remove", "keras") == "keras: removed\n"
    assert run(capsys, "frontends", "remove", "keras") == "keras: was not installed\n"


def test_an_unknown_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Unknown framework 'theano'" in run(capsys, "frontends", "install", "theano", code=2)
