"""ONNX Runtime and two threads: what is learned of other architectures, beside simpler ways."""

import numpy as np
import pytest

from foretell.datasets.schema import TABLES
from foretell.devices.cpu_runs import CpuRun
from foretell.errors import DataError
from foretell.predictors.cpu.model import NAME
from foretell.predictors.unit.model import UnitModel
from foretell.training.cpu import runs as cpu_runs
from foretell.training.cpu.runs import RunSet, judge, read_runs, repeated, train, write_report
from foretell.units import KILO
from small.small_samples import QUICK, small_samples
from small.small_store import write_table

pytest.importorskip("lightgbm")
pytest.importorskip("pyarrow")
TWO = CpuRun("eager", 2)


@pytest.fixture
def runs(monkeypatch):
    """Two threads take what the samples say; one thread takes four thirds of the roofline's bound for every unit."""
    monkeypatch.setattr(cpu_runs, "settings", lambda: QUICK)
    monkeypatch.setattr(cpu_runs, "FOLDS", 3)
    samples = [sample for sample in small_samples() if sample.captured]
    return RunSet(TWO, samples, [4 / 3 * sample.units.bound_us for sample in samples], [(1.0, 1.1), (2.0, 2.0)])


def test_units_stand_on_the_times_of_one_thread(runs):
    for before, after, own in zip(runs.samples, runs.rebased, runs.eager_us):
        np.testing.assert_array_equal(after.units.bound_us, own)
        np.testing.assert_array_equal(after.units.features, before.units.features)
    first = runs.samples[0]
    assert runs.eager_ms[0] == pytest.approx(float(first.units.counts @ runs.eager_us[0]) / KILO)


def test_other_architectures_teach_the_multiple_of_each_unit(runs, tmp_path):
    judged = judge(runs)
    errors = {name: float(np.mean(np.abs(told / runs.truth_ms - 1))) for name, told in judged.latency_ms.items()}
    assert errors[NAME] < 0.1
    assert errors[NAME] < errors["one constant"] < errors["one thread of eager PyTorch"]
    inside = (judged.low <= runs.truth_ms) & (runs.truth_ms <= judged.high)
    assert 0.8 < inside.mean() <= 1.0
    tables = list(cpu_runs._tables(runs, judged))
    assert tables[0].rows["measured again (2)"]["mape"] == pytest.approx(0.5 * 0.1 / 1.1)
    assert [table.title for table in tables[1:]] == [
        "Eager PyTorch on two threads: by family",
        "Eager PyTorch on two threads: the worst 10",
    ]
    assert "architectures held out" in write_report(tables, tmp_path).read_text(encoding="utf-8")


def test_a_fit_is_written_under_the_name_of_its_run(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_runs, "read_runs", lambda *_: [runs])
    file = train(tmp_path, "cpu", tmp_path, tmp_path)
    assert file == tmp_path / TWO.file
    assert UnitModel.load(file.read_bytes()).card["predictor"] == NAME


def test_a_store_without_other_runs_says_what_to_collect(tmp_path):
    write_table(tmp_path / "one", "measurements", [row("a", threads=1)])
    with pytest.raises(DataError, match=r"has no measurement of eager PyTorch on two threads, .*cpu-2\.toml"):
        read_runs(tmp_path, "cpu", tmp_path)


def row(name: str, **others) -> dict[str, object]:
    facts = {"workload_id": name, "campaign_id": "c", "status": "ok", "runtime": "cpu", "reference_ms": 0.083}
    assert set(others) <= set(TABLES["measurements"].columns)
    return facts | {"threads": 2, "latency_ms": 1.0} | others


def test_repetitions_are_compared_at_one_pace(tmp_path):
    write_table(tmp_path / "first", "measurements", [row("a"), row("b"), row("c", threads=1)])
    again = [row("a", campaign_id="d", latency_ms=3.0, reference_ms=0.166), row("c", campaign_id="d")]
    write_table(tmp_path / "second", "measurements", again)
    assert repeated(tmp_path, TWO) == [(1.0, pytest.approx(1.5))]
