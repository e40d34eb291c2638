"""``foretell profile``."""

import importlib
import json

import pytest

from command_line import run
from foretell.cli.main import main
from foretell.records import Estimate, Measurement

workflow = importlib.import_module("foretell.workflows.measure.profile")
MEASURED = Measurement(
    "timm:resnet18", "cpu", None, "eager", "inference", 2, "fp32", latency_ms=Estimate(2.0, 1.9, 2.1)
)


@pytest.fixture
def answered(monkeypatch):
    calls = {}

    def profile(model, **options):
        calls.update(options, model=model)
        return answered.result

    answered = type("Answer", (), {"calls": calls, "result": MEASURED})
    monkeypatch.setattr(workflow, "profile", profile)
    return answered


def test_options_arrive_and_one_object_is_printed(answered, capsys):
    options = ["--device", "cuda", "-b", "2", "--input", "3x64x64", "--dtype", "fp16", "--energy", "--kernels"]
    options += ["--slice", "20%", "--occupancy", "--fusion", "inductor", "--runtime", "compiled", "--store", "s"]
    output = json.loads(run(capsys, "profile", "timm:resnet18", *options, "--json"))
    arguments = answered.calls
    assert (arguments["model"], arguments["device"], arguments["batch_size"]) == ("timm:resnet18", "cuda", 2)
    assert (arguments["input_shape"], arguments["runtime"], arguments["slice"]) == (["3x64x64"], "compiled", "20%")
    assert arguments["energy"]
    assert arguments["kernels"]
    assert arguments["occupancy"]
    assert (arguments["fusion"], arguments["store"]) == ("inductor", "s")
    assert output["latency_ms"] == {"value": 2.0, "low": 1.9, "high": 2.1}
    assert (output["source"], output["status"]) == ("measured", "ok")


def test_a_box_for_people(answered, capsys):
    shown = run(capsys, "profile", "timm:resnet18")
    assert "latency" in shown
    assert "1.9 – 2.1" in shown


def test_a_failure_is_one_line_code_2_and_a_status(answered, capsys):
    answered.result = Measurement(
        "timm:resnet18", "cpu", None, "eager", "inference", 2, "fp32", "oom", "It took\n too much memory."
    )
    assert run(capsys, "profile", "timm:resnet18", code=2) == (
        "foretell: timm:resnet18: oom. It took too much memory.\n"
    )
    with pytest.raises(SystemExit):
        main(["profile", "timm:resnet18", "--json"])
    assert json.loads(capsys.readouterr().out)["status"] == "oom"


def test_an_unknown_device_is_one_line(capsys):
    assert run(capsys, "profile", "synthetic:lenet?scale=1", "--device", "abacus", code=2).count("\n") == 1
