"""One workload in this process: what the child of ``foretell profile`` does."""

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import InputError
from foretell.optional import available
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.single import (
    NO_DEVICE,
    Request,
    SingleRun,
    Source,
    build_from_zoo,
    request_from_json,
)
from foretell.profiling.zoos.zoo import Built, Inputs

LENET = "synthetic:lenet?act=tanh&scale=1"
QUICK = Measuring(warmups=2, replays=3, tries=1)


def measure(tmp_path, model=LENET, **options):
    messages = []
    threads = torch.get_num_threads()
    try:
        result = SingleRun(Request(model, measuring=QUICK, **options), tmp_path, messages.append).measure()
    finally:
        torch.set_num_threads(threads)
    return result, [message["stage"] for message in messages]


def test_a_request_survives_the_way_to_the_child():
    request = Request(LENET, "cuda", 4, (1, 28, 28), ("1x28x28",), kernels=True, measuring=QUICK)
    assert request_from_json(request.to_json()) == request


def test_latency_memory_and_operators_are_measured(tmp_path):
    result, stages = measure(tmp_path, batch_size=2, kernels=True)
    assert (result["status"], result["error"]) == ("ok", None)
    assert result["workload"]["input_shape"] == [1, 28, 28]
    values = result["values"]
    assert 0 < values["latency_min_ms"] <= values["latency_ms"]
    assert values["parameters"] == 61706
    assert values["repeats"] >= 3
    assert values["reference_ms"] > 0
    assert {"aten::conv2d", "aten::linear"} <= set(result["kernels"]["op"])
    assert "0" in result["kernels"]["module"] or any(result["kernels"]["module"])
    assert stages == ["building the model", "warming up", "measuring", "tracing"]


def test_a_training_step_is_measured(tmp_path):
    result, _ = measure(tmp_path, mode="training", optimizer="adamw", dtype="bf16", batch_size=2)
    assert (result["status"], result["workload"]["optimizer"]) == ("ok", "adamw")


class Failing(torch.nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, _):
        raise self.error


FAILURES = {
    "oom": torch.cuda.OutOfMemoryError("CUDA out of memory."),
    "run_error": ValueError("no\nsuch shape"),
}


def build_oom(request):
    return Source(Built(Failing(FAILURES["oom"]), lambda *_: Inputs((torch.zeros(1),))), (1,))


def build_run_error(request):
    return Source(Built(Failing(FAILURES["run_error"]), lambda *_: Inputs((torch.zeros(1),))), (1,))


def build_nothing(request):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes")


@pytest.mark.parametrize("status", FAILURES)
def test_a_model_that_cannot_run_is_a_finding(status, tmp_path, monkeypatch):
    made = {"oom": build_oom, "run_error": build_run_error}[status]
    monkeypatch.setattr("foretell.profiling.single._load", lambda _: made)
    result, _ = measure(tmp_path)
    assert result["status"] == status
    assert "\n" not in result["error"]
    assert "latency_ms" not in result["values"]


def test_a_model_that_cannot_be_built_is_a_finding(tmp_path, monkeypatch):
    result, _ = measure(tmp_path, model="synthetic:lenett")
    assert (result["status"], "lenet" in result["error"]) == ("build_error", True)
    monkeypatch.setattr("foretell.profiling.single._load", lambda _: build_nothing)
    assert measure(tmp_path)[0]["status"] == "oom"


def test_a_missing_gpu_is_reported_before_anything_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result, stages = measure(tmp_path, device="cuda", runtime="cuda-graph")
    assert (result["status"], stages) == (NO_DEVICE, [])
    assert "no NVIDIA GPU" in result["error"]


def test_a_capture_that_fails_falls_back_to_the_trace(tmp_path, monkeypatch):
    from foretell.profiling.runtimes.cpu import CpuRuntime
    from foretell.profiling.runtimes.cuda import CaptureError

    real = CpuRuntime.measure
    calls = []

    def refuse(self, step, **options):
        calls.append(options)
        if len(calls) == 1:
            raise CaptureError("The step waits for the device.")
        return real(self, step, **options)

    monkeypatch.setattr(CpuRuntime, "measure", refuse)
    result, _ = measure(tmp_path)
    assert result["status"] == "ok"
    assert result["values"]["capture_error"] == "The step waits for the device."
    assert result["kernels"]["name"]


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (LENET, (), (1, 28, 28)),
        (LENET, (32,), (1, 32, 32)),
        ("synthetic:lenet?act=relu&scale=3", (), (1, 28, 28)),
        ("synthetic:mlp?act=relu&widths=8-4-2", (), (8,)),
    ],
)
def test_the_input_shape_is_the_model_s_own_or_the_one_asked_for(model, shape, expected):
    assert build_from_zoo(Request(model, input_shape=shape)).input_shape == expected


@pytest.mark.skipif(not available("transformers"), reason="transformers is an extra: pip install 'foretell[hf]'")
def test_transformers_of_own_arguments_know_their_inputs(tmp_path):
    small = "hidden_size=16&num_attention_heads=2&num_hidden_layers=1&intermediate_size=16"
    result, _ = measure(tmp_path, f"hf:bert?{small}", input_shape=(8,))
    assert (result["status"], result["workload"]["input_shape"]) == ("ok", [8]), result["error"]
    assert build_from_zoo(Request(f"hf:vit?{small}&image_size=32&patch_size=16")).input_shape == (3, 32, 32)


def test_shapes_that_cannot_be_known_or_do_not_fit_are_refused():
    with pytest.raises(InputError, match="--input"):
        build_from_zoo(Request("synthetic:cnn?channels=3-8&kernels=3&strides=1&norm=none&act=relu"))
    with pytest.raises(InputError, match="1x28x28"):
        build_from_zoo(Request(LENET, input_shape=(1, 2, 3, 4)))


@pytest.mark.skipif(not available("timm"), reason="timm is an extra: pip install 'foretell[vision]'")
def test_timm_is_built_for_the_size_asked_for():
    source = build_from_zoo(Request("timm:vit_tiny_patch16_224", input_shape=(64,)))
    assert (source.input_shape, source.spec) == ((3, 64, 64), "timm:vit_tiny_patch16_224?img_size=64")
    with pytest.raises(InputError, match="resnet18"):
        build_from_zoo(Request("timm:resnt18"))
    with pytest.raises(InputError, match="square"):
        build_from_zoo(Request("timm:vit_tiny_patch16_224", input_shape=(3, 64, 32)))


def test_fusion_is_added_to_the_measurement(tmp_path, monkeypatch):
    from foretell.workflows.measure.fusion_worker import Answer

    calls = []

    def answer(*arguments):
        calls.append(arguments)
        return Answer("ok", {"nodes": 12, "groups": 8})

    monkeypatch.setattr("foretell.workflows.measure.fusion_worker.answer", answer)
    result, stages = measure(tmp_path, fusion="inductor", fusion_by="foretell.workflows.measure.fusion_worker:answer")
    assert result["fusion"] == {"backend": "inductor", "status": "ok", "nodes": 12, "groups": 8}
    assert (calls[0][0], calls[0][1].spec, stages[-1]) == ("inductor", LENET, "compiling")


def test_counting_runs_once_and_times_nothing(tmp_path):
    result, stages = measure(tmp_path, counting=True)
    assert (result["status"], stages[-1]) == ("ok", "counting")
    assert "latency_ms" not in result["values"]
