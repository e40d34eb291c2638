"""How many blocks an SM holds, what a grid can reach, and what counted kernels teach beyond that."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import DeviceError
from foretell.predictors.occupancy.launches import (
    Launches,
    describe_launches,
    fit_launches,
    full_occupancy,
    resident_blocks,
)

H200 = find_device("h200")


def launches(*rows: tuple[float, float, float, float]) -> Launches:
    """Kernels of 10 µs: blocks, warps of a block, registers of a thread, bytes of shared memory of a block."""
    blocks, warps, registers, shared = np.array(rows, np.float64).T
    return Launches(blocks, warps, registers, shared, np.full(len(rows), 10.0), np.zeros(len(rows), np.intp))


@pytest.mark.parametrize(
    ("launch", "held"),
    [
        ((1, 4, 16, 0), 16),  # 64 warps of 4
        ((1, 1, 16, 0), 32),  # places for blocks
        ((1, 8, 255, 0), 1),  # 256 registers for each thread: 8 warps fill the registers
        ((1, 4, 64, 0), 8),  # 64 registers: half of the warps
        ((1, 12, 168, 217356), 1),  # shared memory
        ((1, 4, 16, 49152), 4),  # 48 KiB and one for the system, of 228
        ((1, 32, 255, 0), 1),  # it ran, so one block fitted
    ],
)
def test_an_sm_holds_what_its_scarcest_resource_allows(launch: tuple[float, ...], held: int) -> None:
    assert H200.limits is not None
    assert resident_blocks(launches(launch), H200.limits).tolist() == [held]


def test_a_small_grid_fills_only_what_it_has() -> None:
    large, full = full_occupancy(launches((1, 4, 16, 0), (132, 4, 16, 0), (264, 4, 16, 0), (9999, 4, 16, 0)), H200)
    assert large.tolist() == [100.0] * 4
    # one block on one SM shows its own four warps: idle SMs do not count
    assert full.tolist() == [6.25, 6.25, 12.5, 100.0]


def test_a_cpu_has_no_occupancy() -> None:
    with pytest.raises(DeviceError, match="has no SMs"):
        full_occupancy(launches((1, 4, 16, 0)), find_device("cpu"))


def test_counted_kernels_teach_the_share_that_is_reached() -> None:
    pytest.importorskip("lightgbm")
    random = np.random.default_rng(0)
    rows = np.stack([random.integers(1, 9000, 400), random.choice([2, 4, 8], 400), np.full(400, 16)], axis=1)
    kernels = launches(*(map(tuple, np.column_stack([rows, np.zeros(400)]))))
    _, full = full_occupancy(kernels, H200)
    # small grids reach all of what they can, large ones 80 %
    truth = full * np.where(kernels.blocks < 1000, 1.0, 0.8)
    model = fit_launches(kernels, truth, np.full(400, 11.5), H200)
    assert np.abs(model.occupancy_pct(kernels) / truth - 1).mean() < 0.03
    assert model.counted_us(np.array([4.0])).tolist() == [5.5]
    assert np.isfinite(describe_launches(kernels, H200)).all()
