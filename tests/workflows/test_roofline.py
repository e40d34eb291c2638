"""The roofline of workloads, by hand: ceilings of the catalogue or measured, least times, limits, groups."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretell.devices import find_device, parse_slice
from foretell.devices.ceilings import Ceilings
from foretell.errors import DeviceError, InputError, MissingExtraError
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Target, Workload
from foretell.rendering.svg.canvas import with_fixed_colours
from foretell.rendering.svg.roofline import LIMITS, Roofline, draw_roofline
from foretell.testing import one_node, tiny_graph, tiny_onnx
from foretell.workflows.measure.characterise import write_own_ceilings
from foretell.workflows.roofline import bitmap, roofline, roofline_of, with_measured_peaks, write_roofline

A100 = find_device("a100")
# as chapter 3 of the thesis has them: stream kernels, and CUTLASS for the tensor cores
MEASURED = Ceilings(A100.id, A100.name, "2023-01-01", "a thesis", 1346.0, 3877.6, {"fp32": 18.5, "fp16": 292.2})
PRODUCT = one_node("MatMul", [(1024, 1024), (1024, 1024)], [(1024, 1024)], weights=[1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def of_product(dtype: str = "fp32", slice_sms: int | None = None) -> Roofline:
    part = parse_slice(f"sms:{slice_sms}", A100) if slice_sms else None
    workload = Workload(PRODUCT.with_dtype(dtype), Target(A100, part), dtype)
    return roofline_of(workload, RooflinePredictor())


def test_a_product_by_hand() -> None:
    (point,) = of_product().points
    assert point.flops == 2 * 1024**3
    assert point.bytes == 3 * 4 * 1024**2
    assert point.intensity == pytest.approx(1024 / 6)
    least_us = 2 * 1024**3 / 19.5e12 * 1e6
    assert point.reached == pytest.approx(least_us / point.time_us)
    assert point.limit == "compute"
    assert point.share == 1


def test_without_a_measurement_the_peaks_are_the_ceilings_and_the_cache_has_none() -> None:
    chart = of_product()
    assert [(roof.name, roof.measured) for roof in chart.roofs] == [
        ("HBM", False), ("fp32", False), ("tf32 tensor cores", False), ("bf16, fp16 tensor cores", False),
    ]  # fmt: skip
    assert chart.roofs[0].per_s == pytest.approx(1555e9)
    assert "foretell characterise" in chart.notes[0]


def test_measured_ceilings_replace_the_peaks() -> None:
    peak = of_product()
    write_own_ceilings({A100.id: MEASURED})
    chart = of_product()
    rates = {roof.name: (roof.per_s, roof.measured) for roof in chart.roofs}
    assert rates["HBM"] == (pytest.approx(1346e9), True)
    assert rates["L2"] == (pytest.approx(3877.6e9), True)
    assert rates["fp32"] == (pytest.approx(18.5e12), True)
    assert rates["fp16 tensor cores"] == (pytest.approx(292.2e12), True)
    assert rates["bf16 tensor cores"] == (pytest.approx(312e12), False)
    assert chart.points[0].reached == pytest.approx(peak.points[0].reached * 19.5 / 18.5)
    assert "a thesis" in chart.notes[0]


def test_l1_and_plain_fp16_are_roofs_where_they_were_measured() -> None:
    write_own_ceilings({A100.id: replace(MEASURED, l1_gb_per_s=19287.3, plain_tflops={"fp16": 58.8})})
    rates = {roof.name: (roof.per_s, roof.measured) for roof in of_product(slice_sms=27).roofs}
    assert rates["L1"] == (pytest.approx(19287.3e9 / 4), True), "every SM has its own"
    half = {roof.name: roof for roof in of_product("fp16").roofs}
    assert (half["fp16"].per_s, half["fp16"].measured, half["fp16"].used) == (pytest.approx(58.8e12), True, False)
    assert "fp16" not in rates, "of no use to fp32"


def test_half_precision_reaches_for_the_tensor_cores() -> None:
    used = {roof.name for roof in of_product("fp16").roofs if roof.used}
    assert used == {"HBM", "bf16, fp16 tensor cores"}
    assert {roof.name for roof in of_product().roofs if roof.used} == {"HBM", "fp32"}


def test_a_slice_has_lower_ceilings() -> None:
    full, part = of_product(), of_product(slice_sms=27)
    assert part.slice == "sms:27"
    assert part.roofs[1].per_s == pytest.approx(full.roofs[1].per_s / 4)
    assert part.roofs[0].per_s < full.roofs[0].per_s


def test_measured_rates_of_a_cpu_are_those_of_its_vector_units() -> None:
    cpu = find_device("cpu")
    ceilings = with_measured_peaks(
        cpu, Ceilings("cpu", "this", "2026-01-01", "s", 20.0, 100.0, {"fp32": 0.2, "bf16": 0.4})
    )
    assert (ceilings.vector_tflops["bf16"], ceilings.bandwidth_gb_per_s) == (0.4, 20.0)
    assert ceilings.tensor_tflops == {}
    assert with_measured_peaks(cpu, None) is cpu


def test_groups_and_points_are_all_of_the_time() -> None:
    workload = Workload(tiny_graph(batch_size=64), Target(A100), mode="training", optimizer="sgd")
    chart = roofline_of(workload, RooflinePredictor())
    assert sum(point.share for point in chart.points) == pytest.approx(1)
    assert sum(group.share for group in chart.groups) == pytest.approx(1)
    assert sum(group.time_us for group in chart.groups) == pytest.approx(chart.latency_ms * 1e3)
    assert {point.group for point in chart.points} == {group.name for group in chart.groups}
    assert "Conv (backward)" in {group.name for group in chart.groups}
    assert {point.limit for point in chart.points} <= set(LIMITS)


def test_equal_units_are_one_point() -> None:
    chart = roofline(tiny_onnx(), device="h200", batch_size=2, predictor="roofline")
    assert [point.count for point in chart.points] == [1] * len(chart.points)
    assert all(point.limit == "launch" for point in chart.points), "nothing of it fills a GPU"


def test_faster_than_the_memory_means_the_cache() -> None:
    class Quick(RooflinePredictor):
        def predict(self, workload: Workload) -> object:  # type: ignore[override]
            prediction = super().predict(workload)
            assert prediction.latency_ms is not None
            return replace(prediction, latency_ms=prediction.latency_ms.scaled(0.05))

    relu = one_node("Relu", [(4096, 4096)], [(4096, 4096)])
    chart = roofline_of(Workload(relu, Target(A100)), Quick())  # type: ignore[arg-type]
    assert chart.points[0].reached > 1
    assert chart.points[0].limit == "cache"


def test_kernels_of_a_device_without_traces_are_grouped_by_operator() -> None:
    chart = roofline(tiny_onnx(), device="a100", by="kernel")
    assert chart.by == "operator"
    assert "classes of kernels" in chart.notes[0]


def test_kernels_group_the_points() -> None:
    from foretell.predictors.kernels.classifier import shipped

    if shipped("h200") is None:
        pytest.skip("no classes of kernels are shipped")
    chart = roofline(tiny_onnx(), by="kernel", predictor="roofline")
    assert chart.by == "kernel"
    assert all(point.group == point.kernel for point in chart.points)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"by": "layer"}, InputError),
        ({"mode": "dreaming"}, InputError),
        ({"optimizer": "sgd"}, InputError),
        ({"device": "h201"}, DeviceError),
        ({"slice": "mig:9g.1gb"}, DeviceError),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        roofline(tiny_onnx(), **wrong)  # type: ignore[arg-type]


def test_files_by_their_names(folder: Path) -> None:
    chart = of_product()
    write_roofline(chart, folder / "a" / "roof.svg")
    assert ElementTree.parse(folder / "a" / "roof.svg").getroot().tag.endswith("svg")
    write_roofline(chart, folder / "roof.html")
    assert (folder / "roof.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(InputError, match=r"'roof.pdf'; use the suffix .svg, .png or .html"):
        write_roofline(chart, folder / "roof.pdf")
    (folder / "file").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="Cannot write"):
        write_roofline(chart, folder / "file" / "roof.svg")


def test_a_bitmap_in_light_and_dark_has_text(folder: Path) -> None:
    pytest.importorskip("resvg_py")
    pytest.importorskip("font_source_sans_pro")
    chart = of_product()
    for dark in (False, True):
        write_roofline(chart, folder / f"{dark}.png", dark=dark)
        assert (folder / f"{dark}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "True.png").read_bytes() != (folder / "False.png").read_bytes()
    svg = with_fixed_colours(draw_roofline(chart))
    assert bitmap(svg) != bitmap(re.sub(r"<text.*?</text>", "", svg)), "there is a font"


def test_without_the_library_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.optional.available", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"resvg_py: pip install 'foretell\[pictures\]'"):
        write_roofline(of_product(), folder / "roof.png")
