"""``foretell devices``."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.devices import all_devices


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200" in run(capsys, "devices")
    assert "mig:1g.18gb" in run(capsys, "devices", "h200")
    assert any(d["id"] == "h200" for d in json.loads(run(capsys, "devices", "--json"))["devices"])


def test_the_list_is_one_line_a_device_by_maker_and_architecture_newest_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = run(capsys, "devices").splitlines()
    headings = [line for line in lines if not line.startswith("  ")]
    assert headings[1:5] == ["NVIDIA Blackwell", "NVIDIA Hopper", "NVIDIA Ada Lovelace", "NVIDIA Ampere"]
    assert headings.index("NVIDIA Pascal") < headings.index("AMD CDNA4") < headings.index("AMD CDNA3")
    devices = [line.split() for line in lines if line.startswith("  ")]
    assert {row[0] for row in devices} == {device.id for device in all_devices()}
    assert len(devices) == len(all_devices())
    # no digit is cut off, however long the names are
    assert next(row for row in devices if row[0] == "gb200")[1:8] == ["152", "184", "8000", "2500", "80.2", "1200", "·"]


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
