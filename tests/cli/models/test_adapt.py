"""``foretell adapt``: from a CSV file to a predictor, what to measure, drift, and mistakes in one line."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx = pytest.importorskip("onnx")
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    onnx.save(tiny_onnx(), tmp_path / "net.onnx")
    file = tmp_path / "measured.csv"
    file.write_text("model,batch_size,input,dtype,mode,latency_ms\nnet.onnx,64,,fp32,inference,0.05\n")
    return file


def test_a_csv_file_becomes_a_predictor_that_answers(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(run(capsys, "adapt", "--device", "t4", "--from", str(table), "-o", "my-gpu.zip", "--json"))
    assert told["device"] == "t4"
    assert told["file"] == "my-gpu.zip"
    assert json.loads(run(capsys, "predict", "net.onnx", "--device", "t4", "--json"))["predictor"] == "adapted"
    named = run(capsys, "predict", "net.onnx", "--device", "t4", "--predictor", "my-gpu.zip", "--json")
    assert json.loads(named)["predictor"] == "adapted"
    assert "t4: no drift" in run(capsys, "adapt", "-d", "t4", "--from", str(table), "--check")


def test_what_to_measure(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "foretell collect adapt-plan.toml" in run(capsys, "adapt", "-d", "t4", "--suggest", "3")
    assert Path("adapt-plan.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-d", "t4"), "--suggest 16"),
        (("-d", "nonsense", "--from", "measured.csv"), "Unknown device 'nonsense'"),
        (("-d", "t4", "--from", "absent"), "Cannot read absent"),
        (("-d", "t4", "--from", "measured.csv", "-o", "x.txt"), "use -o x.zip"),
        (("-d", "t4", "--from", "measured.csv", "--no-keep"), "would not be written anywhere"),
        (("-d", "t4", "--from", "measured.csv", "--check"), "no adapted predictor of t4"),
        (("-d", "t4", "--from", "measured.csv", "--predictor", "x.zip"), "--predictor is for --check"),
        (("-d", "t4", "--from", "measured.csv", "--suggest", "3"), "leave out --from"),
    ],
)
def test_a_mistake_is_one_line(
    table: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    shown = run(capsys, "adapt", *arguments, code=2)
    assert message in shown
    assert len(shown.strip().splitlines()) == 1
