"""``foretell sweep``: words and numbers with commas, a table, a file, JSON."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.cli.main import main
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "tiny.onnx"
    file.write_bytes(tiny_onnx().SerializeToString())
    return str(file)


def test_one_line_per_point_is_printed_and_a_file_is_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "points.csv"
    shown = run(
        capsys, "sweep", model, "--devices", "h200, a100", "-b", "1,8", "--slices", "whole,mps:50", "-o", str(out)
    )
    *lines, sentence = [line.split() for line in shown.splitlines() if "fp32" in line]
    assert sentence[:2] == ["On", "h200"]
    assert [line[0] for line in lines] == ["h200"] * 4 + ["a100-sxm-40gb"] * 4
    assert [line[1] for line in lines if line[1] == "mps:50"] == ["mps:50"] * 4
    assert len(out.read_text(encoding="utf-8").splitlines()) == 9
    assert f"written: {out}" in shown.replace("\n", "")


def test_json_has_rows_with_intervals(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "sweep", model, "-b", "4", "--json"))
    (row,) = answer["points"]  # one object, as every --json
    assert row["batch_size"] == 4
    assert row["latency_ms_low"] < row["latency_ms"] < row["latency_ms_high"]
    assert row["fits"] is True


def test_text_that_is_no_number_is_refused(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "sweep", model, "-b", "1,many", code=2)


def test_many_devices_that_nobody_measured_are_one_note(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def notes(devices: str) -> str:
        with pytest.raises(SystemExit):
            main(["sweep", model, "--devices", devices, "-b", "1"])
        return capsys.readouterr().err

    many = notes("h200,a100,l4,t4,l40s,a40,mi300x")
    assert "no measurement of 6 of these devices went into their answers" in many
    assert many.count("note: uncalibrated") == 1
    assert notes("h200,a100,l4").count("note: uncalibrated") == 2
