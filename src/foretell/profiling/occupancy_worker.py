"""Profiling: a child of ``ncu`` that runs one step of each of its workloads inside a counted range.

Building and warming up happen beside others, outside the ranges, at nearly normal speed; only the counted run has the
device alone. What happens is appended to a file of events with their time, in the order of the ranges:

    {"event": "pid", "pid": ...}                          the process, so that it can be ended before ``ncu`` is
    {"event": "begin", "id": ...}                         a workload has been begun: who dies now, dies of it
    {"event": "open", "id": ...}                          its counted range begins
    {"event": "close", "id": ..., "profile_s": ...}       its counted range has ended, all of it counted
    {"event": "record", "id": ..., "status": ..., "error": ...}   it has no counters, and why
    {"event": "done"}                                     nothing is left to do
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foretell.profiling.child import POISONED, preload, settle, short
from foretell.profiling.messages import Message
from foretell.profiling.plan import Limits
from foretell.profiling.turnstile import Turnstile
from foretell.profiling.workload import Workload, workload_from_json

_WARMUPS = 2
_WATCH_S = 0.5
_ORPHANED = 4
# What a step of a recurrent layer launches; a fused recurrent call is one operator and many kernels.
_KERNELS_PER_STEP = 5


class LaunchCounter:
    """A rough count of the kernels of a run, without a profiler: calls that compute something."""

    def __init__(self) -> None:
        self.kernels = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is called inside."""
        from torch.utils._python_dispatch import TorchDispatchMode

        counter = self

        class Mode(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
                counter.kernels += _launches(func, args)
                return func(*args, **(kwargs or {}))

        with Mode():
            yield


def _launches(func: Any, args: Any) -> int:
    name = func._schema.name
    if func.is_view or name.startswith(("aten::empty", "aten::detach", "aten::_local_scalar", "aten::_unsafe_view")):
        return 0
    if "rnn" in name or "lstm" in name or "gru" in name:
        shape = args[0].shape
        layers = max(1, len(args[1]) // 4) if len(args) > 1 and isinstance(args[1], list | tuple) else 1
        return int(_KERNELS_PER_STEP * layers * (max(shape[:2]) if len(shape) > 2 else 1))
    if name.startswith("aten::_foreach"):
        return max(1, len(args[0]) // 30)  # a launch takes some dozens of tensors
    return 1


class OccupancyWorker:
    """Prepares workloads and runs each once where the counters see it."""

    def __init__(
        self, turnstile: Turnstile, settings: Message, say: Callable[[Message], None], counters: "Counting"
    ) -> None:
        self._turnstile = turnstile
        self._device = str(settings["device"])
        self._kernels_max = int(settings["kernels_max"])
        self._run_s = float(settings["run_s"])
        self._limits = Limits(**settings["limits"])
        self._say = say
        self._counters = counters

    def run_group(self, workloads: list[Workload], wanted: int, stop_at: float) -> None:
        """All workloads of one model, on one build, until ``wanted`` are counted."""
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.zoo import build

        self._say({"event": "begin", "id": workloads[0].id})
        try:
            built = build(workloads[0].spec)
            weights = Weights(built.model, cast_buffers=built.cast_buffers)
            parameters = sum(parameter.numel() for parameter in built.model.parameters())
        except Exception as error:  # noqa: BLE001 a model that cannot be built is a finding, not an accident
            for workload in workloads[:wanted]:
                self._record(workload, "build_error", short(error))
            return
        try:
            for workload in workloads:
                if wanted <= 0 or time.time() > stop_at:
                    break
                self._say({"event": "begin", "id": workload.id})
                if parameters > self._limits.max_parameters:
                    self._record(workload, "skipped", f"{parameters} parameters")
                    continue
                wanted -= self._one(built, weights, workload)
        finally:
            with suppress(RuntimeError), self._turnstile.shared():
                weights.release()
                self._counters.clear()
            del built, weights
            gc.collect()

    def _one(self, built: Any, weights: Any, workload: Workload) -> bool:
        """One workload; whether its range was counted."""
        import torch

        step, status, reason = None, "ok", ""
        try:
            step, kernels = self._prepare(built, weights, workload)
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
        if "CUDA error" in reason:  # the context is broken: another process takes the rest
            raise SystemExit(POISONED)
        return status == "ok"

    def _prepare(self, built: Any, weights: Any, workload: Workload) -> tuple[Any, int]:
        from foretell.profiling.steps import make_step, weight_dtype

        counter = LaunchCounter()
        gc.collect()
        with self._turnstile.shared():
            self._counters.clear()
            weights.place(self._device, weight_dtype(workload))
            step = make_step(built, workload, self._device)
        with self._turnstile.shared(), counter.counting():
            step.run()
            self._counters.wait()
        if counter.kernels <= self._kernels_max:
            for _ in range(_WARMUPS - 1):
                with self._turnstile.shared():
                    step.run()
                    self._counters.wait()
        return step, counter.kernels

    def _count(self, step: Any, workload: Workload) -> bool:
        """Run inside a range; whether all of it was counted in time."""
        with self._turnstile.alone():
            self._say({"event": "open", "id": workload.id})
            started = time.perf_counter()
            with self._counters.range(self._run_s) as cut:
                step.run()
            elapsed_s = time.perf_counter() - started
        if cut.is_set():
            return False
        self._say({"event": "close", "id": workload.id, "profile_s": elapsed_s})
        return True

    def _record(self, workload: Workload, status: str, error: str) -> None:
        self._say({"event": "record", "id": workload.id, "status": status, "error": error})


class Counting:
    """The counted ranges of this process; on a CPU there is nothing to count, only the choreography."""

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
        """Until the device has finished."""
        if self._cuda:
            import torch

            torch.cuda.synchronize()

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
            if cut.is_set():  # the marker that ends the range has to be counted in any case
                torch.cuda.cudart().cudaProfilerStart()
            torch.nextafter(self._mark, self._mark)
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()


def _watch(campaign: int, kill_at: float) -> None:
    """End with the campaign, or when the time is over: ``ncu`` then prints what was counted."""
    while time.time() < kill_at:
        try:
            os.kill(campaign, 0)
        except OSError:
            break
        time.sleep(_WATCH_S)
    os._exit(_ORPHANED)


def main(arguments: list[str]) -> int:
    """Count the groups of one file of settings."""
    settings = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    out = Path(settings["events"]).open("a", encoding="utf-8")  # noqa: SIM115 open as long as the process lives

    def say(message: Message) -> None:
        out.write(json.dumps({**message, "at": round(time.time(), 3)}) + "\n")
        out.flush()

    say({"event": "pid", "pid": os.getpid()})
    threading.Thread(target=_watch, args=(settings["campaign"], settings["kill_at"]), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    turnstile = Turnstile(Path(settings["folder"]), settings["worker"])
    turnstile.open()
    counters = Counting(settings["device"])
    with turnstile.shared():
        counters.open()
    preload(settings["preload"])
    settle()
    worker = OccupancyWorker(turnstile, settings, say, counters)
    for group in settings["groups"]:
        if time.time() > settings["stop_at"]:
            break
        worker.run_group(
            [workload_from_json(each) for each in group["workloads"]], group["wanted"], settings["stop_at"]
        )
    say({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
