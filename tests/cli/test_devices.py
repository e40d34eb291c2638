"""``foretell devices``."""

import json

import pytest

from command_line import run


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200" in run(capsys, "devices")
    assert "mig:1g.18gb" in run(capsys, "devices", "h200")
    assert any(d["id"] == "h200" for d in json.loads(run(capsys, "devices", "--json")))
