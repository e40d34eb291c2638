"""What a classifier of kernels is told: sizes and layouts, not what is in the cache; and how tiles cover a product."""

import numpy as np
import pytest

from foretell.features import COLUMNS, extract_units
from foretell.features.layouts import operand_layouts
from foretell.graph import Graph
from foretell.predictors.kernels.inputs import (
    GROUPS,
    INPUT_WIDTH,
    TILE_WIDTH,
    KernelInputs,
    describe_tiles,
    kernel_inputs,
)
from foretell.records import Workload
from foretell.testing import one_node
from small.small_samples import H200, workload


def inputs_of(work: Workload, training: bool = False) -> KernelInputs:
    units = extract_units(work)
    return kernel_inputs(units.features, operand_layouts(work, units), training)


def product(m: int, n: int, k: int) -> Graph:
    return one_node("MatMul", [(m, k), (k, n)], [(m, n)], weights=[1])


def test_every_unit_has_its_numbers() -> None:
    work = workload(64, 8)
    inputs = inputs_of(work)
    assert inputs.numbers.shape == (len(extract_units(work)), INPUT_WIDTH)
    assert np.isfinite(inputs.numbers).all()
    assert inputs.groups.max() < GROUPS
    assert len(inputs.of(np.array([0, 2]))) == 2


def test_cache_reuse_does_not_change_the_inputs() -> None:
    work = workload(64, 8)
    units = extract_units(work)
    moved = units.features.copy()
    moved[:, [COLUMNS.index("log_moved_since"), COLUMNS.index("log_moved_in_all")]] += 3.0
    layouts = operand_layouts(work, units)
    assert np.array_equal(kernel_inputs(moved, layouts, False).numbers, inputs_of(work).numbers)
    assert not np.array_equal(inputs_of(work, training=True).numbers, inputs_of(work).numbers)


def test_a_tile_covers_the_columns_of_a_product() -> None:
    inputs = inputs_of(Workload(product(100, 256, 64), H200))
    assert (inputs.along[0], inputs.across[0], inputs.many[0]) == (256, 100, 1)
    (tiles,) = describe_tiles(inputs, np.array([[128, 64], [0, 0]], np.float32), sms=8)
    assert tiles.shape == (2, TILE_WIDTH)
    waves = 4 / 8
    expected_log2 = np.log2(256 * 100)
    expected = [np.log2(1 + waves) / 4, waves, 1.0, 100 / 128, (np.log2(128 * 64 * 8) - expected_log2) / 4, 1.0]
    assert tiles[0] == pytest.approx(expected, rel=1e-5)
    assert not tiles[1].any()  # a class without a tile


def test_a_convolution_is_one_product_an_image() -> None:
    images, pixels = 4, 14 * 14
    inputs = inputs_of(workload(32, images))
    (place,) = np.flatnonzero(inputs.is_product & (inputs.many == images))
    assert (inputs.along[place], inputs.across[place]) == (pixels, 32)
    assert not inputs_of(Workload(one_node("Relu", [(2, 3)], [(2, 3)]), H200)).is_product.any()
