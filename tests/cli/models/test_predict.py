"""``foretell predict``."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from small.small_kernels import fitted


def test_predict_prints_one_object(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output: dict[str, Any] = json.loads(
        run(capsys, "predict", model, "--device", "a100", "-b", "8", "--dtype", "fp16", "--json")
    )
    assert output["model"] == model
    assert (output["batch_size"], output["dtype"], output["mode"]) == (8, "fp16", "inference")
    for metric in ("latency_ms", "memory_mib", "energy_j", "power_w"):
        assert 0 < output[metric]["low"] <= output[metric]["value"] <= output[metric]["high"]
    assert output["coverage"] == 1.0
    assert output["mig_profile"]["name"] == "1g.5gb"
    assert "4,864 MiB" in output["mig_profile"]["reason"]


def test_predict_shows_a_box(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "predict", model, "--mode", "training", "--optimizer", "adamw")
    for word in ("latency", "peak memory", "adamw", "Conv"):
        assert word in shown


def test_several_gpus(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("predict", model, "--mode", "training", "--gpus", "16", "--parallel", "zero3")
    output = json.loads(run(capsys, *options, "--network", "infiniband-ndr", "--json"))
    assert output["parallel"]["gpus"] == 16
    assert output["parallel"]["network"] == "infiniband-ndr"
    assert 0 < output["parallel"]["efficiency"]["value"] <= 1
    assert output["extrapolated"]
    assert "mig_profile" not in output
    shown = run(capsys, *options, "--network", "infiniband-ndr")
    assert "16 GPUs, zero3: efficiency" in shown
    assert "--network infiniband-ndr" in run(capsys, *options, code=2)
    alone = json.loads(run(capsys, "predict", model, "--mode", "training", "--json"))
    assert json.loads(run(capsys, "predict", model, "--mode", "training", "--gpus", "1", "--json")) == alone


def test_the_mig_profile_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def line(*options: str) -> str:
        shown = run(capsys, "predict", model, "--device", "a100", *options).splitlines()
        (matching,) = [text for text in shown if text.startswith("MIG profile")]
        return matching

    assert line().startswith("MIG profile 1g.5gb: its 4,864 MiB hold the predicted ")
    assert line("--latency-limit-ms", "0.0001").startswith("MIG profile none: latency: the fastest profile")
    assert "the limit is 100 ms" in line("--latency-limit-ms", "100")


def test_a_device_without_mig_has_no_such_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "MIG" not in run(capsys, "predict", model, "--device", "t4")


def test_the_limit_must_be_a_time(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "latency limit is 0.0 ms" in run(capsys, "predict", model, "--latency-limit-ms", "0", code=2)


def test_units_are_shown_with_explain(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(capsys, "predict", model)
    assert "units of work" not in plain
    shown = run(capsys, "predict", model, "--explain")
    assert "units of work, equal ones together" in shown
    assert "× its bound" in shown
    output = json.loads(run(capsys, "predict", model, "--explain", "--json"))
    assert sum(unit["share"] for unit in output["units"]) == pytest.approx(1.0)
    assert all(unit["over_bound"] > 0 for unit in output["units"])
    assert "units" not in json.loads(run(capsys, "predict", model, "--json"))


def test_kernels_are_shown_with_explain_kernels(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    classifier = fitted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretell.predictors.kernels.shares.shipped", {"h200": classifier}.get)
        shown = run(capsys, "predict", model, "--explain", "kernels")
        output = json.loads(run(capsys, "predict", "--explain", "kernels", model, "--json"))
        missing = json.loads(run(capsys, "predict", model, "--explain", "kernels", "--device", "a100", "--json"))
    assert "kernels by class" in shown
    assert "likeliest kernel" in shown
    assert sum(kernel["share"] for kernel in output["kernels"]) == pytest.approx(1.0)
    assert {unit["kernel"] for unit in output["units"]} == {kernel["kernel"] for kernel in output["kernels"]}
    assert "kernels" not in missing
    assert "No classes of kernels are known for a100" in " ".join(missing["warnings"])


def test_only_units_and_kernels_are_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "units of work" in run(capsys, "predict", "--explain", model)
    assert "kernel" not in json.loads(run(capsys, "predict", model, "--explain=units", "--json"))["units"][0]
    assert "Did you mean 'kernels'?" in run(capsys, "predict", model, "--explain=kernel", code=2)


def test_a_store_that_does_not_know_the_model_changes_nothing(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    plain = json.loads(run(capsys, "predict", model, "--json"))
    assert json.loads(run(capsys, "predict", model, "--json", "--store", str(tmp_path))) == plain
    assert plain["source"] == "predicted"


def test_a_trace_takes_as_long_as_the_prediction(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "out.json"
    output = json.loads(run(capsys, "predict", model, "--trace", str(path), "--json"))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sum(event["dur"] for event in events) == pytest.approx(1000 * output["latency_ms"]["value"])
    (tmp_path / "file").write_text("")
    refused = run(capsys, "predict", model, "--trace", str(tmp_path / "file" / "out.json"), code=2)
    assert "Choose another --trace" in refused


def test_what_compiling_gains_is_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "predict", model, "--runtime", "compiled", "--batch-size", "64")
    (line,) = [line for line in shown.splitlines() if line.startswith("torch.compile: ")]
    output = json.loads(run(capsys, "predict", model, "--runtime", "compiled", "--batch-size", "64", "--json"))
    is_faster = output["latency_ms"]["value"] < output["eager_latency_ms"]["value"]
    assert ("faster" if is_faster else "slower") + " than eager" in line
    assert output["runtime"] == "compiled"
    assert "torch.compile:" not in run(capsys, "predict", model)
