"""From what a user gave to a prediction: what is refused and how, what is taken where nothing is said, what is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.records import Prediction
from foretell.testing import tiny_graph, tiny_onnx
from foretell.workflows.predict import devices, predict
from foretell.workflows.workload import MAX_BATCH, RUNTIMES, load_graph, own_predictor_path, read_input_shape
from small.small_store import write_store


def predict_tiny(**options: Any) -> Prediction:
    return predict(tiny_onnx(), **options)


class Untouched:
    """A model that nobody may look at."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "a10o"}, "Unknown device 'a10o'. Did you mean 'a100-sxm-40gb'? See: foretell devices"),
        ({"mode": "trainin"}, "Unknown mode 'trainin'. Did you mean 'training'?"),
        ({"runtime": "cuda-grph"}, "Unknown runtime 'cuda-grph'. Did you mean 'cuda-graph'?"),
        ({"dtype": "fp33"}, "Unknown dtype 'fp33'. Did you mean 'fp32'?"),
        ({"explain": "kernel"}, "Cannot explain 'kernel'. Did you mean 'kernels'?"),
        ({"slice": "sms:999"}, "Slice 'sms:999' asks for 999 SMs, but h200 has 132: write sms:1 to sms:132."),
        ({"slice": "mps:30", "device": "cpu"}, "Slice 'mps:30' needs a GPU, but 'cpu' is a CPU"),
        ({"optimizer": "adamw"}, "An optimizer ('adamw') needs --mode training."),
        ({"optimizer": "sgd", "mode": "prefill"}, "An optimizer ('sgd') needs --mode training."),
        ({"optimizer": "lion", "mode": "training"}, "Unknown optimizer 'lion'. Choose from: sgd, adamw."),
        ({"gpus": 8}, "Several GPUs are predicted for training, not for inference: use --mode training"),
        ({"gpus": 8, "mode": "training", "parallel": "zero4"}, "Unknown parallelism 'zero4'. Did you mean 'zero3'?"),
        ({"gpus": 16, "mode": "training"}, "16 GPUs are more than the 8 of a node; give the network between nodes"),
        ({"gpus": 8, "mode": "training", "gpus_per_node": 0}, "Got 0 GPUs a node; it must be between 1 and 1,024."),
        ({"gpus": 2, "mode": "training", "network": "wifi"}, "Unknown network 'wifi'. Choose from: infiniband-ndr"),
        ({"gpus": 0, "mode": "training"}, "Got 0 GPUs; it must be a whole number between 1 and 1,024."),
        ({"gpus": 2, "mode": "training", "slice": "mps:30"}, "Several GPUs are predicted for whole GPUs"),
        ({"gpus": 2, "mode": "training", "device": "cpu"}, "cpu is a CPU; several GPUs need a GPU"),
        ({"predictor": "rooflin"}, "Unknown predictor 'rooflin'. Did you mean 'roofline'?"),
        (
            {"predictor": "absent.zip"},
            "There is no file absent.zip; give the name of a predictor, or a file that foretell train",
        ),
        ({"latency_limit_ms": 0}, "The latency limit is 0 ms; it must be a number above 0."),
        ({"runtime": "compiled", "mode": "training"}, "torch.compile was measured in inference, not in training"),
        ({"mode": "training", "dtype": "fp8"}, "A training step in fp8 is not predicted: its master weights"),
        ({"runtime": "onnxruntime"}, "ONNX Runtime was measured on cpu, not on h200: leave out --runtime onnxruntime."),
        ({"threads": 2}, "Threads are those of a CPU, and h200 is none: leave out --threads."),
        ({"threads": 0, "device": "cpu"}, "Got 0 threads; it must be a whole number, 1 or more."),
        ({"threads": 3, "device": "cpu"}, "Nothing was measured of eager PyTorch on 3 threads on cpu, only of: eager"),
        ({"batch_size": 0}, "The batch size is 0; it must be a whole number between 1 and 1048576."),
        ({"batch_size": MAX_BATCH + 1}, "The batch size is 1048577; it must be a whole number between 1 and 1048576."),
        ({"context": 0}, "The context is 0; it must be 1 token or more."),
    ],
)
def test_impossible_options_are_refused_before_the_model_is_read(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ForetellError) as refused:
        predict(Untouched(), **options)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_default_is_one_item_in_full_precision_on_an_h200() -> None:
    explicit = predict_tiny(device="h200", batch_size=1, dtype="fp32", mode="inference", runtime="cuda-graph")
    assert predict_tiny() == explicit
    assert (explicit.device, explicit.batch_size, explicit.dtype, explicit.mode) == ("h200", 1, "fp32", "inference")
    assert (explicit.runtime, explicit.slice, explicit.optimizer, explicit.source) == (
        "cuda-graph",
        None,
        None,
        "predicted",
    )
    assert (explicit.units, explicit.kernels) == ((), ())


def test_the_best_predictor_of_a_device_answers_unless_another_is_named() -> None:
    assert predict_tiny().predictor == "unit-network"
    assert predict_tiny(predictor="roofline").predictor == "roofline"
    assert predict_tiny(device="a100").predictor == "transfer"
    assert predict_tiny(device="cpu").predictor == "unit-trees"
    with pytest.raises(
        ForetellError, match=r"No unit-network is fitted to t4, only to h200\. Use --predictor roofline"
    ):
        predict_tiny(device="t4", predictor="unit-network")


def test_a_cpu_runs_eagerly_whatever_runtime_is_requested() -> None:
    assert predict_tiny(device="cpu").runtime == predict_tiny(device="cpu", runtime="cuda-graph").runtime == "eager"
    assert predict_tiny(runtime="eager").runtime == "eager"
    assert set(RUNTIMES) == {"cuda-graph", "eager", "compiled", "onnxruntime"}


def test_a_cpu_answers_for_two_threads_and_for_onnx_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path))
    usual = predict_tiny(device="cpu")
    two, session = predict_tiny(device="cpu", threads=2), predict_tiny(device="cpu", runtime="onnxruntime")
    assert (usual.threads, two.threads, session.runtime) == (1, 2, "onnxruntime")
    assert [one.predictor for one in (usual, two, session)] == ["unit-trees", "cpu-runs", "cpu-runs"]
    assert len({one.latency_ms.value for one in (usual, two, session)}) == 3
    assert "threads" not in usual.to_dict()
    assert two.to_dict()["threads"] == 2
    # what adapt learned is of one thread of eager PyTorch
    own_predictor_path("cpu").parent.mkdir(parents=True)
    own_predictor_path("cpu").write_bytes(b"")
    again = predict_tiny(device="cpu", threads=2)
    assert again.latency_ms == two.latency_ms
    assert "What foretell adapt learned is of eager PyTorch on one thread; it is not used here." in again.warnings


@pytest.mark.parametrize(("written", "dtype"), [("float16", "fp16"), ("torch.bfloat16", "bf16"), ("FP32", "fp32")])
def test_a_precision_has_several_spellings(written: str, dtype: str) -> None:
    assert predict_tiny(dtype=written).dtype == dtype
    assert predict_tiny(dtype=written) == predict_tiny(dtype=dtype)


def test_inference_casts_the_model_and_training_casts_as_it_runs() -> None:
    def memory_mib(**options: Any) -> float:
        memory = predict_tiny(predictor="roofline", batch_size=4096, **options).memory_mib
        assert memory is not None
        return memory.value

    assert memory_mib(dtype="fp16") < 0.7 * memory_mib(dtype="fp32")
    operators = {row.operator for row in predict_tiny(mode="training", dtype="bf16", predictor="roofline").breakdown}
    assert "Cast" in operators
    assert "Cast" not in {row.operator for row in predict_tiny(dtype="bf16", predictor="roofline").breakdown}
    assert "Cast" not in {row.operator for row in predict_tiny(mode="training", predictor="roofline").breakdown}


def test_training_takes_momentum_unless_another_optimizer_is_named() -> None:
    plain, sgd, adamw = (
        predict_tiny(mode="training", **options) for options in ({}, {"optimizer": "sgd"}, {"optimizer": "adamw"})
    )
    assert plain == sgd
    assert (sgd.optimizer, adamw.optimizer) == ("sgd", "adamw")
    assert sgd.memory_mib is not None
    assert adamw.memory_mib is not None
    assert adamw != sgd
    assert sgd.mode == adamw.mode == "training"


def test_the_batch_is_the_requested_one_and_throughput_counts_its_items() -> None:
    for batch_size in (1, 7, 64):
        prediction = predict_tiny(batch_size=batch_size, predictor="roofline")
        assert prediction.batch_size == batch_size
        assert prediction.latency_ms is not None
        assert prediction.throughput_per_s is not None
        assert prediction.throughput_per_s.value == pytest.approx(batch_size * 1000 / prediction.latency_ms.value)
    assert predict(tiny_graph(batch_size=4), batch_size=2).batch_size == 2


def test_a_slice_is_in_the_prediction_and_takes_longer() -> None:
    full = predict_tiny(batch_size=4096, predictor="roofline")
    part = predict_tiny(batch_size=4096, predictor="roofline", slice="mig:1g.18gb")
    assert part.slice == "mig:1g.18gb"
    assert part.latency_ms is not None
    assert full.latency_ms is not None
    assert part.latency_ms.value > full.latency_ms.value
    assert full.mig is not None
    assert part.mig is part.mig_reason is None, "what is a slice already needs no profile"


def test_a_device_may_be_given_as_a_record() -> None:
    assert predict_tiny(device=find_device("l4")) == predict_tiny(device="L4")
    assert "h200" in [device.id for device in devices()]


@pytest.mark.parametrize(
    ("shape", "texts"),
    [
        (None, []),
        ("", []),
        ((3, 224, 224), ["3x224x224"]),
        ([3, 224, 224], ["3x224x224"]),
        (["ids=128:int64", "mask=128"], ["ids=128:int64", "mask=128"]),
        ({"a": (3, 4), "b": (5,)}, ["a=3x4", "b=5"]),
        ({"a": ()}, ["a=scalar"]),
    ],
)
def test_shapes_have_several_spellings(shape: Any, texts: list[str]) -> None:
    assert read_input_shape(shape) == (read_input_shape(texts) if texts else ())


def test_a_graph_is_cast_only_where_a_precision_is_asked_for() -> None:
    plain, half = load_graph(tiny_onnx()), load_graph(tiny_onnx(), dtype="half", batch_size=MAX_BATCH)
    assert {tensor.dtype for tensor in plain.tensors.values()} == {"fp32"}
    assert {tensor.dtype for tensor in half.tensors.values()} == {"fp16"}
    assert (plain.batch_size, half.batch_size) == (1, MAX_BATCH)


def test_a_stored_measurement_replaces_the_prediction(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = write_store(tmp_path, (8,))
    options: dict[str, Any] = {"batch_size": 16, "dtype": "fp16", "predictor": "roofline"}
    predicted, recalled = predict(tiny_graph(1, 8), **options), predict(tiny_graph(1, 8), store=store, **options)
    assert (predicted.source, recalled.source) == ("predicted", "measured")
    assert predicted.memory_mib is not None
    assert recalled.memory_mib is not None
    assert recalled.memory_mib.value == pytest.approx(1.1 * predicted.memory_mib.value)
    other = predict(tiny_graph(1, 8), store=store, **options | {"batch_size": 17})
    assert other.source == "predicted", "another batch was never measured"
    with pytest.raises(ForetellError, match=r"There is no folder .*absent with measurements"):
        predict(tiny_graph(1, 8), store=tmp_path / "absent", **options)


def test_units_and_kernels_are_explained_where_asked(tmp_path: Path) -> None:
    units, kernels = predict_tiny(explain=True), predict_tiny(explain="kernels")
    assert units.units
    assert not units.kernels
    assert kernels.units
    assert kernels.kernels
    assert predict_tiny(explain="units") == units
    events = tmp_path / "trace.json"
    assert not predict_tiny(trace=events).units
    assert json.loads(events.read_text())


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ForetellError, match=r"Cannot write the trace .*file/trace\.json: .*\. Choose another --trace\."
    ):
        predict_tiny(trace=tmp_path / "file" / "trace.json")


def test_a_missed_latency_limit_is_a_warning_and_a_met_one_is_not() -> None:
    prediction = predict_tiny(device="t4")
    assert prediction.latency_ms is not None
    exactly = predict_tiny(device="t4", latency_limit_ms=prediction.latency_ms.value)
    assert exactly.warnings == prediction.warnings
    missed = predict_tiny(device="t4", latency_limit_ms=prediction.latency_ms.value / 2)
    (late,) = set(missed.warnings) - set(prediction.warnings)
    assert late.startswith(f"Takes about {prediction.latency_ms.value:.3g} ms here, more than the limit of")


def test_the_old_word_for_a_compiled_model_is_understood() -> None:
    old, new = (predict(tiny_onnx(), device="h200", runtime=word, batch_size=64) for word in ("compile", "compiled"))
    assert old == new
    assert new.runtime == "compiled"


@pytest.mark.parametrize(("device", "word"), [("a100", "no fp8 units"), ("h200", "No operator was measured in fp8")])
def test_a_format_that_was_not_measured_is_said(device: str, word: str) -> None:
    plain, small = (predict_tiny(device=device, batch_size=8, dtype=dtype) for dtype in ("fp16", "fp8"))
    assert any(word in warning for warning in small.warnings)
    assert plain.latency_ms is not None
    assert small.latency_ms is not None
    assert small.latency_ms.high / small.latency_ms.low > 1.5 * plain.latency_ms.high / plain.latency_ms.low


def test_products_in_8_bits_were_not_measured_and_the_answer_says_so() -> None:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((64, 64), np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in "xy"]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", made[:1], made[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    answer = predict(proto, device="h200", dtype="fp16")
    assert any("No operator was measured in int8" in warning for warning in answer.warnings)
    assert answer.latency_ms is not None
    assert answer.latency_ms.high > 1.4 * answer.latency_ms.value
    old = predict(proto, device="p100", dtype="fp16")
    assert any("p100 has no int8 units" in warning for warning in old.warnings)
