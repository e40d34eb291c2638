"""Profiling: a child process that measures groups of workloads until its input ends.

An error inside a workload becomes a record; a crash ends only this process. If each workload gets a fresh process, this
one only imports and builds models, never uses the device itself, and forks a copy for each workload.

A campaign and its workers exchange one JSON object a line:

campaign → worker    {"group": {...}, "trace": [...]}     measure or trace these workloads; trace these once measured
worker → campaign    {"event": "ready", ...}              imports are done
                     {"event": "begin", "id": ...}        a workload begins; a crash from now on is blamed on it
                     {"event": "record", ...}             a measurement, or why there is none
                     {"event": "trace", ...}              the kernels of one run
                     {"event": "fallback", "id": ...}     cannot be captured: a tracing worker must measure it
                     {"event": "done", ...}               the group is finished
                     {"event": "poisoned"}                the worker's device context is broken; it ends now
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretell.processes.child import (
    POISONED,
    Message,
    PoisonedError,
    die_with_parent,
    redirect_output,
    short,
    stop_garbage_collection,
)
from foretell.processes.device_lock import DeviceLock
from foretell.processes.forked import EndedError, run_forked
from foretell.profiling.campaign.plan import Limits, Measuring
from foretell.profiling.campaign.schedule import Group, cost, group_from_json, settings_from_json
from foretell.profiling.trackers.kernels import KernelTable
from foretell.profiling.workload import Workload, fraction
from foretell.profiling.zoos.registry import preload

_TRACE_WARMUPS = 2


CLEAN, SECOND_STREAM = "clean", "second-stream"


class Worker:
    """Builds models, measures their workloads, and sends the results.

    With a ``device_lock``, each workload runs in a fresh process, which takes this lock.
    """

    def __init__(
        self,
        runtime: Any,
        measuring: Measuring,
        limits: Limits,
        send: Callable[[Message], None],
        device_lock: DeviceLock | None = None,
    ) -> None:
        self._runtime = runtime
        self._device_lock = device_lock
        self._measuring = measuring
        self._limits = limits
        self._send = send
        self._built: Any = None
        self._weights: Any = None
        self._cost: Any = None

    def try_device(self) -> None:
        """Open the device once in a forked process, to check that it works and to measure the memory of a context."""
        if self._device_lock is not None:
            answer = self._fork(self._device_lock, lambda: False, tracing=False)
            self._runtime.context_mib = answer["context_mib"]

    def run_group(self, group: Group, energy: set[str], stop_at: float, trace: Container[str] = ()) -> None:
        """Measure the workloads of one model until enough of them have succeeded; ``trace`` names those to trace."""
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.zoos.registry import build

        started = time.perf_counter()
        first = group.workloads[0]
        self._send({"event": "begin", "id": first.id})
        try:
            self._built = build(group.spec)
            self._weights = Weights(self._built.model, cast_buffers=self._built.cast_buffers)
            parameters = sum(parameter.numel() for parameter in self._built.model.parameters())
        except Exception as error:  # noqa: BLE001 a model that cannot be built is a finding, not an accident
            for workload in group.workloads[: group.target_count]:
                self._record(workload, "build_error", error=short(error))
            return
        build_s = time.perf_counter() - started
        left = group.target_count
        self._cost = None
        try:
            for workload in group.workloads:
                if left <= 0 or time.monotonic() > stop_at:
                    break
                if parameters > self._limits.max_parameters:
                    self._record(workload, "skipped", error=f"{parameters} parameters")
                    continue
                self._send({"event": "begin", "id": workload.id})
                too_much = self._too_much(workload) if group.role == "measure" else None
                if too_much is not None:
                    self._record(workload, "skipped", error=too_much)
                    continue
                facts: Message = {"build_s": build_s, "parameters": parameters}
                chosen = (workload.id in energy, workload.id in trace)
                left -= self._in_its_process(workload, group.role, chosen, facts)
                build_s = 0.0
        finally:
            self._drop()

    def _in_its_process(self, workload: Workload, role: str, chosen: tuple[bool, bool], facts: Message) -> bool:
        """Measure one workload here or in a forked copy of this process; return whether it counts as measured."""
        energy, trace = chosen
        if self._device_lock is None:
            return self._one(workload, role, energy=energy, trace=trace, facts=facts)

        from foretell.profiling.first_run import Cost

        def work() -> bool:
            return self._one(workload, role, energy=energy, trace=trace, facts=facts)

        try:
            answer = self._fork(self._device_lock, work, tracing=role != "measure")
        except EndedError as error:
            self._record(workload, "crash", error=str(error))
            return False
        self._cost = Cost(**answer["cost"]) if answer["cost"] else None
        self._device_lock.waited_s += answer["waited_s"]
        return bool(answer["counted"])

    def _fork(self, device_lock: DeviceLock, work: Callable[[], bool], *, tracing: bool) -> Message:
        def work_in_copy() -> Message:
            # open it anew: flock belongs to the open file, which a forked copy would share with its parent
            device_lock.open()
            waited_s = device_lock.waited_s
            self._runtime.open(tracing=tracing)
            start_threads(self._runtime.device, self._measuring)
            counted, cost = work(), self._cost
            answer = {"counted": counted, "cost": asdict(cost) if cost is not None else None}
            waited_s = device_lock.waited_s - waited_s
            return answer | {"context_mib": self._runtime.context_mib, "waited_s": waited_s}

        try:
            answer: Message = run_forked(work_in_copy, device_lock.shared)
        finally:
            device_lock.mark_free()
        return answer

    def _drop(self) -> None:
        if self._device_lock is None:
            with suppress(RuntimeError), self._runtime.shared():
                self._weights.release()
                self._runtime.clear()
        self._built = self._weights = None
        gc.collect()

    def _too_much(self, workload: Workload) -> str | None:
        """Why a workload is skipped, judged by the cost of the workloads before it; None if it is not."""
        if self._cost is None or workload.mode in ("prefill", "decode"):
            return None
        elements = cost(workload)
        latency_ms = self._cost.latency_ms(workload, elements, self._runtime.device)
        memory_gib = self._cost.memory_gib(elements)
        if latency_ms > self._limits.max_latency_ms:
            return f"about {latency_ms:.0f} ms"
        return f"about {memory_gib:.0f} GiB" if memory_gib > self._limits.max_memory_gib else None

    def _one(self, workload: Workload, role: str, *, energy: bool, trace: bool, facts: Message) -> bool:
        """Measure or trace one workload; return whether it counts as measured."""
        import torch

        from foretell.profiling.runtimes.cuda import CaptureError

        started = time.perf_counter()
        step, record, status, reason = None, facts, "ok", ""
        try:
            step, counted = self._prepare(workload, role)
            if role == "trace":
                return self._trace(workload, step)
            if role == "fallback":
                more, table = self._runtime.measure_uncaptured(step, self._built.model)
                self._send({"event": "trace", "id": workload.id, "kernels": table.to_json()})
                more |= self._state(table)
            else:
                eager = fraction("eager", workload.id) < self._measuring.eager_share
                more = self._runtime.measure(step, energy=energy, eager=eager)
            record = counted | more | facts | {"measure_s": time.perf_counter() - started}
            record |= self._trace_timed(workload, step) if trace and role == "measure" else {}
        except CaptureError as error:
            status, reason = "fallback", short(error)
        except torch.cuda.OutOfMemoryError as error:
            status, reason = "oom", short(error)
        except Exception as error:  # noqa: BLE001 a model that cannot run is a finding, not an accident
            status, reason = ("cuda_error" if "CUDA error" in str(error) else "run_error"), short(error)
        finally:
            self._close(step)
            step = None
        if status == "fallback":
            self._send({"event": "fallback", "id": workload.id, "error": reason})
        elif status == "ok":
            self._record(workload, "ok", **record)
        else:
            self._record(workload, status, error=reason, **facts)
        if status != "ok" and self._device_lock is None:
            self._check_health()  # not in the handlers above: there, the traceback keeps tensors alive
        return status in ("ok", "fallback")

    def _prepare(self, workload: Workload, role: str) -> tuple[Any, Message]:
        from foretell.profiling.steps import make_step, weight_dtype

        runtime = self._runtime
        gc.collect()  # automatic collection is off; remains of the previous workload must not count as memory here
        with runtime.shared():
            runtime.clear()
            if self._measuring.runtime == "onnxruntime":
                step, parameters_mib = self._session(workload), 0.0
            else:
                self._weights.place(runtime.device, weight_dtype(workload), channels_last=workload.channels_last)
                runtime.clear()
                parameters_mib = runtime.parameters_mib()
                step = make_step(self._built, workload, runtime.device)
            runtime.clear()
            runtime.reset_memory()
        record, counted_cost = runtime.warm_up(step, _TRACE_WARMUPS if role == "trace" else self._measuring.warmups)
        counted_cost.elements = cost(workload)
        if self._cost is None or counted_cost.elements >= self._cost.elements:
            self._cost = counted_cost
        estimates = {"module_macs": counted_cost.macs, "module_outputs": counted_cost.outputs}
        return step, record | estimates | {"parameters_mib": parameters_mib}

    def _session(self, workload: Workload) -> Any:
        """The model in ONNX Runtime; a trace reads its file again, so it stays until the step is closed."""
        from foretell.profiling.runtimes.onnx_runtime import make_session_step
        from foretell.profiling.source import Source

        source = Source(self._built, workload.input_shape)
        folder = tempfile.TemporaryDirectory(prefix="foretell-onnx-")
        try:
            return make_session_step(source, workload, Path(folder.name), self._measuring.threads, folder.cleanup)
        except BaseException:
            folder.cleanup()
            raise

    def _trace(self, workload: Workload, step: Any) -> bool:
        table = self._runtime.trace(step, self._built.model, 1)[0]
        self._send({"event": "trace", "id": workload.id, "kernels": table.to_json()})
        return True

    def _trace_timed(self, workload: Workload, step: Any) -> Message:
        """Trace the step that was just timed; return the process state, which the streams of the trace show."""
        if self._measuring.runtime == "onnxruntime":
            return self._trace_session(workload, step)
        try:
            self._runtime.start_tracer()
            table = self._runtime.trace(step, self._built.model, 1)[0]
        except Exception:  # noqa: BLE001 the measurement stands without its trace
            return {}
        self._send({"event": "trace", "id": workload.id, "kernels": table.to_json()})
        return self._state(table)

    def _trace_session(self, workload: Workload, step: Any) -> Message:
        """The nodes that ONNX Runtime runs, after its fusions, in place of kernels."""
        from foretell.profiling.runtimes.onnx_runtime import trace_session

        with suppress(Exception), self._runtime.shared():  # the measurement stands without its trace
            kernels = trace_session(step, Path(step.path).parent)
            self._send({"event": "trace", "id": workload.id, "kernels": kernels})
        return {}

    def _state(self, table: KernelTable) -> Message:
        """The state of this process: replays are slower once kernels have run on a second stream.

        A trace with one stream shows the state only in a fresh process: in another one, earlier workloads may have used
        a second stream.
        """
        if table.streams() > 1:
            return {"process_state": SECOND_STREAM}
        return {"process_state": CLEAN} if table.streams() == 1 and self._device_lock is not None else {}

    def _close(self, step: Any) -> None:
        if step is not None:
            with suppress(RuntimeError):
                step.close()

    def _check_health(self) -> None:
        gc.collect()
        try:
            with self._runtime.shared():
                self._weights.release()
                healthy = self._runtime.healthy()
        except RuntimeError:
            healthy = False
        if not healthy:
            raise PoisonedError("The device context of this process is broken.")

    def _record(self, workload: Workload, status: str, **values: object) -> None:
        self._send({"event": "record", "id": workload.id, "status": status, "values": values})


def set_environment(device: str) -> None:
    """What libraries read when they are imported: nothing may open a GPU before this process forks."""
    # some libraries look for a device when they are imported
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if device == "cpu":
        # a conversion to ONNX opens every GPU that it sees, to keep its random numbers: forked copies would then fail
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def start_threads(device: str, measuring: Measuring) -> None:
    """Give PyTorch the threads of the plan.

    Not before a fork: a copy of a process that has started OpenMP's threads would wait for them forever.
    """
    import torch

    # ONNX Runtime has threads of its own, which wait busily: PyTorch's, for the reference product, would disturb them
    own_threads = device == "cpu" and measuring.runtime == "eager"
    torch.set_num_threads(measuring.threads if own_threads else 1)


def keep_to_cores(count: int) -> None:
    """Keep this process to its first ``count`` cores: others may then work on the rest without disturbing it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def _make_runtime(device: str, device_lock: DeviceLock, measuring: Measuring) -> Any:
    if device == "cpu":
        from foretell.profiling.runtimes.cpu import CpuRuntime

        return CpuRuntime(device_lock, measuring)
    from foretell.profiling.runtimes.cuda import CudaRuntime

    return CudaRuntime(device_lock, measuring)


def main(arguments: list[str]) -> int:
    """Serve one campaign: settings as JSON in the only argument, groups on standard input."""
    die_with_parent()
    settings = json.loads(arguments[0])
    send = redirect_output()
    measuring, limits = settings_from_json(settings)
    set_environment(settings["device"])
    import torch

    torch.set_num_threads(1)  # until it forks: see `start_threads`
    if settings["device"] == "cpu":
        keep_to_cores(measuring.threads)
    device_lock = DeviceLock(Path(settings["folder"]), settings["worker"])
    device_lock.open()
    runtime = _make_runtime(settings["device"], device_lock, measuring)
    fresh = bool(settings.get("fresh", False))
    if not fresh:
        runtime.open(tracing=settings["role"] == "trace")
        start_threads(settings["device"], measuring)
    preload(settings["preload"])
    if measuring.runtime == "onnxruntime":
        from foretell.profiling.runtimes.onnx_runtime import load_converter

        load_converter()
    stop_garbage_collection()
    worker = Worker(runtime, measuring, limits, send, device_lock if fresh else None)
    worker.try_device()
    send({"event": "ready", "pid": os.getpid()})
    for line in sys.stdin:
        message = json.loads(line)
        group, energy = group_from_json(message["group"])
        started, waited = time.perf_counter(), device_lock.waited_s
        try:
            worker.run_group(group, energy, message["stop_at"], message.get("trace", ()))
        except PoisonedError:
            send({"event": "poisoned"})
            os._exit(POISONED)
        busy_s = time.perf_counter() - started - (device_lock.waited_s - waited)
        send({"event": "done", "busy_s": busy_s})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
