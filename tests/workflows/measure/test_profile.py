"""``foretell.profile``: what it refuses, how an answer becomes a record, and one real run."""

import importlib
from pathlib import Path

import pytest

from foretell import profile
from foretell.errors import DeviceError, ForetellError, InputError, MissingExtraError, ModelError, UntrustedModelError
from foretell.profiling.single import NO_DEVICE, ZOO_BUILDER, Request
from foretell.testing import tiny_onnx

workflow = importlib.import_module("foretell.workflows.measure.profile")
LENET = "synthetic:lenet?act=tanh&scale=1"


def answer(**more):
    values = {"latency_ms": 2.0, "latency_cv": 0.1, "latency_mean_ms": 2.1, "noisy": True, "repeats": 30}
    values |= {"host_latency_ms": 5.0, "memory_mib": 64.0, "energy_j": 0.5, "power_w": 250.0}
    kernels = {
        "name": ["gemm", "relu"],
        "duration_us": [3.0, 1.0],
        "op": ["aten::mm", "aten::relu"],
        "module": ["a", ""],
    }
    workload = {"spec": LENET, "batch_size": 4, "input_shape": [1, 28, 28], "dtype": "fp32", "mode": "inference"}
    facts = {"device_name": "NVIDIA H200", "host": "h"}
    result = {"status": "ok", "error": None, "workload": workload, "kernels": kernels, "facts": facts}
    return result | {"values": values} | more


@pytest.fixture
def answered(monkeypatch):
    """Children that answer at once; what they were asked is kept."""
    calls = []

    def measure_alone(request, **options):
        calls.append((request, options))
        return answered.result

    answered = type("Answered", (), {"calls": calls, "result": answer()})
    monkeypatch.setattr(workflow, "measure_alone", measure_alone)
    return answered


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"device": "h100"}, DeviceError, "cpu, cuda"),
        ({"dtype": "fp8"}, InputError, "fp"),
        ({"mode": "train"}, InputError, "training"),
        ({"runtime": "cuda-graph"}, InputError, "on cpu"),
        ({"batch_size": 0}, InputError, "between 1 and"),
        ({"batch_size": 10**8}, InputError, "between 1 and 1048576"),
        ({"threads": 0}, InputError, "it must be 1 or more"),
        ({"mode": "prefill"}, InputError, "language models"),
        ({"store": "postgresql://nobody@127.0.0.1:1/none"}, ForetellError, "."),
        ({"optimizer": "sgd"}, InputError, "--mode training"),
        ({"mode": "training", "optimizer": "adam"}, InputError, "adamw"),
        ({"mode": "training", "dtype": "fp16"}, InputError, "bf16"),
        ({"energy": True}, InputError, "--device cuda"),
        ({"occupancy": True}, InputError, "--device cuda"),
        ({"slice": "20%"}, InputError, "--device cuda"),
        ({"fusion": "tvm"}, InputError, "onnxruntime"),
        ({"input_shape": ["1x28x28", "4"]}, InputError, "one input"),
        ({"threads": 2, "store": "s"}, InputError, "1 thread"),
        ({"device": "cuda", "slice": "0%"}, InputError, "20%"),
    ],
)
def test_impossible_options_are_refused_before_a_process_starts(options, error, words, answered):
    with pytest.raises(error, match=words):
        profile(LENET, **options)
    assert answered.calls == []


def test_a_module_cannot_go_to_another_process_and_the_way_out_is_named(answered):
    with pytest.raises(ModelError, match=r"Module.*net\.py:build"):
        profile(type("Module", (), {})())
    assert answered.calls == []


def test_an_onnx_file_needs_no_runtime_named(tmp_path, answered):
    path = tmp_path / "m.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    profile(path)
    assert answered.calls[0][0].runtime == "onnxruntime"
    with pytest.raises(InputError, match="--device cpu"):
        profile(path, device="cuda")


def test_the_lower_end_is_never_below_the_fastest_run_nor_lost(answered):
    answered.result = answer(values={"latency_ms": 2.0, "latency_cv": 0.7, "latency_min_ms": 1.5})
    assert profile(LENET).latency_ms.low == 1.5


def test_models_are_recognised_by_their_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("")
    Path("config.json").write_text("{}")
    Path("model.onnx").write_bytes(b"\x08\x07")
    builders = {"timm:resnet18": ZOO_BUILDER, "hf:bert?hidden_size=64": ZOO_BUILDER}
    builders |= dict.fromkeys(("hf:gpt2", "config.json"), "foretell.workflows.measure.foreign_models:build_huggingface")
    builders["net.py:build"] = "foretell.workflows.measure.foreign_models:build_python"
    for model, builder in builders.items():
        assert workflow.find_builder(model, "eager", trust=True) == builder
    assert workflow.find_builder("model.onnx", "onnxruntime", trust=False).endswith("build_onnx")
    with pytest.raises(InputError, match="onnxruntime"):
        workflow.find_builder("model.onnx", "eager", trust=False)
    with pytest.raises(UntrustedModelError, match="--trust"):
        workflow.find_builder("net.py:build", "eager", trust=False)
    with pytest.raises(ModelError, match="no file"):
        workflow.find_builder("absent.py:build", "eager", trust=True)


def test_every_builder_exists():
    for target in workflow._BUILDERS.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_an_answer_becomes_a_record_with_the_keys_of_a_prediction(answered):
    measurement = profile(LENET, device="cuda", batch_size=4, energy=True, kernels=True)
    request = answered.calls[0][0]
    assert (request.runtime, request.energy, request.kernels) == ("cuda-graph", True, True)
    assert (measurement.device, measurement.latency_ms.value, measurement.host_latency_ms.value) == (
        "NVIDIA H200",
        2.0,
        5.0,
    )
    assert measurement.latency_ms.low < 2.0 < measurement.latency_ms.high
    assert measurement.throughput_per_s.value == 2000.0
    assert measurement.throughput_per_s.low < 2000.0 < measurement.throughput_per_s.high
    assert [(kernel.operator, kernel.module) for kernel in measurement.kernels] == [
        ("aten::mm", "a"),
        ("aten::relu", ""),
    ]
    assert "differ by 10%" in measurement.warnings[0]
    shown = measurement.to_dict()
    assert (shown["source"], shown["status"], shown["input_shape"]) == ("measured", "ok", "1x28x28")
    assert shown["energy_j"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert "device_memory_mib" not in shown
    assert shown["facts"]["host"] == "h"


def test_a_failure_is_a_record_too(answered):
    answered.result = answer(status="oom", error="CUDA out of memory.", values={}, kernels=None)
    measurement = profile(LENET, device="cuda")
    assert (measurement.ok, measurement.status, measurement.latency_ms) == (False, "oom", None)
    assert measurement.to_dict()["error"] == "CUDA out of memory."
    answered.result = answer(status=NO_DEVICE, error="PyTorch sees no NVIDIA GPU on this machine.")
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        profile(LENET, device="cuda")


def test_a_slice_is_an_environment_while_the_service_runs(answered, monkeypatch):
    lives = []

    class Daemon:
        def __init__(self, folder):
            self.client = lambda percent: {"SHARE": f"{percent:g}"}

        def __enter__(self):
            lives.append("begun")
            return self

        def __exit__(self, *_):
            lives.append("ended")

    monkeypatch.setattr(workflow, "MpsDaemon", Daemon)
    measurement = profile(LENET, device="cuda", slice="20%")
    assert (measurement.slice, lives) == ("mps:20", ["begun", "ended"])
    assert answered.calls[0][1]["environment"] == {"SHARE": "20"}


def test_occupancy_and_fusion_are_added_or_reported_missing(answered, monkeypatch):
    counted = {"status": "ok", "values": {"occupancy_mean": 40.0, "occupancy_weighted": 35.0}}
    monkeypatch.setattr(workflow, "count_alone", lambda *_, **__: counted)
    answered.result = answer(fusion={"backend": "inductor", "status": "ok", "nodes": 3})
    measurement = profile(LENET, device="cuda", occupancy=True, fusion="inductor")
    assert (measurement.occupancy.value, measurement.facts["occupancy_mean"], measurement.fusion["nodes"]) == (
        35.0,
        40.0,
        3,
    )
    monkeypatch.setattr(workflow, "count_alone", lambda *_, **__: {"status": "run_error", "error": "no permission"})
    answered.result = answer(fusion={"backend": "inductor", "status": "run_error", "error": "no compiler"})
    measurement = profile(LENET, device="cuda", occupancy=True, fusion="inductor")
    assert (measurement.occupancy, measurement.fusion) == (None, {})
    assert any("no permission" in warning for warning in measurement.warnings)
    assert any("no compiler" in warning for warning in measurement.warnings)


def test_files_are_stored_by_their_content(tmp_path):
    path = tmp_path / "net.py"
    path.write_text("def build(): ...")
    first = workflow.stored_spec(f"{path}:build")
    assert first.startswith("file:net.py.build?sha256=")
    path.write_text("def build(): pass")
    assert workflow.stored_spec(f"{path}:build") != first
    assert workflow.stored_spec("timm:resnet18") == "timm:resnet18"


def test_the_prediction_beside_is_of_the_same_workload(tmp_path, monkeypatch):
    from foretell.testing import tiny_onnx

    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))
    monkeypatch.setattr("foretell.frontends.sources.recognise", lambda _: "onnx")
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    request = Request(str(path), "cuda", 4, runtime="cuda-graph")
    result = answer()
    result["workload"]["input_shape"] = []
    measured = workflow.to_measurement(request, result)
    beside = workflow.predict_beside(measured)
    assert (beside.device, beside.batch_size) == ("h200", 4)
    sliced = workflow.to_measurement(request, result, slice="20%")
    assert workflow.predict_beside(sliced).slice == "mps:20"
    unknown = workflow.to_measurement(request, answer(facts={"device_name": "Abacus"}))
    assert workflow.predict_beside(unknown) is None


def test_missing_torch_is_reported_before_a_process_starts(answered, monkeypatch):
    monkeypatch.setattr(workflow, "available", lambda name: name != "torch")
    with pytest.raises(MissingExtraError, match=r"pip install 'foretell\[profile\]'"):
        workflow.profile(LENET)
    assert not answered.calls


@pytest.mark.parametrize(("name", "option"), [("memory_limit_gib", "--memory-limit"), ("timeout_s", "--timeout")])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_numbers_above_0(name, option, value):
    with pytest.raises(InputError, match=f"Got {option}"):
        workflow.profile("synthetic:lenet?scale=1", **{name: value})
