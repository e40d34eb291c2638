"""The picture of a roofline: places on logarithmic axes, area by time, names, what is left out is told."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from foretell.rendering.svg.roofline import LIMITS, Group, Point, Roof, Roofline, draw_roofline, tooltip

SVG = "{http://www.w3.org/2000/svg}"
ROOFS = (
    Roof("HBM", "memory", 1e12, True, True, "s"),
    Roof("L2", "memory", 4e12, False, True, "s"),
    Roof("fp32", "compute", 2e13, True, False, "s"),
    Roof("fp16 tensor cores", "compute", 3e14, False, False, "s"),
)
CONV = Point("Conv", "layer1.conv", "1x3 → 1x8", "Conv", 3, 10**9, 10**7, 100.0, 0.6, 0.5, "compute")
RELU = Point("Relu", "act", "1x8 → 1x8", "Relu", 1, 10**6, 8 * 10**6, 10.0, 0.1, 0.8, "memory")
COPY = Point("Concat", "join", "", "Concat", 1, 0, 10**6, 5.0, 0.3, 0.2, "kernel")
GROUPS = tuple(
    Group(point.group, point.count, point.flops, point.bytes, point.time_us, point.share, point.reached, point.limit)
    for point in (CONV, COPY, RELU)
)
ROOFLINE = Roofline(
    "net", "h200", "NVIDIA H200", None, 8, "fp32", "inference", "roofline", "operator", 0.5, ROOFS, (CONV, COPY, RELU),
    GROUPS,
)  # fmt: skip


def circle(svg: str) -> ElementTree.Element:
    return next(e for e in ElementTree.fromstring(svg).iter(f"{SVG}circle") if e.find(f"{SVG}title") is not None)


def lines(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_point_is_the_work_of_a_second_over_that_of_a_byte() -> None:
    assert CONV.intensity == 100
    assert CONV.flops_per_s == pytest.approx(1e13)
    assert COPY.intensity == 0
    assert replace(COPY, bytes=0).intensity is None


def test_ten_times_the_time_is_a_decade_lower() -> None:
    slower = replace(ROOFLINE, points=(CONV, COPY, replace(RELU, time_us=20.0)))
    ends = {}
    for name, drawn in {"fast": ROOFLINE, "slow": slower}.items():
        marks = [e for e in ElementTree.fromstring(draw_roofline(drawn)).iter(f"{SVG}g") if e.get("data-row") == "2"]
        ends[name] = ElementTree.tostring(marks[0])
    assert ends["fast"] != ends["slow"]


def test_every_roof_is_named_and_says_whether_it_was_measured() -> None:
    shown = lines(draw_roofline(ROOFLINE))
    assert "HBM 1 TB/s, measured" in shown
    assert "L2 4 TB/s, measured" in shown
    assert "fp32 20 TFLOP/s" in shown


def test_area_is_share_of_the_time() -> None:
    radius = float(circle(draw_roofline(replace(ROOFLINE, points=(replace(CONV, share=0.16), RELU)))).get("r", 0))
    quarter = float(circle(draw_roofline(replace(ROOFLINE, points=(replace(CONV, share=0.04), RELU)))).get("r", 0))
    assert radius == pytest.approx(2 * quarter, rel=0.01)
    tiny = float(circle(draw_roofline(replace(ROOFLINE, points=(replace(CONV, share=1e-9), RELU)))).get("r", 0))
    assert tiny > 2, "every point can be seen"


def test_points_outside_the_chart_are_listed() -> None:
    assert any("no arithmetic: 30.0%" in line for line in lines(draw_roofline(ROOFLINE)))
    slow = replace(RELU, time_us=1e6)
    shown = lines(draw_roofline(replace(ROOFLINE, points=(CONV, COPY, slow))))
    assert any("Further below: 10.0%" in line for line in shown)
    assert 'data-row="1"' not in draw_roofline(ROOFLINE)


def test_of_many_groups_the_rest_are_one() -> None:
    groups = tuple(replace(GROUPS[0], name=f"op{n}", share=0.1) for n in range(9))
    points = tuple(replace(CONV, group=f"op{n}", time_us=100.0 + n) for n in range(9))
    shown = lines(draw_roofline(replace(ROOFLINE, groups=groups, points=points)))
    assert "op4 10%" in shown
    assert "4 others 40%" in shown
    assert not [line for line in shown if line.startswith("op5")]


def test_roofs_of_nearly_one_height_have_names_apart() -> None:
    close = (
        *ROOFS[:2],
        Roof("bf16", "compute", 3e14, True, True, "s"),
        Roof("fp16", "compute", 2.95e14, True, True, "s"),
    )
    texts = ElementTree.fromstring(draw_roofline(replace(ROOFLINE, roofs=close))).iter(f"{SVG}text")
    heights = [float(e.get("y", 0)) for e in texts if (e.text or "").endswith("TFLOP/s, measured")]
    assert len(heights) == 2
    assert abs(heights[0] - heights[1]) >= 11


def test_names_of_points_keep_off_marks_roofs_and_each_other() -> None:
    crowd = tuple(replace(CONV, module=f"layer{n}", time_us=100.0 + n, share=0.05) for n in range(30))
    named = [line for line in lines(draw_roofline(replace(ROOFLINE, points=crowd))) if line.startswith("layer")]
    assert 0 < len(named) < 6, "thirty points in one place have few free sides"


def test_tooltips_have_all_numbers() -> None:
    text = tooltip(replace(CONV, kernel="cudnn convolution", probability=0.7))
    assert "Conv × 3" in text
    assert "cudnn convolution (70% likely)" in text
    assert "100 FLOP a byte, 10 TFLOP/s" in text
    assert CONV.limit in LIMITS


def test_foreign_names_are_text() -> None:
    evil = '</title><script>alert("x")</script>'
    svg = draw_roofline(replace(ROOFLINE, model=evil, points=(replace(CONV, module=evil, operator=evil), RELU)))
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_the_chart_is_also_available_as_numbers() -> None:
    content = ROOFLINE.to_dict()
    assert content["points"][0]["intensity"] == 100
    assert content["roofs"][0]["per_s"] == 1e12
    assert math.isclose(sum(group["share"] for group in content["groups"]), 1.0)
    assert ROOFLINE.title == "net on NVIDIA H200, batch 8, fp32"
    assert replace(ROOFLINE, slice="mps:50").title == "net on NVIDIA H200 mps:50, batch 8, fp32"
