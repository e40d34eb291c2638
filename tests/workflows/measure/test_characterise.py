"""Ceilings of this machine: kept by device, read back, preferred to what is shipped, or refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.devices import find_device
from foretell.devices.ceilings import Ceilings
from foretell.errors import DataError
from foretell.predictors.unit.pace import REFERENCE_MS
from foretell.profiling import ceilings as ceilings_measured
from foretell.profiling.ceilings import MeasuredCeilings
from foretell.testing import tiny_onnx
from foretell.workflows.measure.characterise import (
    ceilings_of,
    ceilings_path,
    characterise,
    known_ceilings,
    read_own_ceilings,
    write_own_ceilings,
)
from foretell.workflows.predict import predict

CPU = MeasuredCeilings(
    "cpu", "A processor", "queue", "2.13", "", "2026-11-15T10:00:00+00:00", 2, 32.0, 20.0, 128.0, 90.0, 8.0,
    {"fp32": 0.2}, {"fp32": 1024}, 10.0,
)  # fmt: skip
GPU = replace(CPU, kind="cuda", device_name="NVIDIA H200", driver="580.1", tflops={"fp32": 50.0, "bf16": 700.0})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measuring(monkeypatch: pytest.MonkeyPatch, measured: MeasuredCeilings) -> Ceilings:
    monkeypatch.setattr(ceilings_measured, "measure_ceilings", lambda device: measured)
    return characterise()[0]


def test_what_is_measured_is_kept_beside_what_others_reached(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert read_own_ceilings() == {}
    cpu, gpu = measuring(monkeypatch, CPU), measuring(monkeypatch, GPU)
    assert read_own_ceilings() == {"cpu": cpu, "h200": gpu}
    assert [path.name for path in folder.iterdir()] == ["ceilings.json"]
    slower = measuring(monkeypatch, replace(CPU, dram_gb_per_s=15.0, cache_gb_per_s=None))
    assert read_own_ceilings() == {"cpu": slower, "h200": gpu}


def test_l1_and_plain_fp16_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, replace(GPU, l1_gb_per_s=29000.0, plain_tflops={"fp16": 107.0}))
    kept = read_own_ceilings()["h200"]
    assert (kept.l1_gb_per_s, kept.plain_tflops) == (29000.0, {"fp16": 107.0})


def test_a_measurement_has_its_device_date_and_how_it_was_made() -> None:
    ceilings = ceilings_of(GPU)
    assert (ceilings.device, ceilings.date) == ("h200", "2026-11-15")
    assert ceilings.source == "foretell characterise, torch 2.13, driver 580.1"
    assert ceilings_of(CPU).source == "foretell characterise, torch 2.13, 2 threads"
    assert ceilings_of(replace(GPU, device_name="NVIDIA X-9 (beta)")).device == "nvidia-x-9-beta"


def test_the_own_measurement_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {"h200": Ceilings("h200", "NVIDIA H200", "2026-01-01", "shipped", 4000.0)}
    monkeypatch.setattr("foretell.workflows.measure.characterise.load_ceilings", lambda: shipped)
    h200 = find_device("h200")
    assert known_ceilings(h200) is shipped["h200"]
    write_own_ceilings({"h200": ceilings_of(GPU)})
    assert known_ceilings(h200) == ceilings_of(GPU)
    assert known_ceilings(find_device("t4")) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "ceilings": {}}',
        '{"version": 1, "ceilings": {"cpu": {"name": "x"}}}',
        '{"version": 1, "ceilings": {"cpu": {"name": "x", "date": "2026-01-01", "source": "s", "dram_gb_per_s": -1}}}',
        '{"version": 1, "ceilings": 3}',
        b"\xff\xfe".decode("latin-1"),
    ],
)
def test_a_damaged_file_is_refused_and_replaced(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    folder.mkdir()
    ceilings_path().write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="Run again: foretell characterise"):
        read_own_ceilings()
    cpu = measuring(monkeypatch, CPU)
    assert read_own_ceilings() == {"cpu": cpu}


def test_a_folder_that_cannot_be_written_is_an_error(folder: Path) -> None:
    folder.write_text("a file", encoding="utf-8")
    with pytest.raises(DataError, match="FORETELL_CACHE"):
        write_own_ceilings({})


def test_what_was_not_measured_is_absent() -> None:
    write_own_ceilings({"cpu": ceilings_of(replace(CPU, cache_gb_per_s=None))})
    row = json.loads(ceilings_path().read_text(encoding="utf-8"))["ceilings"]["cpu"]
    assert "cache_gb_per_s" not in row
    assert read_own_ceilings()["cpu"].cache_gb_per_s is None


def test_predictions_for_the_cpu_are_at_the_pace_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    model = tiny_onnx()
    before = predict(model, device="cpu")
    measuring(monkeypatch, replace(CPU, reference_ms=3 * REFERENCE_MS))
    after = predict(model, device="cpu")
    assert before.latency_ms is not None
    assert after.latency_ms is not None
    assert before.latency_ms.value < after.latency_ms.value < 3 * before.latency_ms.value
    assert any("as this machine does (foretell characterise, 2026-11-15)" in note for note in after.warnings)
    measuring(monkeypatch, CPU)  # a file of before has no reference product
    assert predict(model, device="cpu") == before
