import time

import pytest
import torch

from foretell.errors import MeasurementError
from foretell.processes.child import PoisonedError
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.replays.captured import CpuReplays
from foretell.profiling.replays.replay_worker import ReplayWorker
from foretell.profiling.workload import Workload
from small.measured import TINY

SOON = {"stop_at": time.monotonic() + 86_400}  # from when tests are collected: a slow machine may take long until here


def workload(spec=TINY[0], batch=2):
    return Workload(spec, batch, (16,), "fp32")


class Fragile(CpuReplays):
    """Fails where it is told to."""

    failure: Exception | None = None
    broken = False
    used_bytes = 0

    def capture(self, step):
        if self.failure is not None:
            raise self.failure
        return super().capture(step)

    def works(self):
        return not self.broken

    def reserved_bytes(self):
        return self.used_bytes


@pytest.fixture
def replay_workers():
    messages = []
    runtime = Fragile(Measuring(warmups=1, tries=1))
    return ReplayWorker(runtime, runtime._measuring, 1.0, messages.append), runtime, messages


def prepare(worker, *workloads, **more):
    worker.execute({"do": "prepare", "workloads": [workload.to_json() for workload in workloads], **SOON, **more})


def test_what_is_prepared_can_be_timed_and_replayed_until_it_is_dropped(replay_workers):
    worker, _, messages = replay_workers
    prepare(worker, workload(), workload(TINY[1]))
    worker.execute({"do": "time", **SOON})
    timed = [message for message in messages if message["event"] == "timed"]
    assert [message["id"] for message in timed] == [workload().id, workload(TINY[1]).id]
    assert timed[0]["values"]["latency_ms"] > 0
    prepared = next(message for message in messages if message["event"] == "prepared")
    assert prepared["values"]["macs"] == 2 * (16 * 16 + 16 * 8)
    worker.execute({"do": "replay", "id": workload().id})
    assert len(messages[-1]["moments"]) > 20
    start = time.monotonic() + 0.01
    worker.execute({"do": "replay", "id": workload().id, "start": start, "seconds": 0.02, "replay_ms": 0.05})
    assert messages[-1]["moments"][0] >= start
    worker.execute({"do": "drop"})
    messages.clear()
    worker.execute({"do": "time", **SOON})
    assert messages == []


def test_no_more_than_requested_is_prepared_and_nothing_after_the_deadline(replay_workers):
    worker, _, messages = replay_workers
    prepare(worker, workload(), workload(TINY[1]), workload(TINY[2]), wanted=2)
    assert sum(message["event"] == "prepared" for message in messages) == 2
    messages.clear()
    worker.execute({"do": "prepare", "workloads": [workload(TINY[3]).to_json()], "stop_at": time.monotonic() - 1})
    assert messages == []


@pytest.mark.parametrize(
    ("failure", "status"),
    [(RuntimeError("shapes do not fit"), "run_error"), (torch.cuda.OutOfMemoryError("no memory"), "oom")],
)
def test_a_step_that_fails_is_a_record_and_leaves_nothing_behind(replay_workers, failure, status):
    worker, runtime, messages = replay_workers
    runtime.failure = failure
    prepare(worker, workload())
    assert messages[-1]["status"] == status
    assert str(failure) in messages[-1]["values"]["error"]
    runtime.failure = None
    prepare(worker, workload(TINY[1]))
    messages.clear()
    worker.execute({"do": "time", **SOON})
    assert {message["id"] for message in messages} == {workload(TINY[1]).id}


def test_a_model_that_cannot_be_built_is_a_record(replay_workers):
    worker, _, messages = replay_workers
    prepare(worker, workload("synthetic:mlp?act=relu&widths=x"))
    assert messages[-1]["status"] == "build_error"


def test_a_full_process_takes_nothing_more(replay_workers):
    worker, runtime, messages = replay_workers
    runtime.used_bytes = 2**31
    prepare(worker, workload())
    assert messages[-1]["status"] == "skipped"


def test_a_broken_context_ends_the_process(replay_workers):
    worker, runtime, _ = replay_workers
    runtime.failure, runtime.broken = RuntimeError("CUDA error: illegal access"), True
    with pytest.raises(PoisonedError):
        prepare(worker, workload())


def test_an_unknown_command_is_refused(replay_workers):
    with pytest.raises(MeasurementError, match="Unknown command 'dance'"):
        replay_workers[0].execute({"do": "dance"})
