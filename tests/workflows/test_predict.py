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
from foretell.workflows.workload import MAX_BATCH, RUNTIMES, load_graph, read_input_shape
from small.small_store import write_store


def tell(**given: Any) -> Prediction:
    return predict(tiny_onnx(), **given)


class Untouched:
    """A model that nobody may look at."""


@pytest.mark.parametrize(
    ("given", "words"),
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
        ({"predictor": "rooflin"}, "Unknown predictor 'rooflin'. Did you mean 'roofline'?"),
        (
            {"predictor": "absent.zip"},
            "There is no file absent.zip; give the name of a predictor, or a file that foretell train",
        ),
        ({"latency_limit_ms": 0}, "The latency limit is 0 ms; it must be a number above 0."),
        ({"runtime": "compile", "mode": "training"}, "torch.compile was measured in inference, not in training"),
        ({"batch_size": 0}, "The batch size is 0; it must be a whole number between 1 and 1048576."),
        ({"batch_size": MAX_BATCH + 1}, "The batch size is 1048577; it must be a whole number between 1 and 1048576."),
        ({"context": 0}, "The context is 0; it must be 1 token or more."),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_model_is_read(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ForetellError) as refused:
        predict(Untouched(), **given)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_where_nothing_is_said_it_is_one_item_in_full_precision_on_an_h200() -> None:
    said = tell(device="h200", batch_size=1, dtype="fp32", mode="inference", runtime="cuda-graph")
    assert tell() == said
    assert (said.device, said.batch_size, said.dtype, said.mode) == ("h200", 1, "fp32", "inference")
    assert (said.runtime, said.slice, said.optimizer, said.source) == ("cuda-graph", None, None, "predicted")
    assert (said.units, said.kernels) == ((), ())


def test_the_best_predictor_of_a_device_answers_unless_another_is_named() -> None:
    assert tell().predictor == "unit-network"
    assert tell(predictor="roofline").predictor == "roofline"
    assert tell(device="a100").predictor == "transfer"
    assert tell(device="cpu").predictor == "roofline"
    with pytest.raises(
        ForetellError, match=r"No unit-network is fitted to t4, only to h200\. Use --predictor roofline"
    ):
        tell(device="t4", predictor="unit-network")


def test_a_cpu_runs_eagerly_whatever_was_asked() -> None:
    assert tell(device="cpu").runtime == tell(device="cpu", runtime="cuda-graph").runtime == "eager"
    assert tell(runtime="eager").runtime == "eager"
    assert set(RUNTIMES) == {"cuda-graph", "eager", "compile"}


@pytest.mark.parametrize(("written", "dtype"), [("float16", "fp16"), ("torch.bfloat16", "bf16"), ("FP32", "fp32")])
def test_a_precision_is_taken_as_people_write_it(written: str, dtype: str) -> None:
    assert tell(dtype=written).dtype == dtype
    assert tell(dtype=written) == tell(dtype=dtype)


def test_inference_casts_the_model_and_training_casts_as_it_runs() -> None:
    def memory_mib(**given: Any) -> float:
        found = tell(predictor="roofline", batch_size=4096, **given).memory_mib
        assert found is not None
        return found.value

    assert memory_mib(dtype="fp16") < 0.7 * memory_mib(dtype="fp32")
    operators = {row.operator for row in tell(mode="training", dtype="bf16", predictor="roofline").breakdown}
    assert "Cast" in operators
    assert "Cast" not in {row.operator for row in tell(dtype="bf16", predictor="roofline").breakdown}
    assert "Cast" not in {row.operator for row in tell(mode="training", predictor="roofline").breakdown}


def test_training_takes_momentum_unless_another_optimizer_is_named() -> None:
    plain, sgd, adamw = (tell(mode="training", **given) for given in ({}, {"optimizer": "sgd"}, {"optimizer": "adamw"}))
    assert plain == sgd
    assert (sgd.optimizer, adamw.optimizer) == ("sgd", "adamw")
    assert sgd.memory_mib is not None
    assert adamw.memory_mib is not None
    assert adamw != sgd
    assert sgd.mode == adamw.mode == "training"


def test_the_batch_is_what_was_asked_for_and_its_items_are_counted_each_second() -> None:
    for batch_size in (1, 7, 64):
        found = tell(batch_size=batch_size, predictor="roofline")
        assert found.batch_size == batch_size
        assert found.latency_ms is not None
        assert found.throughput_per_s is not None
        assert found.throughput_per_s.value == pytest.approx(batch_size * 1000 / found.latency_ms.value)
    assert predict(tiny_graph(batch_size=4), batch_size=2).batch_size == 2


def test_a_slice_is_told_and_takes_longer() -> None:
    whole = tell(batch_size=4096, predictor="roofline")
    part = tell(batch_size=4096, predictor="roofline", slice="mig:1g.18gb")
    assert part.slice == "mig:1g.18gb"
    assert part.latency_ms is not None
    assert whole.latency_ms is not None
    assert part.latency_ms.value > whole.latency_ms.value
    assert whole.mig is not None
    assert part.mig is part.mig_reason is None, "what is a slice already needs no profile"


def test_a_device_may_be_given_as_a_record() -> None:
    assert tell(device=find_device("l4")) == tell(device="L4")
    assert "h200" in [device.id for device in devices()]


@pytest.mark.parametrize(
    ("given", "texts"),
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
def test_shapes_are_taken_as_people_write_them(given: Any, texts: list[str]) -> None:
    assert read_input_shape(given) == (read_input_shape(texts) if texts else ())


def test_a_graph_is_cast_only_where_a_precision_is_asked_for() -> None:
    plain, half = load_graph(tiny_onnx()), load_graph(tiny_onnx(), dtype="half", batch_size=MAX_BATCH)
    assert {tensor.dtype for tensor in plain.tensors.values()} == {"fp32"}
    assert {tensor.dtype for tensor in half.tensors.values()} == {"fp16"}
    assert (plain.batch_size, half.batch_size) == (1, MAX_BATCH)


def test_what_was_measured_is_told_instead(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = write_store(tmp_path, (8,))
    asked: dict[str, Any] = {"batch_size": 16, "dtype": "fp16", "predictor": "roofline"}
    predicted, found = predict(tiny_graph(1, 8), **asked), predict(tiny_graph(1, 8), store=store, **asked)
    assert (predicted.source, found.source) == ("predicted", "measured")
    assert predicted.memory_mib is not None
    assert found.memory_mib is not None
    assert found.memory_mib.value == pytest.approx(1.1 * predicted.memory_mib.value)
    other = predict(tiny_graph(1, 8), store=store, **asked | {"batch_size": 17})
    assert other.source == "predicted", "another batch was never measured"
    with pytest.raises(ForetellError, match=r"There is no folder .*absent with measurements"):
        predict(tiny_graph(1, 8), store=tmp_path / "absent", **asked)


def test_units_and_kernels_are_explained_where_asked(tmp_path: Path) -> None:
    units, kernels = tell(explain=True), tell(explain="kernels")
    assert units.units
    assert not units.kernels
    assert kernels.units
    assert kernels.kernels
    assert tell(explain="units") == units
    events = tmp_path / "trace.json"
    assert not tell(trace=events).units
    assert json.loads(events.read_text())


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ForetellError, match=r"Cannot write the trace .*file/trace\.json: .*\. Choose another --trace\."
    ):
        tell(trace=tmp_path / "file" / "trace.json")


def test_a_limit_that_is_missed_is_said_and_one_that_is_met_is_not() -> None:
    found = tell(device="t4")
    assert found.latency_ms is not None
    exactly = tell(device="t4", latency_limit_ms=found.latency_ms.value)
    assert exactly.warnings == found.warnings
    missed = tell(device="t4", latency_limit_ms=found.latency_ms.value / 2)
    (late,) = set(missed.warnings) - set(found.warnings)
    assert late.startswith(f"Takes about {found.latency_ms.value:.3g} ms here, more than the limit of")
