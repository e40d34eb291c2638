"""Groups on two cores are read, judged on architectures that were not seen, and fitted."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.sharing import cores
from foretell.training import core_sharing
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows
from small.small_store import write_store, write_table

pytest.importorskip("pyarrow")

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128)
WEIGHTS = np.array([0.03, 0.1, 2.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs and trios whose slowdowns follow known weights; one group failed, one ran on a GPU."""
    folder = write_store(tmp_path_factory.mktemp("store"), WIDTHS)
    known = [row for row in measured_rows(folder).values() if row["mode"] == "inference"]
    traffic = {
        sample.workload_id: cores.traffic_of(sample.units.features, sample.units.counts, sample.units.bound_us)
        for sample in read_samples(folder, "h200", tmp_path_factory.mktemp("cache"))
    }
    rows = []
    for number in range(len(known)):
        for members in (2, 3):
            own = [known[(number + 7 * member) % len(known)] for member in range(members)]
            logs = cores.describe([traffic[row["workload_id"]] for row in own]) @ WEIGHTS + cores.log_time(members)
            for member, (row, log) in enumerate(zip(own, logs, strict=True)):
                facts = {name: row[name] for name in ("workload_id", "spec", "family", "mode", "dtype", "batch_size")}
                facts |= {"campaign_id": "c", "group_id": f"{number}-{members}", "method": "cores", "member": member}
                times = {"solo_ms": 2.0, "together_ms": 2.0 * float(np.exp(log))}
                rows.append({**facts, **times, "members": members, "status": "ok"})
    failed = [{**rows[0], "group_id": "failed"}, {**rows[1], "group_id": "failed", "status": "crash"}]
    on_gpu = [{**row, "group_id": "gpu", "method": "mps", "together_ms": 99.0} for row in rows[:2]]
    write_table(folder / "two", "colocation", [*rows, *failed, *on_gpu])
    return folder


def test_complete_groups_on_cores_are_read_and_their_weights_found(store: Path, tmp_path: Path) -> None:
    groups = core_sharing.read_groups(store, "h200", tmp_path)
    assert len(groups) == 2 * len(WIDTHS) * 6
    judged = core_sharing.judge(groups)
    assert all(1 <= one.unseen <= one.members for one in judged)
    ours, constant = (np.mean([one.error_of(name) for one in judged]) for name in ("sharing", "constant"))
    assert 4 * ours < constant


def test_train_writes_a_model_and_the_report_has_the_baselines(store: Path, tmp_path: Path) -> None:
    model = cores.CoreModel.load(core_sharing.train(store, "h200", tmp_path, tmp_path).read_bytes())
    assert [n for n, _ in model.widths] == [2, 3]
    assert model.slowdowns([0.5, 0.5, 0.5])[0].value > 1.5
    text = core_sharing.write_report(core_sharing.evaluate(store, "h200", tmp_path), tmp_path).read_text()
    for word in ("cores: slowdown", "time on the cores alone", "constant", "cores, the worst twenty"):
        assert word in text


def test_a_store_without_such_groups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No group shared cores"):
        core_sharing.read_groups(write_store(tmp_path, (8,)), "h200", tmp_path)
