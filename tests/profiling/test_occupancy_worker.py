import os
import subprocess
import sys
import time

import pytest

from foretell.profiling.occupancy_worker import Counting, LaunchCounter, OccupancyWorker
from foretell.profiling.turnstile import Turnstile
from foretell.profiling.workload import Workload

torch = pytest.importorskip("torch")

MLP = "synthetic:mlp?act=relu&widths=8-16-4"


def _counted(run) -> int:
    counter = LaunchCounter()
    with counter.counting():
        run()
    return counter.kernels


def _worker(tmp_path, said, **changes):
    turnstile = Turnstile(tmp_path, 0)
    turnstile.open()
    settings = {"device": "cpu", "kernels_max": 100, "run_s": 5, "limits": {}, **changes}
    return OccupancyWorker(turnstile, settings, said.append, Counting("cpu"))


def test_views_are_no_launches_and_a_recurrent_call_is_many():
    matrix = torch.ones(4, 6)
    assert _counted(lambda: matrix.t().reshape(3, 8).relu().add(1)) == 3  # the reshape copies
    assert _counted(lambda: matrix.view(24)) == 0
    lstm = torch.nn.LSTM(4, 4).eval()
    with torch.inference_mode():
        assert _counted(lambda: lstm(torch.zeros(50, 2, 4))) >= 50


def test_each_workload_is_one_range_in_order(tmp_path):
    said = []
    workloads = [Workload(MLP, batch, (8,), "fp32") for batch in (1, 2, 4)]
    _worker(tmp_path, said).run_group(workloads, 2, time.time() + 60)
    assert [event["id"] for event in said if event["event"] == "open"] == [each.id for each in workloads[:2]]
    assert [event["id"] for event in said if event["event"] == "close"] == [each.id for each in workloads[:2]]


def test_too_many_kernels_are_skipped_with_the_number(tmp_path):
    said = []
    _worker(tmp_path, said, kernels_max=1).run_group([Workload(MLP, 1, (8,), "fp32")], 1, time.time() + 60)
    assert said[-1]["status"] == "skipped"
    assert "kernels" in said[-1]["error"]
    assert not [event for event in said if event["event"] == "open"]


def test_a_model_that_cannot_be_built_or_run_is_a_record(tmp_path):
    said = []
    worker = _worker(tmp_path, said)
    worker.run_group([Workload("synthetic:nothing?x=1", 1, (8,), "fp32")], 1, time.time() + 60)
    worker.run_group([Workload(MLP, 1, (9,), "fp32")], 1, time.time() + 60)
    assert [event["status"] for event in said if event["event"] == "record"] == ["build_error", "run_error"]


def test_a_broken_context_ends_the_process(tmp_path, monkeypatch):
    said = []
    worker = _worker(tmp_path, said)
    monkeypatch.setattr(worker, "_count", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal")))
    with pytest.raises(SystemExit):
        worker.run_group([Workload(MLP, 1, (8,), "fp32")], 1, time.time() + 60)
    assert said[-1]["status"] == "run_error"


def test_the_worker_ends_when_its_time_is_over_or_its_campaign_is_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for campaign, kill_at in ((os.getpid(), time.time()), (gone.pid, time.time() + 60)):
        script = f"from foretell.profiling.occupancy_worker import _watch; _watch({campaign}, {kill_at})"
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 4
