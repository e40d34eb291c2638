"""The fit finds the numbers that made its data, and a device that is left out is not seen."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import COLUMNS
from foretell.features.units import DTYPES
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.transfer.model import TransferModel
from foretell.records import Target, Workload
from lab.transfer.examples import Examples, collected, joined
from lab.transfer.fit import START, fit, from_known, places_of, tell_us
from lab.transfer.judge import beyond_doubt, coverage, effective_units, far_off, unfitted_us, widths_of
from lab.transfer.tables import elementwise, product

DEVICES = ("t4", "a100-sxm-80gb", "l40s", "p100")


@pytest.fixture(scope="module")
def examples() -> Examples:
    graphs = [elementwise("Add", 2, (rows, 4096), "fp32") for rows in (4096, 8192, 16384)]
    graphs += [product(size, 4096, size, "fp32") for size in (1024, 2048, 4096)]
    return collected(
        (device, "neusight", f"{graph.nodes[0].op} {number}", 1.0, Workload(graph, Target(find_device(device))))
        for number, graph in enumerate(graphs)
        for device in DEVICES
    )


def batched(many: int, side: int, dtype: str) -> Graph:
    tensors = {name: Tensor(name, (many, side, side), dtype=dtype, kind="input") for name in "xw"}
    tensors["y"] = Tensor("y", (many, side, side), dtype=dtype)
    return Graph.build("bmm", [Node("y", "MatMul", ("x", "w"), ("y",))], tensors, ["x", "w"], ["y"])


def told(model: TransferModel, examples: Examples) -> Examples:
    return replace(examples, measured_us=tell_us(model, examples))


def test_the_fit_finds_what_made_the_data(examples: Examples) -> None:
    shares = {"stacked": 0.85, "stacked, old": 0.7, "checked": 0.65, "plain": 0.92}
    truth = replace(START, memory_shares=shares, vector_demand=0.95, factors={"product": 0.1})
    found = fit(told(truth, examples))
    # kinds of memory relative to the measured device's: only these ratios are seen in data
    for name in ("checked", "stacked, old"):
        ratio = found.memory_shares[name] / found.memory_shares["stacked"]
        assert ratio == pytest.approx(shares[name] / shares["stacked"], rel=0.02)
    assert found.factors["product"] == pytest.approx(0.1, abs=0.05)
    assert np.abs(np.log(tell_us(found, examples) / tell_us(truth, examples))).max() < 0.1


def test_factors_by_size_are_found_and_count_in_fp32_on_older_gpus_alone() -> None:
    graphs = [elementwise("Add", 2, (rows, 4096), "fp32") for rows in (4096, 8192)]
    graphs += [
        batched(many, side, dtype) for dtype in ("fp32", "fp16") for many in (8, 32) for side in range(64, 1024, 64)
    ]
    examples = collected(
        (
            device,
            "neusight",
            f"{graph.nodes[0].op} {number}",
            1.0,
            Workload(graph, Target(find_device(device)), next(iter(graph.tensors.values())).dtype),
        )
        for number, graph in enumerate(graphs)
        for device in ("t4", "p100", "h100-sxm")
    )
    plain = tell_us(START, examples)
    sizes = examples.features[:, COLUMNS.index("log_n")]
    is_single = examples.features[:, COLUMNS.index("dtype")] == DTYPES.index("fp32")
    on_old = np.isin(examples.device, ("t4", "p100")) & is_single & (sizes > 0)
    measured = plain * np.exp(np.where(on_old, -0.2 * (sizes - sizes[on_old].mean()), 0.0))
    found = fit(replace(examples, measured_us=measured))
    told_now = tell_us(found, examples)
    before, after = (np.abs(np.log(each / measured))[on_old].mean() for each in (plain, told_now))
    assert after < 0.5 * before
    bare = tell_us(replace(found, shapes={}), examples)
    np.testing.assert_array_equal(told_now[~on_old], bare[~on_old])


def convolution(batch: int, channels: int, side: int) -> Graph:
    tensors = {
        "x": Tensor("x", (batch, channels, side, side), dtype="fp32", kind="input"),
        "w": Tensor("w", (channels, channels, 3, 3), dtype="fp32", kind="parameter"),
        "y": Tensor("y", (batch, channels, side, side), dtype="fp32"),
    }
    node = Node("y", "Conv", ("x", "w"), ("y",), {"strides": (1, 1), "pads": (1, 1)})
    return Graph.build("conv", [node], tensors, ["x"], ["y"])


def test_wide_convolutions_on_old_gpus_start_from_their_own_peaks() -> None:
    graphs = [
        convolution(batch, channels, side) for batch in (8, 32) for channels in (32, 128, 512) for side in (14, 28, 56)
    ] + [elementwise("Add", 2, (rows, 4096), "fp32") for rows in (4096, 8192)]
    examples = collected(
        (device, "neusight", f"{graph.nodes[0].op} {number}", 1.0, Workload(graph, Target(find_device(device))))
        for number, graph in enumerate(graphs)
        for device in ("t4", "p100", "a100-pcie-40gb")
    )
    is_old = (examples.device != "a100-pcie-40gb") & np.char.startswith(examples.name, "Conv")
    # what is nearly all launch takes as many cycles as on the measured device
    launched = examples.h200_us * places_of(list(examples.device)).clock
    measured = np.where(is_old, np.maximum(1.5 * examples.own.max(axis=1), launched), tell_us(START, examples))
    assert 0 < (measured == launched)[is_old].mean() < 1
    found = fit(replace(examples, measured_us=measured))
    assert np.abs(np.log(tell_us(found, examples) / measured))[is_old].mean() < 0.1
    # what the measured device takes says nothing there
    faster = replace(examples, h200_us=examples.h200_us / 5)
    works = is_old & (tell_us(found, examples) > 1.01 * launched)
    np.testing.assert_allclose(tell_us(found, faster)[works], tell_us(found, examples)[works])
    assert (tell_us(found, faster)[is_old & ~works] < tell_us(found, examples)[is_old & ~works]).all()
    on_a100 = examples.device == "a100-pcie-40gb"
    assert (tell_us(found, faster)[on_a100] < tell_us(found, examples)[on_a100]).all()


def test_a_device_that_is_left_out_is_not_seen(examples: Examples) -> None:
    data = told(START, examples)
    odd = replace(data, measured_us=np.where(data.device == "l40s", 5 * data.measured_us, data.measured_us))
    assert fit(odd, ["l40s"]) == fit(data, ["l40s"])
    assert fit(odd) != fit(data)


def test_known_times_of_the_measured_device_replace_the_told_ones(examples: Examples) -> None:
    two = joined(examples, replace(examples, device=np.full(len(examples), "h200")))
    two = replace(two, source=np.full(len(two), "aiconfigurator"), measured_us=np.full(len(two), 7.0))
    assert (from_known(two).h200_us == 7.0).all()
    assert (from_known(examples).h200_us == examples.h200_us).all()


def test_widths_hold_nine_in_ten(examples: Examples) -> None:
    random = np.random.default_rng(0)
    rest = random.normal(0.0, 0.1, 1000)
    network = np.arange(1000) < 500
    units = np.where(network, 20.0, 1.0)
    rest[~network] *= 3
    whole, unit = widths_of(rest, units, network)
    held = np.abs(rest) <= np.hypot(whole, unit / np.sqrt(units))
    assert 0.88 < held[network].mean() < 0.92
    assert 0.88 < held[~network].mean() < 0.92
    assert effective_units(examples).tolist() == pytest.approx([1.0] * len(examples))
    assert coverage(examples, np.zeros(len(examples)), 0.1).all()
    errors, doubts = np.array([0.5, -0.5, 0.1, -0.1]), np.array([0.3, 0.0, 0.3, 0.3])
    beyond = beyond_doubt(errors, doubts, np.array([False, False, False, True]))
    assert beyond.tolist() == pytest.approx([0.4, 0.5, 0.0, 0.1])
    # what the measured device's predictor doubts is a part of the width
    sure = replace(examples, doubt=np.zeros(len(examples)))
    doubtful = replace(examples, doubt=np.full(len(examples), 0.2))
    assert not coverage(sure, np.full(len(examples), 0.1) * (examples.device == "t4"), 0.1).all()
    assert coverage(doubtful, np.full(len(examples), 0.1) * (examples.device == "t4"), 0.1).all()
    assert (unfitted_us(examples) > 0).all()


def test_a_new_generation_is_as_far_off_as_its_errors_beyond_the_usual_doubt() -> None:
    rest = np.linspace(0.0, 1.0, 101)
    assert far_off(rest, np.zeros(101)) == pytest.approx(0.9)
    assert far_off(rest, np.full(101, 0.54)) == pytest.approx(0.72)
    # doubts that grow with the errors do not hide them
    assert far_off(rest, rest) > 0.7
    assert far_off(rest, np.full(101, 2.0)) == 0.0
