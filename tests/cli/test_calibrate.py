"""``foretell calibrate``."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.errors import MeasurementError
from foretell.profiling import host_calibration
from foretell.profiling.host_calibration import HostSpeed

CPU = HostSpeed("queue", "a cpu", "cpu", "2.13", "2026-11-15", 1.5)
CUDA = HostSpeed("queue", "a cpu", "NVIDIA H200", "2.13", "2026-11-15", 1.5, (0.5, 0.5, 0.5), (1.0, 1.0))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))
    return tmp_path


def test_constants_are_shown_and_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_calibration, "measure_host", lambda device: CUDA)
    shown = run(capsys, "calibrate")
    assert "0.50 × the reference host" in shown
    assert "10.8 µs a call" in shown
    output = json.loads(run(capsys, "calibrate", "--json"))
    assert (output["slowdown"], output["training_slowdown"], output["host"]) == (0.5, 1.0, "queue")
    assert output["path"] == str(cache / "host-calibration.json")
    assert json.loads(Path(output["path"]).read_text(encoding="utf-8"))["slowdown"] == 0.5


def test_without_cuda_it_says_that_launches_are_not_known(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    devices_asked = []

    def measure(device: str | None) -> HostSpeed:
        devices_asked.append(device)
        return CPU

    monkeypatch.setattr(host_calibration, "measure_host", measure)
    assert "not measured" in run(capsys, "calibrate", "--device", "cpu")
    assert devices_asked == ["cpu"]
    assert (cache / "host-calibration.json").is_file()


def test_a_refusal_is_one_line_and_keeps_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(device: str | None) -> HostSpeed:
        raise MeasurementError(f"No {device} here.")

    monkeypatch.setattr(host_calibration, "measure_host", refuse)
    assert run(capsys, "calibrate", "--device", "cuda", code=2) == "foretell: No cuda here.\n"
    assert not list(cache.iterdir())
