"""A report: one graph for all parts, the same numbers as the other commands, a reason for what is missing."""

from collections.abc import Iterator
from typing import Any

import pytest

from foretell.advisors.placement import Requirements
from foretell.devices import find_device
from foretell.errors import InputError, ModelError, UnknownNameError
from foretell.graph import Node
from foretell.rendering.html.report import report_page
from foretell.rendering.html.report_content import ADVICE, KERNELS, ROOFLINE
from foretell.testing import chain, tiny_onnx
from foretell.workflows import report as workflow
from foretell.workflows.advise import Renting, advise_serving
from foretell.workflows.predict import predict
from foretell.workflows.report import BATCH_SIZES, COMPARED, gather
from foretell.workflows.sweep import Point, sweep


def test_the_report_has_the_numbers_of_the_other_commands() -> None:
    report = gather(tiny_onnx(), device="a100", batch_size=3, dtype="fp16", devices=["a100", "t4"])
    prediction = predict(tiny_onnx(), device="a100", batch_size=3, dtype="fp16")
    assert report.prediction.latency_ms is not None
    assert report.prediction.latency_ms == prediction.latency_ms
    assert report.name == "tiny"
    assert report.roofline is not None
    assert report.roofline.latency_ms == pytest.approx(report.prediction.latency_ms.value)
    assert {point.operator for point in report.roofline.points} == {row.operator for row in prediction.breakdown}
    assert "FLOP a second" in report_page(report)
    assert [row.prediction.batch_size for row in report.batches] == sorted({*BATCH_SIZES, 3})
    assert [row.prediction.device for row in report.devices] == ["a100-sxm-40gb", "t4"]
    assert report.devices[0].prediction.latency_ms == prediction.latency_ms
    placement = advise_serving(tiny_onnx(), Requirements(), devices=["a100", "t4"], dtype="fp16", mig=False)
    assert report.advice is not None
    assert report.advice.rows[0].instance == placement.choices[0].offer.name
    assert report.advice.rows[0].usd == placement.choices[0].cost.usd_per_million
    assert len(report.advice.rows) == 2
    assert sum(1 + row.others for row in report.advice.rows) == len(placement.choices)


def test_occupancy_and_where_it_saturates_are_shown_where_they_are_known() -> None:
    report = gather(tiny_onnx(), device="h200", batch_size=4, dtype="fp16", devices=["h200"])
    assert report.saturation.startswith("On h200 at fp16 occupancy")
    page = report_page(report)
    assert report.saturation in page
    assert "occupancy, %" in page
    other = gather(tiny_onnx(), device="a100", batch_size=4, dtype="fp16", devices=["a100"])
    assert not other.saturation
    assert "occupancy, %" not in report_page(other)


def test_the_model_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretell.frontends.onnx.frontend import OnnxFrontend

    read, load = [], OnnxFrontend.load
    monkeypatch.setattr(OnnxFrontend, "load", lambda self, request: read.append(1) or load(self, request))
    gather(tiny_onnx(), device="l4", devices=["l4", "t4"])
    assert read == [1]


def test_the_device_of_the_report_is_among_the_compared() -> None:
    report = gather(tiny_onnx(), device="p4", requirements=Requirements(slo_ms=1e-6))
    assert report.devices[0].prediction.device == "p4"
    names = {row.name for row in report.devices} | set(report.missing)
    assert {find_device(name).name for name in (*COMPARED, "p4")} <= names


def test_memory_is_split_without_rest() -> None:
    memory = gather(tiny_onnx(), device="a100", devices=["a100"]).memory
    assert memory is not None
    assert [name for name, _ in memory.parts] == ["weights", "activations, workspaces", "context of the driver"]
    assert sum(mib for _, mib in memory.parts) == pytest.approx(memory.need.value)
    trained = gather(tiny_onnx(), device="a100", devices=["a100"], mode="training", optimizer="adamw").memory
    assert trained is not None
    assert "optimizer" in dict(trained.parts)
    cpu = gather(tiny_onnx(), device="cpu", devices=["t4"]).memory
    assert cpu is not None
    assert [name for name, _ in cpu.parts] == ["weights", "activations, workspaces"]


def test_a_training_is_advised_in_hours() -> None:
    report = gather(tiny_onnx(), device="a100", devices=["a100"], batch_size=4, mode="training")
    assert report.advice is not None
    assert report.advice.amount == "100,000 steps"
    assert report.advice.rows[0].hours is not None
    assert "hours" in report_page(report)


def too_large() -> Any:
    """A product with 400 GiB of weights."""
    nodes = [Node("product", "MatMul", ("x", "w"), ("y",))]
    return chain(nodes, {"x": (1, 320_000), "w": (320_000, 320_000), "y": (1, 320_000)}, ["x"], ["y"])


def test_a_model_too_large_for_every_device_has_a_page() -> None:
    report = gather(too_large(), device="t4", devices=["t4", "l4"])
    page = report_page(report)
    assert "It does not fit: 382 GiB are needed" in page
    assert "It does not fit at any batch size." in page
    assert "It fits on none of these devices." in page
    assert "No place meets the requirements" in page
    assert report.advice is not None
    assert {place for place, _ in report.advice.refused} == {"t4", "l4"}


def test_a_device_without_a_learned_predictor_says_so() -> None:
    report = gather(tiny_onnx(), device="a30", devices=["a30"])
    assert "a30" in report.missing[KERNELS]
    assert report.missing[KERNELS] not in report.prediction.warnings  # it is said in its place
    page = report_page(report)
    assert "not fitted to measurements of this device" in page
    assert "uncalibrated" in page


def test_a_device_that_nobody_rents_out_says_so() -> None:
    report = gather(tiny_onnx(), device="a30", devices=["a30"])
    assert report.advice is not None
    assert not report.advice.rows
    assert report.advice.refused == (("a30", "price: unknown for every instance with a a30"),)


def test_a_model_without_work_has_a_page() -> None:
    view = chain([Node("same", "Identity", ("x",), ("y",))], {"x": (1, 4), "y": (1, 4)}, ["x"], ["y"])
    report = gather(view, device="a100", devices=["a100"])
    assert "nothing to draw" in report.missing[ROOFLINE]
    assert report.missing[ROOFLINE] in report_page(report).replace("&#x27;", "'")


def test_a_training_keeps_no_limit() -> None:
    with pytest.raises(InputError, match="leave them out"):
        gather(tiny_onnx(), device="a100", mode="training", requirements=Requirements(slo_ms=5))
    report = gather(tiny_onnx(), device="l4", devices=["l4"], requirements=Requirements(slo_ms=5, rate_per_s=10))
    assert report.advice is not None
    assert report.advice.limits == ("a latency of 5 ms at most", "10 requests a second")
    assert "Requirements: a latency of 5 ms at most; 10 requests a second." in report_page(report)


def test_one_broken_device_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Any, **options: Any) -> Iterator[Point]:
        if options["devices"][0].id == "t4":
            raise ModelError("fitted to nothing")
        return sweep(model, **options)

    monkeypatch.setattr(workflow, "sweep", broken)
    report = gather(tiny_onnx(), device="a100", devices=["a100", "t4", "l4"])
    assert [row.prediction.device for row in report.devices] == ["a100-sxm-40gb", "l4"]
    assert report.missing["Tesla T4"] == "fitted to nothing"
    assert "Tesla T4: fitted to nothing" in report_page(report)


def test_advice_that_cannot_be_given_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ModelError("no advice today")

    monkeypatch.setattr(workflow, "advise_serving", broken)
    report = gather(tiny_onnx(), device="a100", devices=["a100"])
    assert report.advice is None
    assert report.missing[ADVICE] == "no advice today"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"batch_size": 0}, InputError),
        ({"mode": "guessing"}, InputError),
        ({"renting": Renting(clouds=["nebula"])}, InputError),
        ({"renting": Renting(country="Atlantis")}, UnknownNameError),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        gather(tiny_onnx(), device="a100", devices=["a100"], **wrong)
