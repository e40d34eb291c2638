"""Traces of real clusters, from files like theirs."""

import random
from pathlib import Path

import pytest

from foretell.errors import DataError
from foretell.scheduling.inputs.traces import Arrival, at_load, poisson, read_alibaba, read_philly, window

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, **columns: list) -> Path:
    parquet.write_table(arrow.table(columns), path)
    return path


def test_philly_jobs_of_one_gpu_in_order(tmp_path: Path) -> None:
    file = write(
        tmp_path / "philly.parquet",
        timestamp=["2017-10-09 07:00:10", "2017-10-09 07:00:00", "2017-10-09 07:00:05"],
        duration=[5.0, 7.0, 9.0],
        num_gpus=[1, 1, 4],
    )
    first, second = read_philly(file)
    assert (first.duration_s, second.duration_s) == (7.0, 5.0)
    assert second.arrival_s - first.arrival_s == 10


def test_alibaba_pods_that_ran(tmp_path: Path) -> None:
    file = write(
        tmp_path / "alibaba.parquet",
        creation_time=[0, 10, 20, 30],
        scheduled_time=[5.0, None, 25.0, 35.0],
        deletion_time=[50, 60, 25, 70],
        num_gpu=[1, 1, 1, 0],
    )
    assert read_alibaba(file) == [Arrival(0.0, 45.0)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"timestamp": ["2017-10-09 07:00:10"], "duration": [5.0]}, "no column 'num_gpus'"),
        ({"timestamp": [], "duration": [], "num_gpus": []}, "no job of one GPU"),
        ({"timestamp": ["yesterday"], "duration": [5.0], "num_gpus": [1]}, "the time 'yesterday'"),
        ({"timestamp": ["2017-10-09"], "duration": [float("inf")], "num_gpus": [1]}, "not finite"),
        ({"timestamp": ["2017-10-09"] * 2, "duration": [5.0, -1.0], "num_gpus": [1, 1]}, "a negative time, -1 s"),
        ({"timestamp": ["2017-10-09"], "duration": ["long"], "num_gpus": [1]}, "no number or time"),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path: Path, columns: dict, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        read_philly(write(tmp_path / "bad.parquet", **columns))


@pytest.mark.parametrize(("scheduled", "deleted"), [(5, 30), (15, 12)])
def test_a_pod_that_goes_back_in_time_is_refused(tmp_path: Path, scheduled: int, deleted: int) -> None:
    columns = {"creation_time": [10], "scheduled_time": [scheduled], "deletion_time": [deleted], "num_gpu": [1]}
    with pytest.raises(DataError, match="negative time"):
        read_alibaba(write(tmp_path / "bad.parquet", **columns))


def test_what_is_no_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("timestamp,duration")
    with pytest.raises(DataError, match="text"):
        read_philly(tmp_path / "text")
    with pytest.raises(DataError, match="Cannot read"):
        read_philly(tmp_path / "absent")


def test_a_window_keeps_the_gaps_and_begins_anew() -> None:
    trace = [Arrival(float(number**2), 1.0 + number) for number in range(5)]
    taken = window(trace, 12, random.Random(3))
    assert taken[0].arrival_s == 0
    assert [entry.arrival_s for entry in taken] == sorted(entry.arrival_s for entry in taken)
    assert len(taken) == 12
    with pytest.raises(DataError, match="no job"):
        window([], 3, random.Random(0))


def test_the_load_is_what_was_asked() -> None:
    entries = at_load(list(poisson(500, 60.0, random.Random(0))), 1.5, 8, max_s=200.0)
    span_s = entries[-1].arrival_s - entries[0].arrival_s
    assert sum(entry.duration_s for entry in entries) / (span_s * 8) == pytest.approx(1.5)
    assert max(entry.duration_s for entry in entries) == 200.0
