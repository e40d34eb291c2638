"""``foretell advise``: a table, why others fell out, JSON, and training."""

import json
from pathlib import Path

import pytest

from command_line import run
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "tiny.onnx"
    file.write_bytes(tiny_onnx().SerializeToString())
    return str(file)


def test_the_best_places_and_why_others_fell_out(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--max-batch", "4", "--rate", "10")
    shown = run(capsys, "advise", model, "--devices", "h200,rtx-2080-ti", "--no-mig", *limits)
    assert "the best of" in shown
    assert sum(line.strip().startswith("h200 ") for line in shown.splitlines()) > 1
    assert "excluded: 1 by price (rtx-2080-ti: unknown for every instance with a rtx-2080-ti)" in shown
    assert "latency against cost:" in shown


def test_copies_that_share_a_gpu(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("advise", model, "--devices", "h200,l4", "--no-mig", "--max-batch", "2", "--shared", "--most", "100")
    shown = run(capsys, *arguments)
    assert "h200, 2 by MPS" in shown
    assert "excluded: 1 by sharing (l4 by MPS: nobody measured how this GPU is shared)" in shown
    assert "On h200 at fp16 occupancy" in shown
    assert "--shared is for serving" in run(capsys, "advise", model, "--train", "--shared", code=2)


def test_no_place_is_advised_if_the_limit_is_too_tight(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "advise", model, "--devices", "h200", "--slo-ms", "0.0001", "--max-batch", "2")
    assert "no place meets the requirements" in shown
    assert "the limit is 0.0001 ms" in shown


def test_json_has_choices_front_and_refusals(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "advise", model, "--devices", "h200,a30", "--max-batch", "2", "--json"))
    assert output["choices"][0]["usd_per_million"]["low"] < output["choices"][0]["usd_per_million"]["value"]
    assert {row["device"] for row in output["front"]} == {"h200"}
    assert {row["place"].split()[0] for row in output["refused"]} == {"a30"}


def test_a_training_has_hours_and_dollars(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("advise", model, "--train", "--steps", "1000", "--devices", "h200", "--batch-size", "2")
    assert "1,000 steps, the cheapest of" in run(capsys, *arguments)
    output = json.loads(run(capsys, *arguments, "--json"))
    assert output["steps"] == 1000
    assert output["choices"][0]["hours"]["value"] > 0
    run(capsys, *arguments, "--slo-ms", "5", code=2)


def test_a_language_model_is_advised_by_its_own_limits(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("advise", "meta-llama/Llama-3.1-8B", "--llm", "-d", "l40s", "--weights", "fp8", "--tpot-ms", "30")
    shown = run(capsys, *arguments)
    assert shown.startswith("meta-llama/Llama-3.1-8B: 1 × l40s, fp8")
    assert "$ a million" in shown
    answer = json.loads(run(capsys, *arguments, "--json"))
    assert answer["choices"][0]["tpot_ms"]["value"] <= 30
    assert "--slo-ms does not go with --llm" in run(capsys, *arguments, "--slo-ms", "3", code=2)
    assert "add --llm" in run(capsys, "advise", "x.onnx", "--ttft-ms", "3", code=2)
