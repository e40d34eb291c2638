"""The driver's utilisation beside counted occupancy: chosen, read while the device is busy, and continued."""

import json
import time

import pyarrow
import pyarrow.parquet
import pytest

from foretell.errors import MeasurementError
from foretell.profiling.workload import workload_from_json
from lab.campaigns.utilisation import counted, main, watch
from small.measured import TINY, row

pytest.importorskip("torch")


def _store(folder, *rows):
    folder.mkdir()
    more = {"kernel_ms": 1.0, "occupancy_weighted": 12.5}
    table = pyarrow.Table.from_pylist([{**more, **one} for one in rows])
    pyarrow.parquet.write_table(table, folder / "occupancy.parquet")
    return folder


def test_only_what_was_counted_in_small_batches_without_training_is_chosen(tmp_path):
    rows = [row(TINY[0]), row(TINY[1], batch=128), row(TINY[2], mode="training"), row(TINY[3], status="oom")]
    assert [one["spec"] for one in counted(_store(tmp_path / "a", *rows), 9)] == [TINY[0]]
    with pytest.raises(MeasurementError, match="No occupancy"):
        counted(_store(tmp_path / "b", rows[1]), 9)


def test_readings_of_the_first_half_are_left_out():
    began = time.perf_counter()

    def busy(seconds):
        time.sleep(seconds)
        return 4

    mean, runs, run_s = watch(busy, lambda: 90 if time.perf_counter() - began > 0.3 else 10, 0.6)
    assert mean == 90
    assert (runs, run_s) == (4, pytest.approx(0.15, rel=0.2))
    assert watch(busy, lambda: None, 0.1)[0] is None


def test_a_second_run_goes_on_and_an_error_is_a_line(tmp_path, capsys):
    store = _store(tmp_path / "a", row(TINY[0]), row("synthetic:nothing?x=1"), row(TINY[1], batch=4))
    out = tmp_path / "out.jsonl"
    arguments = [str(store), str(out), "--device", "cpu", "--window", "0.1"]
    main([*arguments, "--workloads", "1"], read=lambda: 40)
    main(arguments, read=lambda: 40)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({line["workload_id"] for line in lines}) == len(lines) == 3
    assert sum("error" in line for line in lines) == 1
    good = [line for line in lines if "error" not in line]
    assert all(line["nvml_utilisation_pct"] == line["nvml_eager_utilisation_pct"] == 40 for line in good)
    assert all(line["replays"] > 0 and line["eager_ms"] > 0 and line["occupancy_weighted"] == 12.5 for line in good)
    assert all(workload_from_json(line).id == line["workload_id"] for line in lines)
    assert [line.split(" workloads")[0] for line in capsys.readouterr().out.splitlines()] in (
        ["1 of 1", "1 of 2"],
        ["0 of 1", "2 of 2"],
    )


def test_nothing_begins_that_could_not_end_in_time(tmp_path):
    store = _store(tmp_path / "a", row(TINY[0]))
    out = tmp_path / "out.jsonl"
    main([str(store), str(out), "--device", "cpu", "--window", "5", "--seconds", "6"], read=lambda: 40)
    assert out.read_text() == ""
