"""Profiling: a child process that keeps captured workloads and executes the commands of `workers.ReplayWorkers`."""

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.child import (
    POISONED,
    Message,
    PoisonedError,
    die_with_parent,
    redirect_output,
    short,
    stop_garbage_collection,
)
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.workload import Workload, workload_from_json
from foretell.units import bytes_from_gib, ms

_SOLO_REPLAYS = 20
_SOLO_S = (0.08, 0.8)
_SETTLED = 3


@dataclass
class Prepared:
    """A model on the device with its captured step, once for each slice."""

    workload: Workload
    weights: Any
    step: Any
    captured: dict[int, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Release the device's memory."""
        for captured in self.captured.values():
            captured.output = None
            with suppress(RuntimeError):
                captured.close()
        self.captured.clear()
        if self.step is not None:
            with suppress(RuntimeError):
                self.step.close()
        self.step = None
        with suppress(RuntimeError):
            self.weights.release()


class ReplayWorker:
    """The prepared workloads of one process, and the commands on them."""

    def __init__(
        self, runtime: Any, measuring: Measuring, memory_gib: float, send: Callable[[Message], None], green: Any = None
    ) -> None:
        self._runtime = runtime
        self._measuring = measuring
        self._memory_bytes = bytes_from_gib(memory_gib)
        self._send = send
        self._green = green
        self.energy = False  # whether to read the power of every captured step too
        self._sm_counts: tuple[int, ...] = (runtime.sm_count(),)
        self._prepared: dict[str, Prepared] = {}

    def limit_to(self, sm_counts: Sequence[int]) -> None:
        """Capture every step once for each number of multiprocessors."""
        self._sm_counts = tuple(sm_counts)

    def execute(self, message: Message) -> None:
        """Execute one command."""
        command = message["do"]
        if command == "prepare":
            self._prepare_all([workload_from_json(values) for values in message["workloads"]], message)
        elif command == "time":
            for prepared in list(self._prepared.values()):
                if time.monotonic() > message["stop_at"]:
                    break
                self._time(prepared)
        elif command == "replay":
            self._replay(message)
        elif command == "drop":
            self._drop()
        else:
            raise MeasurementError(f"Unknown command {command!r}.")

    def _prepare_all(self, workloads: Sequence[Workload], message: Message) -> None:
        left = int(message.get("wanted") or len(workloads))
        for workload in workloads:
            if left <= 0 or time.monotonic() > message["stop_at"]:
                break
            # several processes share the device: each has a limit, so that all can prepare
            if self._runtime.reserved_bytes() > self._memory_bytes:
                self._failed(workload, "skipped", "the process has reached its limit of memory")
                continue
            self._send({"event": "begin", "id": workload.id})
            left -= self._prepare(workload)

    def _prepare(self, workload: Workload) -> bool:
        import torch

        status, error, facts = "ok", "", Message()
        started = time.perf_counter()
        try:
            facts = self._captured(workload)
        except torch.cuda.OutOfMemoryError as failure:
            status, error = "oom", short(failure)
        except _BuildError as failure:
            status, error = "build_error", str(failure)
        except Exception as failure:  # noqa: BLE001 a model that cannot run is a finding, not an accident
            status, error = "run_error", short(failure)
        if status != "ok":
            self._forget(workload.id)
            self._failed(workload, status, error)
            # after some CUDA errors every later call fails: end this process instead of blaming later workloads
            if not self._runtime.works():
                raise PoisonedError("The device context of this process is broken.")
            return False
        facts["prepare_s"] = time.perf_counter() - started
        self._send({"event": "prepared", "id": workload.id, "status": "ok", "values": facts})
        return True

    def _captured(self, workload: Workload) -> Message:
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.steps import make_step, weight_dtype
        from foretell.profiling.zoos.registry import build

        runtime = self._runtime
        try:
            built = build(workload.spec)
            weights = Weights(built.model, cast_buffers=built.cast_buffers)
        except Exception as error:
            raise _BuildError(short(error)) from error
        gc.collect()
        prepared = self._prepared[workload.id] = Prepared(workload, weights, None)
        weights.place(runtime.device, weight_dtype(workload), channels_last=workload.channels_last)
        prepared.step = make_step(built, workload, runtime.device)
        _, cost = runtime.warm_up(prepared.step, self._measuring.warmups)
        for sm_count in self._sm_counts:
            with self._on(sm_count):
                if self._green is not None:
                    # warm up in the slice: libraries choose kernels by the number of multiprocessors that they see
                    prepared.step.run()
                prepared.captured[sm_count] = runtime.capture(prepared.step)
        runtime.release_cache()
        parameters = sum(parameter.numel() for parameter in built.model.parameters())
        counts = {"macs": cost.macs, "outputs": cost.outputs, "parameters": parameters}
        return counts | {"sm_count": runtime.sm_count()}

    def _on(self, sm_count: int) -> Any:
        if self._green is None:
            return nullcontext()
        import torch

        return torch.cuda.stream(self._green.stream(sm_count))

    def _time(self, prepared: Prepared) -> None:
        workload_id = prepared.workload.id
        self._send({"event": "begin", "id": workload_id})
        for sm_count, captured in prepared.captured.items():
            record: Message = {"sm_count": sm_count}
            status = "ok"
            try:
                with self._on(sm_count):
                    record |= self._runtime.time(captured, energy=self.energy)
            except RuntimeError as error:
                status, record["error"] = "run_error", short(error)
            self._send({"event": "timed", "id": workload_id, "status": status, "values": record})
            if status != "ok" and not self._runtime.works():
                raise PoisonedError("The device context of this process is broken.")

    def _replay(self, message: Message) -> None:
        """Replay one workload from a given moment on or, without one, alone until there are enough replays."""
        workload_id = message["id"]
        self._send({"event": "begin", "id": workload_id})
        answer: Message = {"event": "replayed", "id": workload_id, "status": "ok"}
        try:
            captured = self._prepared[workload_id].captured[self._sm_counts[0]]
            answer["reference_ms"] = self._runtime.reference_ms()
            if message.get("start") is None:
                answer["moments"] = self._alone(captured)
            else:
                span = message["start"], message["seconds"], message["replay_ms"]
                answer["moments"] = self._runtime.replay_from(captured, *span, repeats=message.get("repeats"))
            answer["clock_mhz"] = self._runtime.clock_mhz()
        except RuntimeError as error:
            answer |= {"status": "run_error", "error": short(error), "moments": []}
        self._send(answer)
        if answer["status"] != "ok" and not self._runtime.works():
            raise PoisonedError("The device context of this process is broken.")

    def _alone(self, captured: Any) -> list[float]:
        # a short series gives the time of a replay, from which the length of the real series follows
        moments = self._runtime.replay_from(captured, time.monotonic(), 0.01, 1.0)
        replay_s = min(after - before for before, after in itertools.pairwise(moments))
        min_s, max_s = _SOLO_S
        seconds = min(max_s, max(min_s, (_SOLO_REPLAYS + _SETTLED) * replay_s))
        moments = self._runtime.replay_from(captured, time.monotonic(), seconds, ms(replay_s))
        return list(moments[_SETTLED:])

    def _failed(self, workload: Workload, status: str, error: str) -> None:
        self._send({"event": "prepared", "id": workload.id, "status": status, "values": {"error": error}})

    def _forget(self, workload_id: str) -> None:
        prepared = self._prepared.pop(workload_id, None)
        if prepared is not None:
            prepared.close()
        gc.collect()
        with suppress(RuntimeError):
            self._runtime.release_cache()

    def _drop(self) -> None:
        for workload_id in list(self._prepared):
            self._forget(workload_id)


class _BuildError(MeasurementError):
    """A model that cannot be built."""


def _open(settings: Message, send: Callable[[Message], None]) -> ReplayWorker:
    from foretell.profiling.replays.captured import CpuReplays, CudaReplays

    measuring = Measuring(**settings["measuring"])
    runtime: Any = CpuReplays(measuring) if settings["device"] == "cpu" else CudaReplays(measuring)
    runtime.open()
    sm_counts = settings.get("sm_counts") or ()
    if not sm_counts or settings["device"] == "cpu":
        return ReplayWorker(runtime, measuring, settings["memory_gib"], send)
    import torch

    from foretell.profiling.replays.green_contexts import GreenStreams

    total = runtime.sm_count()
    green = GreenStreams(torch.cuda.current_stream(), total)
    try:
        slowdown = green.check(min(sm_counts))
    except Exception as error:  # without slices the whole method fails, whatever the reason
        send({"event": "unlimited", "error": short(error)})
        raise
    send({"event": "limited", "slowdown": slowdown, "sm_count": min(sm_counts), "total": total})
    worker = ReplayWorker(runtime, measuring, settings["memory_gib"], send, green)
    worker.limit_to([count for count in sm_counts if count < total] + [total])
    return worker


def main(arguments: list[str]) -> int:
    """Serve one campaign: settings as JSON in the only argument, commands on standard input."""
    die_with_parent()
    settings = json.loads(arguments[0])
    # set before torch is imported: the driver reads these for the first context, which an import may create
    os.environ.update(settings.get("environment", {}))
    os.environ.update(settings.get("environments", {}).get(settings["role"], {}))
    if settings.get("cores"):
        os.sched_setaffinity(0, settings["cores"])
    send = redirect_output()
    import torch

    torch.set_num_threads(1)
    worker = _open(settings, send)
    worker.energy = bool(settings.get("energy"))
    stop_garbage_collection()
    send({"event": "ready", "pid": os.getpid()})
    for line in sys.stdin:
        try:
            worker.execute(json.loads(line))
        except PoisonedError:
            os._exit(POISONED)
        send({"event": "done"})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
