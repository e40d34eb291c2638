"""Tests of fitting the kernels of serving engines to tables: what is read, left out, grouped and held out."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.boosting import TreeFit
from foretell.predictors.llm.kernels import LAUNCH_US
from foretell.training.llm_kernels import errors_of, fit_kernels, fit_trees, frameworks_of, read_rows

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("lightgbm")


def write_products(folder: Path) -> None:
    """Products that take twice their bytes and a launch; each shape under two versions, the second one slower."""
    columns: dict[str, list[object]] = {name: [] for name in ("framework", "gemm_dtype", "m", "n", "k", "latency")}
    for framework, dtype in (("vllm", "bfloat16"), ("sglang", "bfloat16"), ("vllm", "fp8_block"), ("trtllm", "fp8")):
        for m in (1, 4, 16, 64, 256):
            for n in (512, 1024, 4096, 8192):
                for k in (512, 2048, 8192):
                    us = 2 * (LAUNCH_US + 2 * (k * n + m * k + m * n) / 4.8e6)
                    for slower in (1.0, 1.5):
                        row = (framework, dtype, m, n, k, us * slower / 1000)
                        for name, value in zip(columns, row, strict=True):
                            columns[name].append(value)
    parquet.write_table(pa.table(columns), folder / "h200_sxm_gemm.parquet")


def test_rows_of_the_host_are_left_out_and_the_fastest_version_counts(tmp_path: Path) -> None:
    write_products(tmp_path)
    rows = read_rows(tmp_path, "h200_sxm", "product")
    assert rows is not None
    assert len(rows.us) == 2 * 5 * 4 * 3
    assert frameworks_of([rows], "product") == {"product/bf16": (0, 1)}
    assert rows.us.min() < 2 * LAUNCH_US * 1.2
    # a shape is held out under all frameworks or under none
    shapes: dict[tuple[float, ...], set[bool]] = {}
    for row in range(len(rows.us)):
        shapes.setdefault(tuple(float(rows.work[name][row]) for name in "mnk"), set()).add(bool(rows.held_out[row]))
    assert all(len(sides) == 1 for sides in shapes.values())
    assert 0 < rows.held_out.mean() < 0.5


def test_trees_find_a_ratio_again(tmp_path: Path) -> None:
    write_products(tmp_path)
    rows = read_rows(tmp_path, "h200_sxm", "product")
    assert rows is not None
    trees = fit_trees([rows], "product", TreeFit(rounds=20, leaves=4, least_in_leaf=5))
    assert np.median(np.abs(errors_of(trees, rows, "product", rows.held_out))) < 0.1


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="aiconfigurator"):
        fit_kernels(tmp_path)
