"""The same plan on a local Ray cluster. Ray warns about many things, so that its driver is a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from foretell.errors import MissingExtraError
from foretell.optional import available
from foretell.workflows.many.ray_workers import RayWorkers

DRIVER = str(Path(__file__).parents[2] / "fakes" / "ray_many.py")
COUNT = 60
# number 7 takes its worker with it, once
SPACE = """
import os, signal, time
from pathlib import Path
from foretell.testing import tiny_graph
MARK = Path(__file__).with_name("died")
def network(number):
    if number == 7 and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return tiny_graph(channels=4 + number)
"""
needs_ray = pytest.mark.skipif(not available("ray"), reason="Ray is an extra: pip install 'foretell[ray]'")


def plan_in(folder: Path) -> Path:
    (folder / "space.py").write_text(SPACE)
    plan = folder / "plan.toml"
    plan.write_text(f'[models]\nspace = "space.py:network"\ncount = {COUNT}\n[shards]\nmodels = 10\n')
    return plan


def rows_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("shard-*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


# starting a cluster takes ten to forty seconds: scripts/test runs it after the others
@needs_ray
@pytest.mark.slow
def test_two_workers_predict_a_plan_and_survive_lost_workers_and_a_lost_machine(tmp_path: Path) -> None:
    command = [sys.executable, DRIVER, str(plan_in(tmp_path)), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["models"], said["predictions"], said["errors"], said["lost_machines"]) == (COUNT, COUNT, 0, 1)
    assert said["lost"] >= 1
    assert (tmp_path / "died").exists()
    assert [row["number"] for row in rows_in(tmp_path / "out")] == list(range(COUNT))


@needs_ray
@pytest.mark.slow
def test_two_workers_go_on_where_a_killed_run_ended(tmp_path: Path) -> None:
    plan, out = plan_in(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "foretell", "predict-many", str(plan), "-o", str(out), "--trust"]
    first = subprocess.Popen([*command, "--workers", "2"], process_group=0, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while time.monotonic() < until and not list(out.glob("shard-*.parquet")):
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("shard-*.parquet")}
    assert 1 <= len(before) < COUNT / 10
    second = subprocess.run([*command, "--ray", "local", "--workers", "2"], check=True, capture_output=True)
    assert b"60 predictions in 6 shards" in second.stdout
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    assert [row["number"] for row in rows_in(out)] == list(range(COUNT))
    assert json.loads((out / "manifest.json").read_text())["complete"] is True


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.optional.available", lambda _: False)
    with pytest.raises(MissingExtraError, match=r"foretell\[ray\]"):
        RayWorkers("local", 2).start()
