from dataclasses import replace

import pytest

from foretell.devices.ceilings import Ceilings
from lab.papers.downscaling.convolutions import PAIRS, Convolution, Pair, plain_convolutions, rate_ratios, tables

BASE = Convolution("forward", "fp32", False, 32, 112, 96, 128, 56, 3, 1, (1, 1), 96 * 128, 100.0)
CEILINGS = Ceilings("x", "X", "2026-01-01", "a test", 1000.0, None, {"tf32": 100.0, "fp16": 200.0, "fp32": 10.0})


def test_the_largest_operator_of_the_thesis_has_its_flops_and_bytes():
    assert BASE.flops == 2 * 32 * 96 * 128 * 56 * 112 * 9
    assert BASE.bytes == 4 * (32 * 112 * 96 * 128 + 56 * 112 * 9 + 32 * 56 * 96 * 128)
    backward = replace(BASE, phase="backward")
    assert backward.flops == 2 * BASE.flops
    assert backward.bytes > BASE.bytes
    assert BASE.tflops == pytest.approx(BASE.flops / 100e-6 / 1e12)


def test_the_roofline_is_the_lower_of_peak_and_bandwidth():
    assert BASE.attainable(CEILINGS) == 100.0, "168 FLOPs a byte: TF32's peak"
    narrow = replace(BASE, kernel=1, filters=1, channels=1)
    assert narrow.attainable(CEILINGS) == pytest.approx(narrow.flops / narrow.bytes)


def test_a_pair_differs_in_one_axis_alone():
    batch = Pair("batch × 2", "batch", lambda a, b: b == 2 * a)
    double = replace(BASE, batch=64, us=150.0)
    other = replace(BASE, batch=64, filters=57, us=1.0)
    assert rate_ratios([BASE, double, other], batch, "forward", half=False) == [pytest.approx(2 / 1.5)]
    assert rate_ratios([BASE, double], batch, "backward", half=False) == []
    window = next(pair for pair in PAIRS if pair.text == "kernel 3 → 5")
    wide = replace(BASE, kernel=5, padding=(2, 2), us=200.0)
    assert rate_ratios([wide, BASE], window, "forward", half=False) == [pytest.approx(25 / 9 / 2)]


def test_short_kernels_are_left_out_where_a_pair_asks_for_it():
    slow = next(pair for pair in PAIRS if pair.least_us > 10)
    half = replace(BASE, dtype="fp16", us=50.0)
    assert rate_ratios([BASE, half], slow, "forward", half=None) == [2.0]
    assert rate_ratios([replace(BASE, us=20.0), half], slow, "forward", half=None) == []


def test_convolutions_are_found_in_a_graph():
    torch = pytest.importorskip("torch")
    from foretell import load_graph

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 4, 1)
    )
    found = [one for _, one in plain_convolutions(load_graph(net, input_shape=(3, 16, 16)).with_batch(2), "fp32")]
    assert [(one.channels, one.filters, one.kernel, one.stride, one.pixels) for one in found] == [
        (3, 8, 3, 2, 64), (8, 4, 1, 1, 36),
    ]  # fmt: skip
    assert {one.batch for one in found} == {2}


def test_tables_have_a_line_for_each_pair():
    text = "\n".join(tables([replace(BASE, us=100.0 + number) for number in range(9)], CEILINGS))
    assert text.count("| kernel | 3 |") == 1
    assert all(pair.text in text for pair in PAIRS)
