from dataclasses import replace

from foretell import predict
from foretell.records import Estimate, KernelRun, Measurement
from foretell.rendering.terminal.measurement import show_measurement
from foretell.testing import tiny_onnx


def measurement(**more):
    return Measurement(
        "timm:resnet18", "NVIDIA H200", "mps:20", "cuda-graph", "training", 2, "bf16", optimizer="sgd",
        input_shape=(3, 64, 64), latency_ms=Estimate(2.0, 1.9, 2.1), power_w=Estimate(250.0, 250.0, 250.0), **more,
    )  # fmt: skip


def test_what_was_measured_is_shown_and_nothing_else(capsys):
    show_measurement(measurement(warnings=("The repetitions differ.",)))
    shown = capsys.readouterr().out
    for words in ("NVIDIA H200 mps:20 · cuda-graph · training · batch 2 · 3x64x64 · bf16 · sgd", "1.9 – 2.1", "250"):
        assert words in shown
    assert "! The repetitions differ." in shown
    assert "energy" not in shown
    assert "predicted" not in shown
    assert "250 – 250" not in shown


def test_every_number_is_on_one_line_with_its_name(capsys):
    peak = Estimate(409.0, 409.0, 409.0)
    plain = Measurement("timm:resnet18", "cpu", None, "eager", "inference", 1, "fp32", process_peak_mib=peak)
    show_measurement(replace(plain, input_shape=(3, 224, 224), latency_ms=Estimate(51.5, 44.7, 58.3)))
    [line] = [line for line in capsys.readouterr().out.splitlines() if "peak memory of the process" in line]
    assert "409" in line


def test_what_is_not_known_leaves_no_gap_and_tokens_have_their_name(capsys):
    plain = Measurement("hf:gpt2", "cpu", None, "eager", "decode", 1, "fp32", input_shape=(64,))
    show_measurement(plain)
    assert "decode · batch 1 · context 64 · fp32" in capsys.readouterr().out
    show_measurement(replace(plain, mode="inference", input_shape=(), runtime="onnxruntime"))
    assert "onnxruntime · inference · batch 1 · fp32" in capsys.readouterr().out


def test_operators_of_a_processor_are_not_called_kernels(capsys):
    plain = Measurement("m", "cpu", None, "onnxruntime", "inference", 1, "fp32")
    facts = {"libraries": {"torch": "2", "onnxruntime": "1.31"}}
    show_measurement(replace(plain, kernels=(KernelRun("k", 3.0, "Conv", ""),), facts=facts))
    shown = capsys.readouterr().out
    assert "1 operator of one run" in shown
    assert "onnxruntime 1.31" in shown
    assert "torch 2" not in shown


def test_the_prediction_stands_beside(capsys):
    predicted = predict(tiny_onnx(), device="h200", use_cache=False)
    show_measurement(measurement(), predicted)
    assert "predicted" in capsys.readouterr().out


def test_kernels_are_summed_by_operator_and_fusion_counted(capsys):
    kernels = [KernelRun("k", 3.0, "aten::conv2d", "a"), KernelRun("k", 1.0, "aten::conv2d", "b")]
    kernels += [KernelRun(f"k{number}", 0.5, f"op{number}", "") for number in range(12)]
    fusion = {"backend": "inductor", "nodes": 12, "groups": 8, "edges": 11, "fused_edges": 4}
    show_measurement(measurement(kernels=tuple(kernels), fusion=fusion))
    shown = capsys.readouterr().out
    assert "14 kernels of one run" in shown
    assert "40.0%" in shown
    assert "3 more" in shown
    assert "inductor: 12 operators in 8 kernels, 4 of 11 edges fused" in shown
