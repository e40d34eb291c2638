import os
import signal
import time

import pytest
import torch

from foretell.errors import MeasurementError
from foretell.processes.child import PoisonedError
from foretell.profiling.campaign.plan import Compiled, Limits, Measuring
from foretell.profiling.replays.captured import CpuReplays
from foretell.profiling.replays.compiled_worker import CompiledWorker, InterruptedPreparation, compile_model
from foretell.profiling.runtimes.cuda import CaptureError
from foretell.profiling.workload import Workload
from small.measured import TINY

SOON = {"stop_at": time.monotonic() + 86_400}  # from when tests are collected: a slow machine may take long until here


def compile_quickly(model):
    """The compiler's front half alone."""
    return compile_model(model, backend="eager")


class Fragile(CpuReplays):
    """Fails where it is told to."""

    failure: Exception | None = None
    broken = False

    def capture(self, step):
        if self.failure is not None:
            raise self.failure
        return super().capture(step)

    def works(self):
        return not self.broken


def workload(spec=TINY[0], batch=2):
    return Workload(spec, batch, (16,), "fp32")


class ReplayWorkers:
    """A worker in this process and what it said."""

    def __init__(self, compiler=compile_quickly, limits=None, compiled=None):
        self.messages = []
        measuring = Measuring(warmups=1, tries=1, replays=5)
        self.runtime = Fragile(measuring)
        plan = (measuring, limits or Limits(), compiled or Compiled())
        self.worker = CompiledWorker(self.runtime, plan, self.messages.append, compiler)

    def prepare(self, *workloads):
        for workload in workloads:
            self.worker.execute({"do": "prepare", "workload": workload.to_json()})

    def heard(self, event):
        return [message for message in self.messages if message["event"] == event]


def _graphs():
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def test_what_is_compiled_is_kept_until_it_is_timed_and_traced():
    replay_workers = ReplayWorkers()
    replay_workers.prepare(workload(), workload(TINY[1]))
    assert [message["id"] for message in replay_workers.heard("kept")] == [workload().id, workload(TINY[1]).id]
    assert replay_workers.heard("kept")[0]["values"]["graph_breaks"] == 0
    assert replay_workers.heard("kept")[0]["values"]["compile_s"] > 0
    graphs = _graphs()
    replay_workers.worker.execute({"do": "trace", **SOON})
    assert not replay_workers.heard("traced")  # nothing is timed yet
    replay_workers.worker.execute({"do": "time", **SOON})
    replay_workers.worker.execute({"do": "tracer"})
    replay_workers.worker.execute({"do": "trace", **SOON})
    timed, traced = replay_workers.heard("timed"), replay_workers.heard("traced")
    assert [message["id"] for message in timed] == [message["id"] for message in traced]
    assert timed[0]["values"]["eager_ms"] > 0
    assert timed[0]["values"]["compiled_ms"] > 0
    kernels = traced[0]["kernels"]
    assert {len(column) for column in kernels.values()} == {len(kernels["name"])}
    assert traced[0]["calls"]["call"] == []  # this compiler generates no code
    assert _graphs() == graphs  # neither timing nor tracing compiles again
    replay_workers.messages.clear()
    replay_workers.worker.execute({"do": "time", **SOON})
    assert replay_workers.messages == []


def test_models_of_one_class_are_all_compiled_for_their_own_sizes():
    replay_workers = ReplayWorkers()
    graphs = _graphs()
    many = [
        workload(f"synthetic:mlp?act=relu&widths=16-{width}-8", batch) for width in range(20, 26) for batch in (1, 3)
    ]
    replay_workers.prepare(*many)  # more than the compiler's default allows, and of other sizes each
    assert _graphs() - graphs == len(many)
    replay_workers.worker.execute({"do": "time", **SOON})
    assert len(replay_workers.heard("timed")) == len(many)
    assert _graphs() - graphs == len(many)


def test_nothing_is_measured_after_the_time():
    replay_workers = ReplayWorkers()
    replay_workers.prepare(workload())
    replay_workers.messages.clear()
    replay_workers.worker.execute({"do": "time", "stop_at": time.monotonic() - 1})
    assert replay_workers.messages == []


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (RuntimeError("the compiler gives up"), "run_error"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("BackendCompilerFailed: CUDA out of memory"), "oom"),
    ],
)
def test_a_model_that_does_not_compile_is_a_record_and_leaves_nothing_behind(failure, status):
    def fail(_model):
        raise failure

    replay_workers = ReplayWorkers(fail)
    replay_workers.prepare(workload())
    (message,) = replay_workers.heard("failed")
    assert message["status"] == status
    assert str(failure) in message["values"]["error"]
    replay_workers.worker.execute({"do": "time", **SOON})
    assert not replay_workers.heard("timed")


def test_a_step_that_cannot_be_captured_is_a_record():
    replay_workers = ReplayWorkers(lambda model: model)
    replay_workers.prepare(workload())
    assert replay_workers.heard("kept")[0]["values"]["graph_breaks"] is None  # nothing was compiled: nobody knows
    replay_workers.runtime.failure = CaptureError("The step waits for the device.")
    replay_workers.worker.execute({"do": "time", **SOON})
    (message,) = replay_workers.heard("failed")
    assert message["status"] == "run_error"
    assert "waits for the device" in message["values"]["error"]


def test_models_that_cannot_be_built_or_are_too_large_are_records():
    replay_workers = ReplayWorkers(lambda model: model, Limits(max_parameters=100))
    replay_workers.prepare(workload("synthetic:mlp?act=relu&widths=x"), workload())
    assert [message["status"] for message in replay_workers.heard("failed")] == ["build_error", "skipped"]


def test_a_trace_that_fails_leaves_the_times(monkeypatch):
    replay_workers = ReplayWorkers(lambda model: model)
    replay_workers.prepare(workload())
    replay_workers.worker.execute({"do": "time", **SOON})

    def fail(*_):
        raise RuntimeError("no tracer")

    monkeypatch.setattr(replay_workers.runtime, "trace", fail)
    replay_workers.worker.execute({"do": "tracer"})
    replay_workers.worker.execute({"do": "trace", **SOON})
    (message,) = replay_workers.heard("traced")
    assert (message["kernels"], message["error"]) == (None, "RuntimeError: no tracer")


def test_a_signal_ends_a_compilation_without_a_record():
    def compile_for_ever(_model):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(100)

    replay_workers = ReplayWorkers(compile_for_ever)

    def interrupt(_number, _frame):
        if replay_workers.worker.preparing:
            raise InterruptedPreparation

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        replay_workers.prepare(workload())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [message["event"] for message in replay_workers.messages] == ["begin"]
    assert not replay_workers.worker.preparing


def test_a_process_with_enough_models_is_full():
    replay_workers = ReplayWorkers(lambda model: model, compiled=Compiled(per_process=1))
    assert not replay_workers.worker.is_full()
    replay_workers.prepare(workload())
    assert replay_workers.worker.is_full()


def test_a_broken_context_ends_the_process():
    replay_workers = ReplayWorkers(lambda model: model)
    replay_workers.prepare(workload())
    replay_workers.runtime.failure, replay_workers.runtime.broken = RuntimeError("CUDA error: illegal access"), True
    with pytest.raises(PoisonedError):
        replay_workers.worker.execute({"do": "time", **SOON})
    assert replay_workers.heard("failed")[0]["status"] == "run_error"


def test_an_unknown_command_is_refused():
    with pytest.raises(MeasurementError, match="Unknown command 'dance'"):
        ReplayWorkers().worker.execute({"do": "dance"})
