"""``foretell devices``."""

import json
from pathlib import Path

import pytest

from command_line import run


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200" in run(capsys, "devices")
    assert "mig:1g.18gb" in run(capsys, "devices", "h200")
    assert any(d["id"] == "h200" for d in json.loads(run(capsys, "devices", "--json")))


def test_devices_new_writes_a_file_that_predict_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "my-4090.toml"
    own.write_text('like = "rtx-4090"\ntdp_w = 300\n')
    assert json.loads(run(capsys, "devices", str(own), "--json"))["tdp_w"] == 300
    assert "vendor = " in run(capsys, "devices", "new", "--kind", "cpu")
    written = tmp_path / "my-cpu.toml"
    shown = run(capsys, "devices", "new", "--kind", "cpu", "-o", str(written))
    assert written.exists()
    assert "Fill in before you use it: vector_tflops" in shown or "foretell predict MODEL --device" in shown
    assert "is for: foretell devices new" in run(capsys, "devices", "h200", "--kind", "cpu", code=2)
