"""The real worker on the host, in this process; and one campaign through real child processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from foretell.processes.child import PoisonedError
from foretell.processes.device_lock import FREE, DeviceLock, open_state
from foretell.processes.forked import EndedError
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.measurements import run
from foretell.profiling.campaign.plan import Limits, Measuring, read_plan
from foretell.profiling.campaign.schedule import Group
from foretell.profiling.campaign.worker import Worker, set_environment, start_threads
from foretell.profiling.runtimes.cpu import CpuRuntime
from foretell.profiling.runtimes.cuda import CaptureError
from foretell.profiling.trackers.kernels import KernelTable
from foretell.profiling.workload import Workload

QUICK = Measuring(warmups=2, replays=3, tries=1)
LENET = tuple(Workload("synthetic:lenet?scale=1", batch, (1, 28, 28), "fp32") for batch in (1, 2, 4))


@pytest.fixture
def make_worker(tmp_path):
    def make(limits=Limits(), measuring=QUICK, **broken):  # noqa: B008 frozen
        device_lock = DeviceLock(tmp_path, 0)
        device_lock.open()
        messages: list[dict[str, object]] = []
        runtime = CpuRuntime(device_lock, measuring)
        for name, replacement in broken.items():
            setattr(runtime, name, replacement)
        return Worker(runtime, measuring, limits, messages.append), messages

    return make


def _raise(error):
    def fail(*_args, **_kwargs):
        raise error

    return fail


def _run(worker, workloads=LENET, count=3, role="measure", spec=None, trace=False):
    group = Group("p", spec or workloads[0].spec, tuple(workloads), count, role)
    worker.run_group(group, set(), time.monotonic() + 60, [one.id for one in workloads] if trace else ())


def _statuses(events):
    return [message["status"] for message in events if message["event"] == "record"]


def test_one_build_serves_all_workloads_of_a_model(make_worker):
    worker, messages = make_worker()
    _run(worker, count=2)
    records = [message["values"] for message in messages if message["event"] == "record"]
    assert _statuses(messages) == ["ok", "ok"]
    assert records[0]["build_s"] > 0
    assert records[1]["build_s"] == 0
    assert all(record["latency_ms"] > 0 and record["repeats"] >= 3 for record in records)
    assert records[1]["module_macs"] == 2 * records[0]["module_macs"] > 0


def test_onnx_runtime_measures_the_same_models(make_worker):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    worker, messages = make_worker(measuring=replace(QUICK, runtime="onnxruntime"))
    _run(worker, count=1)
    (record,) = [message for message in messages if message["event"] == "record"]
    assert record["status"] == "ok", record
    assert record["values"]["latency_ms"] > 0
    assert record["values"]["reference_ms"] > 0


def test_onnx_runtime_traces_its_nodes_and_leaves_no_file(make_worker, monkeypatch, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker, messages = make_worker(measuring=replace(QUICK, runtime="onnxruntime"))
    _run(worker, count=1, trace=True)
    (trace,) = [message for message in messages if message["event"] == "trace"]
    assert "Conv" in trace["kernels"]["op"]
    assert min(trace["kernels"]["duration_us"]) > 0
    assert not list(tmp_path.glob("foretell-onnx-*"))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not say which cores a process has")
def test_a_worker_keeps_to_as_many_cores_as_it_has_threads():
    command = "import os; from foretell.profiling.campaign.worker import keep_to_cores; keep_to_cores(1); "
    shown = subprocess.run(
        [sys.executable, "-c", command + "print(len(os.sched_getaffinity(0)))"], capture_output=True, check=True
    )
    assert shown.stdout.split() == [b"1"]


@pytest.mark.parametrize(("device", "visible"), [("cpu", ""), ("cuda", "1")])
def test_a_campaign_on_the_host_hides_gpus_from_conversions(monkeypatch, device, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "")
    set_environment(device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("device", "runtime", "threads"), [("cpu", "eager", 2), ("cpu", "onnxruntime", 1), ("cuda", "eager", 1)]
)
def test_threads_are_those_of_the_plan(device, runtime, threads):
    before = torch.get_num_threads()
    try:
        start_threads(device, replace(QUICK, runtime=runtime, threads=2))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_threads_start_in_the_copies_of_a_worker_alone(make_fresh):
    def warm_up(*_):
        raise RuntimeError(f"{torch.get_num_threads()} threads")

    worker, messages = make_fresh(measuring=replace(QUICK, threads=2), warm_up=warm_up)
    before = torch.get_num_threads()
    _run(worker, count=1)
    assert torch.get_num_threads() == before, "a copy of a process with OpenMP's threads waits for them forever"
    assert "2 threads" in next(m["values"]["error"] for m in messages() if m["event"] == "record")


def test_a_model_that_cannot_be_built_is_a_record(make_worker):
    worker, messages = make_worker()
    _run(worker, spec="synthetic:lennet")
    assert _statuses(messages) == ["build_error"] * 3


def test_a_model_that_cannot_run_is_a_record_and_the_next_one_runs(make_worker):
    worker, messages = make_worker()
    wrong = Workload(LENET[0].spec, 2, (3, 28, 28), "fp32")
    _run(worker, [wrong, *LENET], count=2)
    assert _statuses(messages) == ["run_error", "ok", "ok"]


def test_out_of_memory_is_a_record(make_worker):
    worker, messages = make_worker(measure=_raise(torch.cuda.OutOfMemoryError("CUDA out of memory")))
    _run(worker)
    assert _statuses(messages) == ["oom"] * 3


def test_what_cannot_be_captured_is_passed_on(make_worker):
    worker, messages = make_worker(measure=_raise(CaptureError("The step waits for the device.")))
    _run(worker, count=2)
    assert [message["event"] for message in messages] == ["begin", "begin", "fallback", "begin", "fallback"]
    worker, messages = make_worker()
    _run(worker, count=1, role="fallback")
    assert [message["event"] for message in messages] == ["begin", "begin", "trace", "record"]


def test_a_broken_context_ends_the_worker(make_worker):
    worker, messages = make_worker(
        measure=_raise(RuntimeError("CUDA error: an illegal memory access")), healthy=lambda: False
    )
    with pytest.raises(PoisonedError):
        _run(worker)
    assert _statuses(messages) == ["cuda_error"]


def test_what_would_take_too_long_is_left_out_and_a_spare_stands_in(make_worker):
    worker, messages = make_worker(limits=Limits(max_latency_ms=1e-4))
    _run(worker, [LENET[0], Workload(LENET[0].spec, 4096, (1, 28, 28), "fp32"), LENET[0]], count=2)
    assert _statuses(messages)[:2] == ["ok", "skipped"]


def test_too_many_parameters_are_left_out(make_worker):
    worker, messages = make_worker(limits=Limits(max_parameters=100))
    _run(worker)
    assert _statuses(messages) == ["skipped"] * 3


def test_after_the_time_nothing_is_begun(make_worker):
    worker, messages = make_worker()
    worker.run_group(Group("p", LENET[0].spec, LENET, 3), set(), time.monotonic() - 1)
    assert _statuses(messages) == []


@pytest.fixture
def make_fresh(tmp_path):
    """A worker that forks; what its copies say is read from a file."""

    def make(limits=Limits(), measuring=QUICK, **broken):  # noqa: B008 frozen
        device_lock = DeviceLock(tmp_path, 0)
        device_lock.open()
        runtime = CpuRuntime(device_lock, measuring)
        # threads of earlier tests do not live on in a copy: it must not wait for them
        runtime.open = lambda **_: torch.set_num_threads(1)
        for name, replacement in broken.items():
            setattr(runtime, name, replacement)
        path = tmp_path / "said.jsonl"
        path.write_text("")

        def say(message):
            with path.open("a") as file:
                file.write(json.dumps(message | {"pid": os.getpid()}) + "\n")

        worker = Worker(runtime, measuring, limits, say, device_lock)
        worker.try_device()
        return worker, lambda: [json.loads(line) for line in path.read_text().splitlines()]

    return make


def _traced_on(*streams):
    table = KernelTable(name=["gemm"] * len(streams), stream=list(streams))
    return lambda *_: [table]


def test_each_workload_has_a_fresh_process(make_fresh):
    worker, messages = make_fresh()
    _run(worker, count=2)
    records = [message for message in messages() if message["event"] == "record"]
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert len({record["pid"] for record in records} - {os.getpid()}) == 2
    assert all(record["values"]["latency_ms"] > 0 for record in records)
    assert "process_state" not in records[0]["values"], "nothing was traced: nobody knows"


@pytest.mark.parametrize(
    ("streams", "state"), [((7, 7), "clean"), ((7, 13), "second-stream"), ((-1,), None), ((), None)]
)
def test_the_streams_of_a_trace_give_the_process_state(make_fresh, streams, state):
    worker, messages = make_fresh(trace=_traced_on(*streams))
    group = Group("p", LENET[0].spec, LENET[:1], 1)
    worker.run_group(group, set(), time.monotonic() + 60, {LENET[0].id})
    *_, traced, record = messages()
    assert (traced["event"], traced["pid"]) == ("trace", record["pid"])
    assert record["values"].get("process_state") == state


def test_a_single_stream_gives_no_state_in_a_used_process(make_worker):
    worker, messages = make_worker(trace=_traced_on(7))
    _run(worker, LENET[:1], role="fallback")
    assert "process_state" not in messages[-1]["values"]
    worker, messages = make_worker(trace=_traced_on(7, 8))
    _run(worker, LENET[:1], role="fallback")
    assert messages[-1]["values"]["process_state"] == "second-stream"


def test_a_trace_that_fails_costs_no_measurement(make_fresh):
    worker, messages = make_fresh(trace=_raise(RuntimeError("no profiler")))
    worker.run_group(Group("p", LENET[0].spec, LENET[:1], 1), set(), time.monotonic() + 60, {LENET[0].id})
    assert _statuses(messages()) == ["ok"]


def test_a_process_that_dies_costs_its_workload_alone(make_fresh, tmp_path):
    worker, messages = make_fresh(measure=lambda *_args, **_kwargs: os.kill(os.getpid(), signal.SIGKILL))
    _run(worker)
    crashed = [message["values"]["error"] for message in messages() if message["event"] == "record"]
    assert crashed == ["exit code -9"] * 3
    assert open_state(tmp_path)[0] == FREE


def test_the_learnt_cost_outlives_the_child_process(make_fresh):
    worker, messages = make_fresh(limits=Limits(max_latency_ms=1e-4))
    _run(worker, [LENET[0], Workload(LENET[0].spec, 4096, (1, 28, 28), "fp32")], count=2)
    assert _statuses(messages()) == ["ok", "skipped"]


def test_a_device_that_does_not_answer_ends_the_worker(make_fresh):
    with pytest.raises(EndedError):
        make_fresh(open=_raise(RuntimeError("no device")))


PLAN = """
seed = 1
[workers]
measure = 1
trace = 0
[measuring]
warmups = 1
replays = 2
tries = 1
trace_share = 1.0
[[part]]
name = "lenet"
share = 1
zoos = ["synthetic"]
families = ["synthetic-lenet"]
batch_sizes = [1, 2, 4]
per_model = 2
dtypes = ["fp32"]
"""


@pytest.mark.parametrize("fresh", ["true", "false"])
def test_a_campaign_on_the_host(tmp_path, fresh):
    (tmp_path / "plan.toml").write_text(PLAN.replace("trace = 0", f"trace = 0\nfresh = {fresh}"))
    out = tmp_path / "out"
    plan = read_plan(tmp_path / "plan.toml")
    counts = run(Job(plan, out, "cpu", 90.0, time.monotonic()))
    assert counts == {"ok": 2, "traced": 2}
    records = [record for record in read_records(out) if record["kind"] == "measurement"]
    assert [record["status"] for record in records] == ["ok", "ok"]
    assert {trace["workload_id"] for trace in read_traces(out)} == {record["workload_id"] for record in records}
    summary = json.loads((out / "campaign.json").read_text())
    assert summary["counts"] == counts
    assert summary["restarts"] == 0
