"""``foretell doctor``."""

import json

import pytest

from command_line import run


def test_doctor_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "onnx" in run(capsys, "doctor")
    assert "frontends" in json.loads(run(capsys, "doctor", "--json"))
    assert run(capsys, "--version").startswith("foretell ")
    assert "predict" in run(capsys, "--help")
