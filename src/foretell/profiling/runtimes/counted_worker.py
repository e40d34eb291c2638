"""Profiling: a child of ``ncu`` that runs one step of each of its workloads inside a counted range.

Only one living process on a device may have counted kernels, even long ago: a second one dies at its first counted
kernel. So each process first builds its models in parallel with others, then waits for its turn, and keeps the turn
until it ends. Events are appended to a file with their time, in the order of the ranges:

    {"event": "pid", "pid": ...}                          the process, so that it can be ended before ``ncu`` is
    {"event": "begin", "id": ...}                         a workload begins; a crash from now on is blamed on it
    {"event": "built"}                                    all models are built; it waits for its turn
    {"event": "turn"}                                     this process now has the device
    {"event": "open", "id": ...}                          a workload's counted range begins
    {"event": "close", "id": ..., "profile_s": ..., "calls": [...]}   it has ended, all of it counted; what was called
    {"event": "record", "id": ..., "status": ..., "error": ...}   it has no counters, and why
    {"event": "done"}                                     nothing is left to do
"""

import fcntl
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from foretell.processes.child import POISONED, Message, short, stop_garbage_collection
from foretell.profiling.campaign.plan import Limits
from foretell.profiling.trackers.distinct_calls import DistinctCalls
from foretell.profiling.trackers.ncu import call_name
from foretell.profiling.workload import Workload, workload_from_json
from foretell.profiling.zoos.registry import preload

_WARMUPS = 2
_WATCH_S = 0.5
_ORPHANED = 4


class Model(NamedTuple):
    """A built model and the workloads to count with it."""

    workloads: list[Workload]
    target_count: int
    built: Any
    weights: Any
    parameters: int


class OccupancyWorker:
    """Builds models, then runs each of their workloads once inside a counted range."""

    def __init__(self, settings: Message, send: Callable[[Message], None], counters: "Counting") -> None:
        self._device = str(settings["device"])
        self._kernels_max = int(settings["kernels_max"])
        self._run_s = float(settings["run_s"])
        self._limits = Limits(**settings["limits"])
        self._send = send
        self._counters = counters

    def build(self, workloads: list[Workload], target_count: int) -> Model | None:
        """The model of some workloads, or None if it cannot be built."""
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.zoos.registry import build

        self._send({"event": "begin", "id": workloads[0].id})
        try:
            built = build(workloads[0].spec)
            weights = Weights(built.model, cast_buffers=built.cast_buffers)
            parameters = sum(parameter.numel() for parameter in built.model.parameters())
        except Exception as error:  # noqa: BLE001 a model that cannot be built is a finding, not an accident
            for workload in workloads[:target_count]:
                self._record(workload, "build_error", short(error))
            return None
        return Model(workloads, target_count, built, weights, parameters)

    def count(self, model: Model, stop_at: float) -> None:
        """Count workloads of one model until ``target_count`` of them have succeeded."""
        target_count = model.target_count
        try:
            for workload in model.workloads:
                if target_count <= 0 or time.monotonic() > stop_at:
                    break
                self._send({"event": "begin", "id": workload.id})
                if model.parameters > self._limits.max_parameters:
                    self._record(workload, "skipped", f"{model.parameters} parameters")
                    continue
                target_count -= self._one(model, workload)
        finally:
            with suppress(RuntimeError):
                model.weights.release()
                self._counters.clear()
            gc.collect()

    def _one(self, model: Model, workload: Workload) -> bool:
        """Count one workload; return whether that succeeded."""
        import torch

        step, status, reason = None, "ok", ""
        try:
            step, kernels = self._prepare(model, workload)
            if kernels > self._kernels_max:
                status, reason = "skipped", f"about {kernels} kernels"
            elif not self._count(step, workload):
                status, reason = "timeout", f"counting took more than {self._run_s:g} s"
        except torch.cuda.OutOfMemoryError as error:
            status, reason = "oom", short(error)
        except Exception as error:  # noqa: BLE001 a model that cannot run is a finding, not an accident
            status, reason = "run_error", short(error)
        finally:
            if step is not None:
                with suppress(RuntimeError):
                    step.close()
        if status != "ok":
            self._record(workload, status, reason)
        if "CUDA error" in reason:  # the context is broken: another process must count the remaining workloads
            raise SystemExit(POISONED)
        return status == "ok"

    def _prepare(self, model: Model, workload: Workload) -> tuple[Any, int]:
        from foretell.profiling.steps import make_step, weight_dtype

        gc.collect()
        self._counters.clear()
        model.weights.place(self._device, weight_dtype(workload), channels_last=workload.channels_last)
        step = make_step(model.built, workload, self._device)
        calls = DistinctCalls()
        with calls.running():
            step.run()
            self._counters.wait()
        for _ in range(_WARMUPS - 1):
            if calls.launches <= self._kernels_max:
                with DistinctCalls().running():
                    step.run()
                    self._counters.wait()
        return step, calls.launches

    def _count(self, step: Any, workload: Workload) -> bool:
        """Run inside a counted range; return whether all kernels were counted in time."""
        calls = DistinctCalls()
        self._send({"event": "open", "id": workload.id})
        started = time.perf_counter()
        with (
            self._counters.range(self._run_s) as cut,
            calls.running(self._counters.enter_call, self._counters.leave_call),
        ):
            step.run()
        elapsed_s = time.perf_counter() - started
        if cut.is_set():
            return False
        self._send({"event": "close", "id": workload.id, "profile_s": elapsed_s, "calls": calls.sequence})
        return True

    def _record(self, workload: Workload, status: str, error: str) -> None:
        self._send({"event": "record", "id": workload.id, "status": status, "error": error})


class Counting:
    """The counted ranges of this process; on a CPU nothing is counted and only the order of the calls is tested."""

    def __init__(self, device: str) -> None:
        self._cuda = device != "cpu"
        self._mark: Any = None

    def open(self) -> None:
        """Create the context and load the marker's kernel."""
        if self._cuda:
            import torch

            self._mark = torch.zeros(32, device="cuda")
            torch.nextafter(self._mark, self._mark)
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Empty the allocator and the workspaces of cuBLAS."""
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait until the device has finished."""
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def enter_call(self, number: int) -> None:
        """The kernels launched from now on, on this thread, belong to call ``number``."""
        if self._cuda:
            import torch

            torch.cuda.nvtx.range_push(call_name(number))

    def leave_call(self) -> None:
        """End the range that :meth:`enter_call` began."""
        if self._cuda:
            import torch

            torch.cuda.nvtx.range_pop()

    @contextmanager
    def range(self, seconds: float) -> Iterator[threading.Event]:
        """Count what is launched inside; after ``seconds`` the rest runs uncounted and the event is set."""
        cut = threading.Event()
        if not self._cuda:
            yield cut
            return
        import torch

        def stop() -> None:
            cut.set()
            torch.cuda.cudart().cudaProfilerStop()

        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        timer = threading.Timer(seconds, stop)
        torch.nextafter(self._mark, self._mark)
        timer.start()
        try:
            yield cut
            torch.cuda.synchronize()
        finally:
            timer.cancel()
            # the marker at the end must be counted in any case, because the output of `ncu` is split at the markers
            if cut.is_set():
                torch.cuda.cudart().cudaProfilerStart()
            torch.nextafter(self._mark, self._mark)
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()


def _watch(campaign: int, kill_at: float) -> None:
    """End this process when the campaign ends or the time is over; ``ncu`` then prints what was counted."""
    while time.monotonic() < kill_at:
        try:
            os.kill(campaign, 0)
        except OSError:
            break
        time.sleep(_WATCH_S)
    os._exit(_ORPHANED)


def _wait_for_turn(path: Path) -> int:
    """Wait until no other process counts; the lock is released when this process ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def main(arguments: list[str]) -> int:
    """Count the groups of one file of settings."""
    settings = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    out = Path(settings["events"]).open("a", encoding="utf-8")  # noqa: SIM115 open as long as the process lives

    def send(message: Message) -> None:
        out.write(json.dumps({**message, "at": round(time.monotonic(), 3)}) + "\n")
        out.flush()

    send({"event": "pid", "pid": os.getpid()})
    threading.Thread(target=_watch, args=(settings["campaign"], settings["kill_at"]), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    preload(settings["preload"])
    stop_garbage_collection()
    counters = Counting(settings["device"])
    worker = OccupancyWorker(settings, send, counters)
    groups = [(list(map(workload_from_json, group["workloads"])), group["wanted"]) for group in settings["groups"]]
    models = [model for model in (worker.build(*group) for group in groups) if model is not None]
    send({"event": "built"})
    _wait_for_turn(Path(settings["folder"]) / "turn")
    send({"event": "turn"})
    counters.open()
    for model in models:
        if time.monotonic() > settings["stop_at"]:
            break
        worker.count(model, settings["stop_at"])
    send({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
