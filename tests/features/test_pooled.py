"""One row a workload: merging equal units loses nothing, and a row says the same in whatever order they come."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import COLUMNS, SCHEMA, Units, extract_units
from foretell.features.pooled import POOLED_COLUMNS, POOLED_SCHEMA, DistinctUnits, Setting, pool
from foretell.features.units import KINDS
from foretell.graph import Node
from foretell.records import Target, Workload
from foretell.testing import chain, one_node, tiny_graph

H200 = Target(find_device("h200"))
SETTING = Setting("inference", "fp32", 4, "", 100.0)


def repeated(count: int) -> Units:
    """The same activation a few times, then a product."""
    nodes = [Node(f"r{i}", "Relu", (f"x{i}",), (f"x{i + 1}",)) for i in range(count)]
    nodes.append(Node("m", "MatMul", (f"x{count}", "w"), ("y",)))
    shapes = {f"x{i}": (4, 64) for i in range(count + 1)} | {"w": (64, 32), "y": (4, 32)}
    return extract_units(Workload(chain(nodes, shapes, ["x0"], ["y"], batch_size=4), H200))


def training() -> Units:
    return extract_units(Workload(tiny_graph(8), H200, "fp32", "training", "adamw"))


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(POOLED_COLUMNS, row.tolist(), strict=True))


def pooled(units: Units, factor: float = 2.0, setting: Setting = SETTING) -> dict[str, float]:
    distinct = DistinctUnits.of(units)
    return named(pool(distinct, distinct.bound_us * factor, setting))


def test_equal_units_become_one_and_sums_stay() -> None:
    units = repeated(6)
    distinct = DistinctUnits.of(units)
    assert (len(units), len(distinct)) == (7, 2)
    assert sorted(distinct.counts) == [1, 6]
    assert (distinct.bound_us * distinct.counts).sum() == pytest.approx(units.bound_us.sum())
    np.testing.assert_array_equal(distinct.features[distinct.member], units.features)
    np.testing.assert_array_equal(distinct.bound_us[distinct.member], units.bound_us)


def test_units_that_differ_stay_apart() -> None:
    units = training()
    assert len(DistinctUnits.of(units)) == len(units)


def test_no_units_have_no_rows() -> None:
    assert len(DistinctUnits.of(extract_units(Workload(one_node("Reshape", [(4,)], [(2, 2)]), H200)))) == 0


def test_a_row_has_every_column_once() -> None:
    distinct = DistinctUnits.of(training())
    row = pool(distinct, distinct.bound_us, SETTING)
    assert row.shape == (len(POOLED_COLUMNS),) == (len(set(POOLED_COLUMNS)),)
    assert row.dtype == np.float32
    assert np.isfinite(row).all()


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_totals_and_ratios(factor: float) -> None:
    units = repeated(6)
    row = pooled(units, factor)
    total = units.bound_us.sum() * factor
    assert row["log_time_us"] == pytest.approx(np.log(total), rel=1e-5)
    assert row["log_bound_us"] == pytest.approx(np.log(total / factor), rel=1e-5)
    assert row["log_ratio"] == pytest.approx(np.log(factor), abs=1e-5)
    assert row["log_units"] == pytest.approx(np.log(7))
    assert row["log_mean_us"] == pytest.approx(np.log(total / 7), rel=1e-5)
    assert row["largest_share"] == pytest.approx(units.bound_us.max() * factor / total, rel=1e-5)
    assert row["log_memory_mib"] == pytest.approx(np.log(100.0))
    assert row["log_parameters"] == pytest.approx(np.log(64 * 32 * 4 + 7), rel=1e-5)
    assert row["log_largest_parameter"] == pytest.approx(np.log(64 * 32 * 4 + 1), rel=1e-5)
    assert row["log_outputs"] == pytest.approx(np.log(6 * 4 * 64 * 4 + 4 * 32 * 4 + 7), rel=1e-5)
    assert row["log_largest_output"] == pytest.approx(np.log(4 * 64 * 4 + 1), rel=1e-5)
    for name in ("compute", "memory"):
        spent_us = np.exp2(units.features[:, COLUMNS.index(f"log_{name}_us")]).sum()
        assert row[f"{name}_share"] == pytest.approx(spent_us / total, rel=1e-4)


def test_the_time_is_shared_out_among_kinds_and_phases() -> None:
    units, row = repeated(6), pooled(repeated(6))
    kinds = units.features[:, COLUMNS.index("kind")]
    for kind in ("elementwise", "contraction"):
        share = units.bound_us[kinds == KINDS.index(kind)].sum() / units.bound_us.sum()
        assert row[f"forward_{kind}"] == pytest.approx(share, rel=1e-5)
    assert sum(row[f"forward_{kind}"] for kind in KINDS) == pytest.approx(1.0)
    units, row = training(), pooled(training())
    shares = {name: value for name, value in row.items() if name.startswith(("forward_", "backward_"))}
    # the backward pass of a reduction has no column of its own: it is in the rest
    without = [phase == "backward" and op == "GlobalAveragePool" for op, phase in zip(units.operators, units.phases)]
    rest = units.bound_us[without].sum() / units.bound_us.sum()
    assert sum(shares.values()) + row["optimizer_share"] == pytest.approx(1.0)
    assert row["backward_rest"] == pytest.approx(rest, abs=1e-6)
    assert min(row["optimizer_share"], row["forward_contraction"], row["backward_contraction"]) > 0


def test_short_units_are_those_that_are_mostly_launch() -> None:
    units = repeated(6)
    assert pooled(units, 0.001)["short_units"] == pooled(units, 0.001)["short_share"] == 1.0
    assert pooled(units, 1000.0)["short_units"] == pooled(units, 1000.0)["short_share"] == 0.0


def test_the_spread_counts_every_unit() -> None:
    distinct = DistinctUnits.of(repeated(6))
    times = np.where(distinct.counts == 6, 1.0, np.e)
    values_of_units = [0.0] * 6 + [1.0]
    assert named(pool(distinct, times, SETTING))["unit_spread"] == pytest.approx(np.std(values_of_units), rel=1e-5)


def test_the_setting_is_coded_and_unknown_values_are_minus_one() -> None:
    known = pooled(repeated(1), setting=Setting("training", "bf16", 32, "adamw", 50.0))
    assert [known[name] for name in ("mode", "dtype", "batch", "optimizer")] == [1.0, 2.0, 32.0, 2.0]
    other = pooled(repeated(1), setting=Setting("dreaming", "fp8", 32, "lion", 50.0))
    assert [other[name] for name in ("mode", "dtype", "optimizer")] == [-1.0, -1.0, -1.0]


def test_the_order_of_units_does_not_matter() -> None:
    units = training()
    order = np.random.default_rng(0).permutation(len(units))
    turned = replace(
        units, rows=units.features[order], row_bound_us=units.bound_us[order], member=np.arange(len(units))
    )
    assert pooled(turned) == pytest.approx(pooled(units))


def test_a_setting_is_that_of_its_workload() -> None:
    inference = Workload(tiny_graph(8), H200, "fp16")
    assert Setting.of(inference, 12.0) == Setting("inference", "fp16", 8, "", 12.0)
    assert Setting.of(Workload(tiny_graph(4), H200, "bf16", "training", "sgd"), 1.0).optimizer == "sgd"


def test_other_unit_features_are_another_schema() -> None:
    assert POOLED_SCHEMA != SCHEMA
    assert len(POOLED_SCHEMA) == 16
