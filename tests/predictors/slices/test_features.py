"""What decides whether units notice that SMs are missing."""

import numpy as np

from foretell.features import extract_units
from foretell.predictors.slices.features import GREEN_COLUMNS, SLICE_COLUMNS, describe_scaling, launches_of
from foretell.records import Workload
from small.small_samples import H200, blocks


def described(batch: int, width: int, *, green: bool = False) -> dict[str, np.ndarray]:
    units = extract_units(Workload(blocks(batch, width), H200))
    rows = describe_scaling(units.features, np.full(len(units), 8.0), green=green)
    assert rows.shape == (len(units), len(SLICE_COLUMNS))
    assert np.isfinite(rows).all()
    return {name: rows[:, position] for position, name in enumerate(SLICE_COLUMNS)}


def test_products_have_tiles_and_all_else_has_outputs():
    columns = described(256, 512)
    product = columns["product"] > 0
    assert product.any()
    assert not product.all()
    assert (columns["product_tiles"][product] == np.log2(256 / 64 * 512 / 64)).all()
    assert np.allclose(columns["product_depth"][product], np.log2(512))
    assert (columns["product_tiles"][~product] == 0).all()
    assert np.allclose(columns["rest_outputs"][~product], np.log2(256 * 512 + 1))
    assert (columns["rest_outputs"][product] == 0).all()
    assert np.allclose(columns["log_launch_us"], 3.0)


def test_a_larger_batch_has_more_tiles_and_is_nearer_to_its_bound():
    small, large = described(64, 512), described(1024, 512)
    product = small["product"] > 0
    assert (large["product_tiles"] > small["product_tiles"])[product].all()
    assert (large["product_compute"] > small["product_compute"])[product].all()
    assert (large["rest_traffic"] > small["rest_traffic"])[~product].all()


def test_only_green_contexts_have_their_columns():
    plain, green = described(64, 64), described(64, 64, green=True)
    assert all((plain[name] == 0).all() for name in GREEN_COLUMNS)
    assert (green["green"] == 1).all()
    assert (green["green_matmul"] == green["product"]).all()
    shared = set(SLICE_COLUMNS) - set(GREEN_COLUMNS)
    assert all((plain[name] == green[name]).all() for name in shared)


def test_every_unit_here_is_one_launch():
    units = extract_units(Workload(blocks(64, 64), H200))
    assert np.allclose(launches_of(units.features), 1.0)
