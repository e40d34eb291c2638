"""A host's calibration: what measurements make of it, and that the file is whole, readable, or refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from foretell.errors import DataError
from foretell.predictors.host_latency import REFERENCE, HostCalibration
from foretell.profiling import host_calibration
from foretell.profiling.host_calibration import HostSpeed
from foretell.workflows.measure.calibrate import (
    calibrate,
    calibration_of,
    calibration_path,
    read_calibration,
    write_calibration,
)

CPU = HostSpeed("queue", "cpu", "cpu", "2.13", "2026-11-15", 1.5)
CUDA = replace(CPU, device="NVIDIA H200", inference=(0.5, 0.6, 0.7), training=(0.8, 0.9, 1.0))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measuring(monkeypatch: pytest.MonkeyPatch, speed: HostSpeed) -> HostCalibration:
    monkeypatch.setattr(host_calibration, "measure_host", lambda device: speed)
    return calibrate()


def test_the_median_counts_and_agreement_narrows() -> None:
    calibration = calibration_of(CUDA)
    assert (calibration.slowdown, calibration.training_slowdown) == (0.6, 0.9)
    assert REFERENCE.low < calibration.low < 1 < calibration.high < REFERENCE.high
    torn = calibration_of(replace(CUDA, inference=(0.1, 0.6, 3.0)))
    assert torn.high > calibration.high


def test_training_falls_back_to_inference_where_too_few_probes_ran() -> None:
    assert calibration_of(replace(CUDA, training=(5.0,))).training_slowdown == 0.6


def test_without_cuda_nothing_is_claimed() -> None:
    calibration = calibration_of(CPU)
    assert calibration.slowdown is calibration.training_slowdown is None
    assert (calibration.low, calibration.high, calibration.dispatch_us) == (REFERENCE.low, REFERENCE.high, 1.5)


def test_what_is_measured_is_read_back(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert read_calibration() is REFERENCE
    calibration = measuring(monkeypatch, CUDA)
    assert read_calibration() == calibration
    assert [path.name for path in folder.iterdir()] == ["host-calibration.json"]


def test_a_measurement_without_cuda_does_not_displace_one_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = measuring(monkeypatch, CUDA)
    assert measuring(monkeypatch, replace(CPU, dispatch_us=9.0)) == replace(first, dispatch_us=9.0)
    assert measuring(monkeypatch, replace(CPU, host="other")).slowdown is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{}",
        json.dumps({"version": 99, **asdict(REFERENCE)}).encode(),
        json.dumps({"version": 1, **asdict(REFERENCE), "more": 1}).encode(),
        *(
            json.dumps({"version": 1, **asdict(REFERENCE), **change}).encode()
            for change in (
                {"low": None},
                {"low": "wide"},
                {"high": 0},
                {"high": float("nan")},
                {"high": 0.5},
                {"slowdown": -1.0},
                {"slowdown": True},
                {"slowdown": None},
                {"host": 3},
            )
        ),
    ],
)
def test_a_damaged_file_says_what_to_do_and_can_be_replaced(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    calibration_path().parent.mkdir(parents=True)
    calibration_path().write_bytes(text)
    with pytest.raises(DataError, match=r"host-calibration\.json cannot be used .*Run again: foretell calibrate"):
        read_calibration()
    assert read_calibration_after(monkeypatch).slowdown == 0.6


def read_calibration_after(monkeypatch: pytest.MonkeyPatch) -> HostCalibration:
    measuring(monkeypatch, CUDA)
    return read_calibration()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="FORETELL_CACHE"):
        write_calibration(REFERENCE, tmp_path / "file" / "x.json")
    with pytest.raises(DataError, match="foretell calibrate"):
        read_calibration(tmp_path)
