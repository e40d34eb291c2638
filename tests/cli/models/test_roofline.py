"""``foretell roofline``: a table with limits, a picture beside it, JSON, one line for what cannot be."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "tiny.onnx"
    file.write_bytes(tiny_onnx().SerializeToString())
    return str(file)


def test_ceilings_operators_and_what_limits_them(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "roofline", model, "-d", "a100", "-b", "8", "--most", "2")
    assert "HBM" in shown
    assert "1.55 TB/s" in shown or "1.56 TB/s" in shown
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith(("Conv", "Relu", "Gemm", "Global"))]
    assert len(rows) == 2
    assert rows[0][-1] == "launch"
    assert "2 more" in shown
    assert "launch: launching the kernel" in shown
    assert "foretell characterise" in shown


def test_the_picture_is_written_beside_the_table(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "roof.svg"
    shown = run(capsys, "roofline", model, "--predictor", "roofline", "-o", str(out))
    assert f"written: {out}" in shown.replace("\n", "")
    assert out.read_text(encoding="utf-8").startswith("<svg")


def test_json_has_points_groups_and_roofs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "roofline", model, "-p", "roofline", "--slice", "mps:50", "--json"))
    assert output["slice"] == "mps:50"
    assert output["roofs"][0]["name"] == "HBM"
    assert {"intensity", "flops_per_s", "reached", "limit", "share"} <= set(output["points"][0])


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(["--by", "layer"], "layer"), (["-o", "x.pdf"], ".png"), (["-d", "cpu", "--slice", "mps:1"], "CPU")],
)
def test_impossible_options_are_one_line(
    model: str, wrong: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = run(capsys, "roofline", model, "-p", "roofline", *wrong, code=2)
    assert expected in message
    assert message.count("\n") == 1
