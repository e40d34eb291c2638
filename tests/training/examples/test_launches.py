"""Traced kernels are tied to units and to what a counter showed of them, in the order of their grids."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.training.examples import launches
from foretell.training.examples.launches import align, read_counted, read_launches
from small.small_counts import ADDED_US, write_counts
from small.small_store import write_store

pytest.importorskip("pyarrow")
WIDTHS = (8, 16)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counts(tmp_path_factory.mktemp("store"), WIDTHS)


def test_kernels_have_their_launch_their_unit_and_their_counter(store: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    rows = read_launches(store, "h200", tmp_path, messages.append)
    assert len(rows.workload_ids) == len(WIDTHS) * 2
    assert rows.algorithms == ("cublas split-reduce", "pytorch pointwise-vectors")
    assert messages[0] == "16 of 16 counted kernels were found in the traces"
    assert (rows.counted_us - rows.launches.time_us) == pytest.approx(np.full(len(rows), ADDED_US))
    assert set(rows.launches.warps) == {4.0}
    assert set(rows.launches.registers) == {32.0}
    # the occupancy belongs to the same kernel as the grid
    reached = np.clip(rows.launches.blocks / 132, 1, 16) * 4 / 64 * 90
    assert rows.occupancy_pct == pytest.approx(reached, rel=1e-4)
    # the copy without a grid is left out
    assert rows.kernels.sum() == len(rows.workload_ids) * 4


def test_they_are_extracted_once(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_launches(store, "h200", tmp_path)
    monkeypatch.setattr(launches, "_extract", lambda *_: pytest.fail("extracted again"))
    again = read_launches(store, "NVIDIA H200", tmp_path)
    assert again.workload_ids == first.workload_ids
    assert np.array_equal(again.launches.blocks, first.launches.blocks)
    assert np.array_equal(again.occupancy_pct, first.occupancy_pct)


def test_a_trace_and_a_counter_are_aligned_by_the_order_of_grids() -> None:
    def rows(*grids: int, **columns: list[float]) -> dict[str, list[float]]:
        ones = [1] * len(grids)
        return {"grid_x": list(grids), **dict.fromkeys(("grid_y", "grid_z", "block_x", "block_y", "block_z"), ones)} | {
            "sequence": list(range(len(grids))), **columns
        }  # fmt: skip

    trace = rows(0, 7, 8, 9, 8)
    counters = rows(7, 9, 8, 5, duration_us=[1.0, 2.0, 3.0, 4.0], occupancy_pct=[10.0, 20.0, 30.0, 40.0])
    assert align(trace, counters) == {1: (1.0, 10.0), 3: (2.0, 20.0), 4: (3.0, 30.0)}


def test_counts_that_failed_are_left_out(store: Path) -> None:
    assert "absent" not in read_counted(store)
    assert all(row["occupancy_weighted"] > 0 for row in read_counted(store).values())


def test_traces_of_another_device_teach_nothing(tmp_path: Path) -> None:
    write_store(tmp_path, (8,))
    with pytest.raises(DataError, match="no traced workload of l4"):
        read_launches(tmp_path, "l4", tmp_path / "cache")
