from foretell import predict
from foretell.cli.show_measurement import show_measurement
from foretell.records import Estimate, KernelRun, Measurement
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
