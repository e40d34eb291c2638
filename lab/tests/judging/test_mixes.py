import pytest

from foretell.errors import DataError
from foretell.training.examples.workloads import measured_rows
from lab.judging import mixes
from small.small_store import write_store, write_table


def job(number, of, name="w0", mix="m", **changes):
    return {
        "campaign_id": "c", "mix_id": mix, "method": "mps", "max_jobs": 2, "jobs": of, "job": number,
        "workload_id": name, "status": "ok", "solo_ms": 10.0, "steps": 100, "arrival_s": 0.0, "start_s": 0.0,
        "end_s": 2.0,
    } | changes  # fmt: skip


def test_only_whole_mixes_are_read(tmp_path):
    rows = [job(1, 2, end_s=3.0), job(0, 2), job(0, 2, mix="half"), job(0, 1, mix="bad", status="crash")]
    write_table(tmp_path, "mixes", rows)
    (mix,) = mixes.read_mixes(tmp_path)
    assert [row["job"] for row in mix.rows] == [0, 1]
    assert (mix.name, mix.makespan_s, mix.alone_s) == ("m", 3.0, 2.0)
    with pytest.raises(DataError, match="No mix was measured"):
        mixes.read_mixes(tmp_path / "nowhere")


def test_a_mix_is_simulated_as_it_ran(tmp_path):
    rows = [job(0, 3), job(1, 3, steps=200), job(2, 3, arrival_s=5.0, steps=50)]
    write_table(tmp_path, "mixes", rows)
    (mix,) = mixes.read_mixes(tmp_path)
    assert mixes.simulated_s(mix, "h200", [10.0] * 3, mixes.alone) == pytest.approx([1.0, 2.0, 5.5])

    def halved(kind, profiles):
        assert (kind.method, kind.max_jobs) == ("mps", 2)
        return [2.0] * len(profiles) if len(profiles) > 1 else [1.0]

    # both until the first ends after 2 s, then the second alone for its last second
    assert mixes.simulated_s(mix, "h200", [10.0] * 3, halved) == pytest.approx([2.0, 3.0, 5.5])
    assert mixes.simulated_s(mix, "h200", [20.0] * 3, halved) == pytest.approx([4.0, 7.0, 7.0])


def test_the_report_has_the_error_of_each_way_and_every_mix(tmp_path):
    store = write_store(tmp_path / "store")
    row = next(iter(measured_rows(store).values()))
    rows = [job(number, 2, row["workload_id"], arrival_s=100.0 * number, end_s=100.0 * number + 1) for number in (0, 1)]
    own = {name: row[name] for name in ("spec", "family", "mode", "optimizer", "dtype", "batch_size", "input_shape")}
    write_table(tmp_path / "store" / "mixed", "mixes", [one | own for one in rows])
    total, single = mixes.evaluate(store, "h200", tmp_path)
    # the second starts when the first is over, so nothing slows them down, and the simulation is exact
    for name, figures in total.rows.items():
        if "predicted times" not in name:
            assert figures["mean error"] == pytest.approx(0.0, abs=1e-9)
    assert single.rows["m"]["measured, s"] == 101.0
    assert "| m | 2 | 2 | 2 | 101 | 101 |" in mixes.write_report([total, single], tmp_path).read_text()
