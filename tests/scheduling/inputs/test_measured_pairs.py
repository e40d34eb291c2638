"""Gavel's table of pairs."""

from pathlib import Path

import pytest

from foretell.errors import DataError
from foretell.scheduling.inputs.measured_pairs import read_gavel

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, *rows: tuple) -> Path:
    names = ("gpu", "job_a", "job_b", "iso_a", "iso_b", "co_a", "co_b")
    parquet.write_table(arrow.table(dict(zip(names, map(list, zip(*rows))))), path)
    return path


def test_pairs_of_single_gpus_become_slowdowns(tmp_path: Path) -> None:
    one, two, wide = "('B', 1)", "('A (batch size 4)', 1)", "('A (batch size 4)', 2)"
    file = write(
        tmp_path / "pairs.parquet",
        ("v100", one, two, 10.0, 6.0, 5.0, 4.0),
        ("v100", one, one, 10.0, 10.0, 0.0, 0.0),
        ("v100", one, wide, 10.0, 6.0, 5.0, 4.0),
        ("k80", one, two, 10.0, 6.0, 1.0, 1.0),
        ("v100", one, two, 10.0, 6.0, 1.0, 1.0),
    )
    pairs = read_gavel(file)
    assert pairs.names == ("A (batch size 4)", "B")
    assert pairs.groups == {("mps", ("A (batch size 4)", "B")): (1.5, 2.0)}
    assert pairs.apart == {("B", "B")}
    with pytest.raises(DataError, match="no pair of jobs that shared a t4"):
        read_gavel(file, "t4")
