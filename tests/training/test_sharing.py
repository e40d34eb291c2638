"""Groups are read, judged on architectures that were not seen, and fitted."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.sharing import fit, launches
from foretell.predictors.sharing.model import SharingModel
from foretell.training import sharing
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows
from foretell.training.fusion import fold_of
from foretell.training.judging.sharing import Judged
from small.small_store import write_store, write_table

pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")

WIDTHS = (8, 16, 32, 48, 64, 96, 128)
SLOWDOWN = {"mps": {2: 1.5, 3: 2.0}, "time-slicing": {2: 2.2, 3: 3.3}}
FACTS = ("workload_id", "spec", "family", "mode", "dtype", "batch_size")
GRID = {"grid_x": 264, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}


@pytest.fixture(scope="module", autouse=True)
def _fewer_trees() -> Iterator[None]:
    """A few groups need few trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_FIT", replace(fit._FIT, rounds=100, learning_rate=0.15))
        patch.setattr(launches, "_FIT", replace(launches._FIT, rounds=10))
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs and trios of neighbouring workloads; one group lacks a member, one workload was never measured alone."""
    folder = write_store(tmp_path_factory.mktemp("store"), WIDTHS)
    known = [row for row in measured_rows(folder).values() if row["mode"] == "inference"]
    rows = []
    for number in range(0, len(known), 3):
        for method, slowdowns in SLOWDOWN.items():
            for members, slowdown in slowdowns.items():
                for member in range(members):
                    row = known[(number + 7 * member) % len(known)]
                    facts = {name: row[name] for name in FACTS}
                    own = {"campaign_id": "c", "group_id": f"{number}-{members}", "method": method, "member": member}
                    times = {"solo_ms": row["latency_ms"], "together_ms": slowdown * row["latency_ms"]}
                    rows.append({**facts, **own, **times, "members": members, "status": "ok"})
    lacking = {**rows[0], "group_id": "lacking"}
    unknown = [{**row, "group_id": "unknown", "workload_id": "unknown"} for row in rows[:2]]
    write_table(folder / "two", "colocation", [*rows, lacking, *unknown])
    kernels = []
    for row in known:
        if row["workload_id"].endswith("-1-fp32-inference"):
            call = {"campaign_id": "d", "workload_id": row["workload_id"], "op": "aten::x", "module": "", "name_id": 1}
            held = {**GRID, "registers": 32, "shared_bytes": 0}
            kernels += [{**call, **held, "op_index": n, "sequence": n, "duration_us": 5.0} for n in range(3)]
    write_table(folder / "three", "kernels", kernels)
    write_table(folder / "three", "kernel_names", [{"name_id": 1, "name": "void x"}])
    return folder


@pytest.fixture(scope="module")
def cache(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with networks that tell that every unit takes twice its bound."""
    folder = tmp_path_factory.mktemp("cache")
    units = sum(len(sample.units) for sample in read_samples(store, "h200", folder))
    (folder / "networks-h200-0").mkdir()
    stored = {"log_ratio": np.full(units, np.log(2.0), np.float32), "spread": np.zeros(units, np.float32)}
    np.savez(folder / "networks-h200-0" / "all-0.npz", **stored, network=np.zeros(1, np.uint8))
    return folder


@pytest.fixture(scope="module")
def group_set(store: Path, cache: Path) -> sharing.GroupSet:
    return sharing.read_groups(store, "h200", cache)


@pytest.fixture(scope="module")
def judged(store: Path, cache: Path) -> tuple[sharing.GroupSet, list[Judged]]:
    """Every member, held out: a fit for each fold, which two tests look at."""
    return sharing.judge_store(store, "h200", cache)


def test_complete_groups_of_known_workloads_are_read(group_set: sharing.GroupSet) -> None:
    assert len(group_set.groups) == 4 * len(WIDTHS) * 2
    assert group_set.source == sharing.HELD_OUT
    assert {len(group) for group in group_set.of("mps")} == {2, 3}
    member = group_set.of("mps")[0][0]
    assert np.exp(member.log_slowdown) == pytest.approx(SLOWDOWN["mps"][len(group_set.of("mps")[0])])
    assert member.unit_us == pytest.approx(2 * member.sample.units.bound_us, rel=1e-5)


def test_traced_units_have_what_their_kernels_hold(group_set: sharing.GroupSet) -> None:
    held = group_set.fills.held
    # 264 blocks of 8 warps: two on each of 132 SMs, where eight have a place
    assert held.fill == pytest.approx(0.25)
    assert held.spread == pytest.approx(1.0)
    assert held.longest == pytest.approx(1.0)
    assert held.kernels == pytest.approx(1.0)


def test_no_architecture_is_on_both_sides_and_constants_are_found(
    judged: tuple[sharing.GroupSet, list[Judged]],
) -> None:
    group_set, members = judged
    for one in members:
        assert 1 <= one.unseen <= one.members
        if one.row["method"] == "time-slicing":
            assert np.exp(one.predicted) == pytest.approx(SLOWDOWN["time-slicing"][one.members])
    # the simulation knows nothing of these constants: the trees have to learn them
    mps = [one for one in members if one.row["method"] == "mps"]
    assert np.mean([one.error for one in mps]) < 0.05 < np.mean([one.error_of("simulation alone") for one in mps])
    assert np.mean([one.error_of(sharing.MEASURED) for one in mps]) < 0.05
    folds = {fold_of(member.sample.spec) for member in group_set.groups[0]}
    first = group_set.groups[0][0].row
    assert sum(one.row is first for one in members) == len(folds)


def test_jobs_are_there_as_predicted_and_as_measured(group_set: sharing.GroupSet) -> None:
    described = sharing.describe(group_set)
    for group, jobs, measured in zip(described.groups, described.jobs, described.measured, strict=True):
        for member, job, known in zip(group, jobs, measured, strict=True):
            assert job.time_us == pytest.approx(float(member.unit_us @ member.sample.units.counts))
            # what MPS adds to each launch is in the measured time
            assert known.run_us == pytest.approx(1000 * member.row["solo_ms"], rel=0.01)


def test_train_writes_a_model_that_can_be_read(store: Path, cache: Path, tmp_path: Path) -> None:
    file = sharing.train(store, "h200", cache, tmp_path)
    model = SharingModel.load(file.read_bytes())
    assert sorted(one.members for one in model.time_slices) == [2, 3]
    assert {round(one.slowdown, 3) for one in model.time_slices} == {2.2, 3.3}


def test_the_report_has_both_methods_and_the_baselines(
    judged: tuple[sharing.GroupSet, list[Judged]],
    store: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    monkeypatch.setattr(sharing, "judge_store", lambda *given: asked.append(given[:3]) or judged)
    text = sharing.write_report(sharing.evaluate(store, "h200", cache), tmp_path).read_text()
    assert asked == [(store, "h200", cache)]
    for word in ("mps: slowdown", "time-slicing: slowdown", "linear regression", "constant", "limits right"):
        assert word in text


def test_a_store_without_groups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No group was measured"):
        sharing.read_groups(write_store(tmp_path, (8,)), "h200", tmp_path)
