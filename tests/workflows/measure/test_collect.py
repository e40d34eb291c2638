"""``foretell.collect``: what it refuses before any time is spent, and what it leaves behind."""

import errno
import functools
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from foretell import collect
from foretell.errors import DataError, DeviceError, InputError, MeasurementError
from foretell.profiling.campaign import measurements as campaign
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.journal import read_records
from foretell.profiling.campaign.plan import KINDS

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
from fakes import quick_collect

workflow = importlib.import_module("foretell.workflows.measure.collect")


TOTAL = 12


@pytest.fixture
def plan(tmp_path, monkeypatch):
    path = tmp_path / "plan.toml"
    path.write_text(quick_collect.PLAN)
    zoo = quick_collect.QuickZoo()
    zoo.names = ("fine1", "fine2", "fails1", "fallback1")
    monkeypatch.setattr(schedule, "load_zoo", lambda _: zoo)
    monkeypatch.setattr(campaign, "Campaign", functools.partial(campaign.Campaign, command=quick_collect.WORKER))
    return path


def _ids(folder):
    return [line["workload_id"] for line in read_records(folder) if line["kind"] == "measurement"]


def test_a_plan_becomes_a_journal_tables_and_rows_of_a_store(plan, tmp_path):
    progress, out, store = [], tmp_path / "out", tmp_path / "store"
    done = collect(plan, out=out, store=store, device="cpu", seconds=60, on_progress=progress.append)
    assert done.counts["ok"] == 9
    assert done.counts["oom"] == 3
    assert done.rows["measurements"] == done.appended["measurements"] == len(_ids(out)) == TOTAL
    assert progress[-1].finished == TOTAL
    assert not done.interrupted
    again = collect(plan, out=out, store=store, device="cpu", seconds=60)
    assert (again.counts, sum(again.appended.values())) == ({}, 0)
    assert again.rows == done.rows


def test_a_store_around_the_folder_has_its_tables_already(plan, tmp_path):
    done = collect(plan, out=tmp_path / "store" / "one", store=tmp_path / "store", device="cpu", limit=2)
    assert done.rows["measurements"] >= 2
    assert done.appended == {}


def test_ctrl_c_keeps_what_is_measured(plan, tmp_path):
    def stop(state):
        if state.finished:
            raise KeyboardInterrupt

    done = collect(plan, out=tmp_path, device="cpu", seconds=60, on_progress=stop)
    assert done.interrupted
    assert done.rows["measurements"] == len(_ids(tmp_path)) > 0
    assert not collect(plan, out=tmp_path, device="cpu", seconds=60).interrupted
    assert len(_ids(tmp_path)) == TOTAL


def test_a_plan_may_have_a_time_budget(plan, tmp_path, monkeypatch):
    plan.write_text("seconds = 77\n" + quick_collect.PLAN)
    budgets = []
    monkeypatch.setattr(campaign, "run", lambda job: budgets.append(job.seconds) or {})
    collect(plan, out=tmp_path, device="cpu")
    collect(plan, out=tmp_path, device="cpu", seconds=5)
    plan.write_text(quick_collect.PLAN)
    collect(plan, out=tmp_path, device="cpu")
    assert budgets == [77, 5, workflow.NO_LIMIT_S]


@pytest.mark.parametrize("kind", [kind for kind in workflow.CAMPAIGNS if kind != "measurements"])
def test_every_kind_of_campaign_is_there_and_its_progress_is_seen(kind, plan, tmp_path, monkeypatch):
    real = workflow.CAMPAIGNS.load(kind)
    seen, finished = [], threading.Event()

    def run(job):
        seen.append(job)
        (job.out / "journal.jsonl").write_text('{"kind":"campaign","campaign_id":"c"}\n')
        assert finished.wait(120)
        return {"ok": 1}

    monkeypatch.setattr(sys.modules[real.__module__], "run", run)
    monkeypatch.setattr(workflow, "_POLL_S", 0.01)
    plan.write_text(f'kind = "{kind}"\n' + quick_collect.PLAN)
    done = collect(plan, out=tmp_path / "out", device="cpu", skip=["x"], limit=3, on_progress=lambda _: finished.set())
    assert (done.counts, done.rows) == ({"ok": 1}, {"campaigns": 1})
    (job,) = seen
    assert (job.plan.kind, job.device, job.skip, job.limit) == (kind, "cpu", (Path("x"),), 3)


def test_two_campaigns_do_not_share_a_folder(plan, tmp_path):
    with workflow._locked_folder(tmp_path), pytest.raises(MeasurementError, match="Another campaign"):
        collect(plan, out=tmp_path, device="cpu")


def test_what_cannot_be_used_is_refused_before_anything_is_measured(plan, tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.mkdir()
    (store / "measurements.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"measurements\.parquet"):
        collect(plan, out=tmp_path / "out", store=store, device="cpu")
    with pytest.raises(MeasurementError, match=r"measurements\.parquet"):
        collect(plan, out=tmp_path / "out", skip=[store], device="cpu")
    assert _ids(tmp_path / "out") == []
    assert (store / "measurements.parquet").read_bytes() == b"PAR1 torn"
    with pytest.raises(MeasurementError, match="nothing at"):
        collect(plan, out=tmp_path / "out", skip=[tmp_path / "absent"], device="cpu")
    (tmp_path / "file").touch()
    with pytest.raises(MeasurementError, match="Cannot write to"):
        collect(plan, out=tmp_path / "file" / "out", device="cpu")
    for wrong in ({"seconds": -1}, {"workers": (0, 1)}, {"limit": -1}, {"again": -1}, {"ray": "local", "again": 3}):
        with pytest.raises(InputError):
            collect(plan, out=tmp_path / "out", device="cpu", **wrong)
    with pytest.raises(DeviceError, match="cpu"):
        collect(plan, out=tmp_path / "out", device="tpu")
    monkeypatch.setattr(workflow.shutil, "which", lambda _: None)
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(DeviceError, match="no NVIDIA GPU"):
            collect(plan, out=tmp_path / "out")


def test_a_read_only_folder_is_one_clear_error(plan, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MeasurementError, match=r"Read-only file system\. Choose another --out"):
        collect(plan, out=tmp_path / "out", device="cpu")


def test_damaged_tables_beside_the_journal_do_not_touch_it(plan, tmp_path):
    collect(plan, out=tmp_path, device="cpu", seconds=60)
    before = (tmp_path / "journal.jsonl").read_bytes()
    (tmp_path / "measurements.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(MeasurementError, match=r"measurements\.parquet"):
        collect(plan, out=tmp_path, device="cpu", seconds=60)
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    (tmp_path / "measurements.parquet").unlink()
    assert collect(plan, out=tmp_path, device="cpu", seconds=60).rows["measurements"] == TOTAL


WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("duckdb", "ray", "psycopg"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocker())
from fakes import quick_collect
quick_collect.patch(("fine1",))
done = quick_collect.collect(sys.argv[1], out=sys.argv[2], device="cpu", seconds=60)
assert done.rows["measurements"] == 3, done
"""


def test_without_a_store_neither_duckdb_nor_ray_is_needed(plan, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WITHOUT, str(plan), str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_a_predictor_misjudges_is_known_by_family() -> None:
    errors = workflow.errors_by_family("NVIDIA H200")
    assert len(errors) > 100
    assert all(0 < error < 2 for error in errors.values())
    with pytest.raises(InputError, match="No predictor is fitted to t4, so its errors are not known"):
        workflow.errors_by_family("t4")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(workflow.CAMPAIGNS)))
def test_campaign_kinds_of_the_laboratory_name_its_command(kind, plan, tmp_path):
    plan.write_text(f'kind = "{kind}"\n' + quick_collect.PLAN)
    with pytest.raises(InputError, match=f"'{kind}' belong to the laboratory: run python -m lab collect"):
        collect(plan, out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
