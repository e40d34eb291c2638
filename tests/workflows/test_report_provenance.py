"""Where numbers come from: the predictor's card, prices and grids with dates; the command that remakes a report."""

import shlex

from foretell.devices import Device, find_device
from foretell.testing import tiny_graph, tiny_onnx
from foretell.workflows.advise import Renting
from foretell.workflows.predict import predict
from foretell.workflows.report import gather
from foretell.workflows.report_provenance import ANY_MODEL, provenance, remaking_command


def test_every_price_and_grid_shown_has_its_source() -> None:
    report = gather(tiny_onnx(), device="a100", devices=["a100", "h100", "l4"], renting=Renting(clouds=["aws"]))
    assert report.advice is not None
    assert all(row.usd is not None and row.instance.startswith("aws ") for row in report.advice.rows)
    kinds = [source.kind for source in report.provenance.sources]
    assert kinds == sorted(kinds, reverse=True)
    assert set(kinds) == {"prices", "carbon of the grid"}
    for source in report.provenance.sources:
        assert source.about
        assert source.text
    grids = [place for source in report.provenance.sources if source.kind != "prices" for place in source.about]
    regions = {row.instance.rpartition("(")[2].rstrip(")") for row in report.advice.rows}
    assert all(any(region in grid for grid in grids) for region in regions)


def test_the_card_of_a_fitted_predictor() -> None:
    prediction = predict(tiny_graph(), device="a100")
    analytic = provenance(tiny_graph(), prediction, (), Renting(), "again")
    assert analytic.trained_on is None
    assert analytic.held_out == {}
    assert analytic.graph_hash == tiny_graph().hash
    assert analytic.inputs == ("x: 2x3x16x16",)
    from dataclasses import replace

    fitted = provenance(
        tiny_graph(), replace(prediction, device="h200", predictor="unit-network"), (), Renting(), "again"
    )
    assert fitted.trained_on is not None
    assert fitted.trained_on > 1000
    assert 0 < fitted.held_out["latency_ms"] < 0.2


def test_the_command_has_all_options_of_the_report() -> None:
    device: Device = find_device("l4")
    report = gather(
        tiny_onnx(), device=device, devices=[device, "t4"], batch_size=2, dtype="half", input_shape={"x": (3, 16, 16)},
        name="my model.onnx", renting=Renting(market="spot"),
    )  # fmt: skip
    words = shlex.split(report.provenance.command)
    assert words[:3] == ["foretell", "report", "my model.onnx"]
    line = " ".join(words)
    for part in (
        "--device l4",
        "--batch-size 2",
        "--input x=3x16x16",
        "--dtype fp16",
        "--devices l4,t4",
        "--market spot",
    ):
        assert part in line
    assert "--mode" not in words


def test_a_model_without_a_name_is_a_placeholder() -> None:
    assert remaking_command(None, {"--rate": None}).split()[2] == ANY_MODEL
