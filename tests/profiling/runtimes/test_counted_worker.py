import os
import subprocess
import sys
import time

import pytest

from foretell.profiling.runtimes.counted_worker import Counting, OccupancyWorker
from foretell.profiling.workload import Workload

torch = pytest.importorskip("torch")

MLP = "synthetic:mlp?act=relu&widths=8-16-4"


def _worker(messages, **changes):
    settings = {"device": "cpu", "kernels_max": 100, "run_s": 5, "limits": {}, **changes}
    return OccupancyWorker(settings, messages.append, Counting("cpu"))


def _run(worker, workloads, count):
    model = worker.build(workloads, count)
    if model is not None:
        worker.count(model, time.monotonic() + 60)


def test_each_workload_is_one_range_in_order():
    messages = []
    workloads = [Workload(MLP, batch, (8,), "fp32") for batch in (1, 2, 4)]
    _run(_worker(messages), workloads, 2)
    assert [event["id"] for event in messages if event["event"] == "open"] == [
        workload.id for workload in workloads[:2]
    ]
    assert [event["id"] for event in messages if event["event"] == "close"] == [
        workload.id for workload in workloads[:2]
    ]


def test_too_many_kernels_are_skipped_with_the_number():
    messages = []
    _run(_worker(messages, kernels_max=1), [Workload(MLP, 1, (8,), "fp32")], 1)
    assert messages[-1]["status"] == "skipped"
    assert "kernels" in messages[-1]["error"]
    assert not [event for event in messages if event["event"] == "open"]


def test_a_model_that_cannot_be_built_or_run_is_a_record():
    messages = []
    worker = _worker(messages)
    _run(worker, [Workload("synthetic:nothing?x=1", 1, (8,), "fp32")], 1)
    _run(worker, [Workload(MLP, 1, (9,), "fp32")], 1)
    assert [event["status"] for event in messages if event["event"] == "record"] == ["build_error", "run_error"]


def test_a_broken_context_ends_the_process(monkeypatch):
    messages = []
    worker = _worker(messages)
    monkeypatch.setattr(worker, "_count", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA error: illegal")))
    with pytest.raises(SystemExit):
        _run(worker, [Workload(MLP, 1, (8,), "fp32")], 1)
    assert messages[-1]["status"] == "run_error"


def test_the_worker_ends_when_its_time_is_over_or_its_campaign_is_gone():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for campaign, kill_at in ((os.getpid(), time.monotonic()), (gone.pid, time.monotonic() + 60)):
        script = f"from foretell.profiling.runtimes.counted_worker import _watch; _watch({campaign}, {kill_at})"
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 4


def test_one_process_at_a_time_has_the_turn_and_keeps_it_until_it_ends(tmp_path):
    script = (
        "import pathlib, sys, time; from foretell.profiling.runtimes.counted_worker import _wait_for_turn;"
        "_wait_for_turn(pathlib.Path(sys.argv[1])); print(time.monotonic(), flush=True); time.sleep(0.4)"
    )
    two = [subprocess.Popen([sys.executable, "-c", script, tmp_path / "turn"], stdout=subprocess.PIPE) for _ in "ab"]
    first, second = sorted(float(process.communicate()[0]) for process in two)
    assert second - first >= 0.4
