"""``foretell characterise``: a table against the catalogue, JSON, and the entry for the package."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import run
from foretell.profiling import ceilings as ceilings_measured
from foretell.profiling.ceilings import MeasuredCeilings

H200 = MeasuredCeilings(
    "cuda", "NVIDIA H200", "queue", "2.13", "580.1", "2026-11-15T10:00:00+00:00", 2, 60.0, 4200.0, 960.0, 7000.0, 15.0,
    {"fp32": 50.175, "bf16": 700.0}, {"fp32": 8192, "bf16": 16384}, 18.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceilings_measured, "measure_ceilings", lambda device: H200)


def test_measured_against_the_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "characterise")
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if "GB/s" in line or "TFLOP/s" in line}
    assert rows["memory"][-4:] == ["4,200", "4,800", "88%", "GB/s"]
    assert rows["L2"][-4:] == ["7,000", "–", "–", "GB/s"]
    assert rows["fp32"][-4:] == ["50.2", "66.9", "75%", "TFLOP/s"]
    assert rows["bf16"][-2:] == ["71%", "TFLOP/s"]
    assert "ceilings.json" in shown.replace("\n", "")
    assert (tmp_path / "cache" / "ceilings.json").exists()


def test_l1_and_plain_fp16_are_shown_where_they_were_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "L1" not in run(capsys, "characterise")
    more = replace(H200, l1_gb_per_s=29000.0, plain_tflops={"fp16": 107.04})
    monkeypatch.setattr(ceilings_measured, "measure_ceilings", lambda device: more)
    shown = run(capsys, "characterise").splitlines()
    assert next(line for line in shown if "L1" in line).split()[-4:] == ["29,000", "–", "–", "GB/s"]
    assert next(line for line in shown if "plain fp16" in line).split()[-4:] == ["107", "134", "80%", "TFLOP/s"]
    entry = tomllib.loads(run(capsys, "characterise", "--toml"))["ceilings"]["h200"]
    assert (entry["l1_gb_per_s"], entry["plain_tflops"]) == (29000.0, {"fp16": 107.04})


def test_ceilings_of_a_processor_are_in_gflops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = replace(
        H200, kind="cpu", device_name="A processor", driver="", tflops={"fp32": 0.2}, product_sizes={"fp32": 512}
    )
    monkeypatch.setattr(ceilings_measured, "measure_ceilings", lambda device: cpu)
    shown = run(capsys, "characterise", "--device", "cpu")
    assert "200" in next(line for line in shown.splitlines() if "GFLOP/s" in line)
    assert "one core of a server" in shown


def test_a_device_that_the_catalogue_lacks_has_no_peak(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ceilings_measured, "measure_ceilings", lambda device: replace(H200, device_name="NVIDIA X9"))
    assert "%" not in run(capsys, "characterise")


def test_json_and_toml(capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "characterise", "--json"))
    assert (output["device"], output["dram_gb_per_s"], output["tflops"]["bf16"]) == ("h200", 4200.0, 700.0)
    entry = tomllib.loads(run(capsys, "characterise", "--toml"))["ceilings"]["h200"]
    assert entry["tflops"] == {"fp32": 50.175, "bf16": 700.0}
    assert entry["date"] == "2026-11-15"
