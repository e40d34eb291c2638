"""``foretell share``: the command prints what the function returns."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "small.onnx").write_bytes(tiny_onnx().SerializeToString())
    return str(tmp_path / "small.onnx")


def test_json_is_one_object_and_lists_go_to_their_models(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--batch-sizes", "1,8", "--dtypes", "fp16,fp32", "--limits-ms", "5,20", "--json")
    output = json.loads(run(capsys, "share", model, model, *options))
    assert [(job["batch_size"], job["dtype"]) for job in output["jobs"]] == [(1, "fp16"), (8, "fp32")]
    assert [job["keeps_limit"] for job in output["jobs"]] == [True, True]


def test_a_model_without_a_measured_latency_has_a_dash(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--method", "time-slicing", "--measured-ms", "7.5,-", "--json")
    first, second = json.loads(run(capsys, "share", model, model, *options))["jobs"]
    assert first["alone_ms"] == {"value": 7.5, "low": 7.5, "high": 7.5}
    assert second["alone_ms"]["low"] < second["alone_ms"]["value"] < 7.5


def test_the_table_has_a_row_for_each_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "share", model, model, model, "--method", "time-slicing", "--limits-ms", "1000")
    assert "h200 · time-slicing" in shown
    assert shown.count("1000 kept") == 3
    assert "throughput gain" in shown


def test_a_page_and_a_chart_are_written(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, chart = tmp_path / "share.html", tmp_path / "share.svg"
    options = ("--batch-sizes", "1,64", "--limits-ms", "1000", "--percentages", "30,70")
    shown = run(capsys, "share", model, model, *options, "--report", str(page))
    assert f"written: {page}" in shown
    text = page.read_text()
    for expected in ("batch 64, fp32, 70 % of the SMs", "1000 ms kept", "together", "memory, MiB"):
        assert expected in text
    output = json.loads(run(capsys, "share", model, model, *options, "--report", str(chart), "--json"))
    assert len(output["jobs"]) == 2
    assert chart.read_text().startswith("<svg")
    before = sorted(tmp_path.iterdir())
    assert "must end in .html or .svg" in run(capsys, "share", model, model, "--report", "a.pdf", code=2)
    assert "Cannot write" in run(capsys, "share", model, model, "--report", str(page / "under.html"), code=2)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--batch-sizes", "1,x"), "batch size 'x' is no whole number"),
        (("--limits-ms", ","), "Got no limit"),
        (("--measured-ms", "1,soon"), "measured latency 'soon' is no number"),
        (("--method", "msp"), "Did you mean 'mps'"),
    ],
)
def test_mistakes_are_one_line(
    model: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in run(capsys, "share", model, model, *options, code=2)
