"""``foretell compare``: two models in one place, side by side."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx
from foretell.workflows.predict import predict


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    files = tmp_path / "small.onnx", tmp_path / "large.onnx"
    for file, size in zip(files, (16, 64), strict=True):
        file.write_bytes(tiny_onnx(size=size).SerializeToString())
    return str(files[0]), str(files[1])


def test_times_are_those_of_the_predictions(models: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "compare", *models, "-b", "4", "--dtype", "fp16", "--json"))
    first, second = (predict(model, batch_size=4, dtype="fp16") for model in models)
    assert first.latency_ms is not None
    assert second.latency_ms is not None
    assert output["times"]["latency_ms"] == pytest.approx(second.latency_ms.value / first.latency_ms.value)
    assert output["times"]["parameters"] == 1
    assert output["times"]["macs"] > 8
    assert [row["batch_size"] for row in output["models"]] == [4, 4]


def test_the_table_has_one_row_per_metric(models: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "compare", *models, "--device", "a100", "--slice", "mps:50")
    assert "a100-sxm-40gb mps:50 · inference · batch 1 · fp32" in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) == 4}
    assert {"latency_ms", "memory_mib", "parameters", "macs"} <= set(rows)
