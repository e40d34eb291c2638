"""The same plan on a local Ray cluster. Ray warns about many things, so that its driver is a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from foretell.errors import MissingExtraError
from foretell.optional import available
from foretell.profiling.campaign import ray_cluster
from foretell.profiling.campaign.journal import read_records, read_traces

DRIVER = str(Path(__file__).parents[2] / "fakes" / "ray_driver.py")
needs_ray = pytest.mark.skipif(not available("ray"), reason="Ray is an extra: pip install 'foretell[ray]'")


def _start(out, marks, names, *options, **more):
    environment = {**os.environ, "QUICK_WORKER_MARKS": str(marks), **more}
    command = [sys.executable, DRIVER, *options, str(out), *names]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0)


def _finish(process):
    output, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors.decode()[-2000:]
    return json.loads(output.splitlines()[-1])


def _records(out):
    return [line for line in read_records(out) if line["kind"] == "measurement"]


# starting a cluster takes ten to forty seconds: scripts/test runs it after the others
@needs_ray
@pytest.mark.slow
def test_two_workers_measure_a_plan_and_what_dies_is_run_again(tmp_path):
    out = tmp_path / "out"
    names = ("fine1", "die1", "crash1", "fallback1", "fails1")
    counts = _finish(_start(out, tmp_path, names))
    outcomes = Counter(f"{str(line['spec']).partition(':')[2][:-1]} {line['status']}" for line in _records(out))
    assert outcomes["fine ok"] == outcomes["die ok"] == outcomes["fallback ok"] == 2
    assert outcomes["crash crash"] >= 2
    assert outcomes["fails oom"] >= 2
    assert (tmp_path / "die1").exists()  # its first task took the Ray worker with it
    ids = [line["workload_id"] for line in _records(out)]
    assert len(ids) == len(set(ids)) == sum(counts.values()) - counts.get("traced", 0)
    traces = [trace["workload_id"] for trace in read_traces(out)]
    assert set(traces) <= set(ids)
    headers = {line["campaign_id"]: line for line in read_records(out) if line["kind"] == "campaign"}
    assert {line["campaign_id"] for line in _records(out)} <= set(headers)
    assert all(header["host"] for header in headers.values())


@needs_ray
@pytest.mark.slow
def test_two_machines_and_a_driver_that_is_killed(tmp_path):
    out = tmp_path / "out"
    names = tuple(f"model{number}" for number in range(30))
    process = _start(out, tmp_path, names, "--nodes", QUICK_WORKER_S="0.3")
    until = time.monotonic() + 600
    while time.monotonic() < until and (not (out / "journal.jsonl").exists() or len(_records(out)) < 5):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = {line["workload_id"] for line in _records(out)}
    assert 5 <= len(before) < 60
    _finish(_start(out, tmp_path, names, "--nodes"))
    ids = [line["workload_id"] for line in _records(out)]
    assert before <= set(ids)
    assert len(ids) == len(set(ids)) == 60


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("foretell.optional.available", lambda _: False)
    with pytest.raises(MissingExtraError, match=r"foretell\[ray\]"):
        ray_cluster.connect("local", 2, "cpu")
