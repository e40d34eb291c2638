"""Profiling: a child process that compiles models, keeps them on the device, and measures them when it is told to.

    prepare    build, warm up and compile one workload        → ``kept``, or ``failed`` with a status
    time       replay what is kept, as it is and compiled     → one ``timed`` (or ``failed``) a workload
    tracer     load the tracer; nothing is timed meanwhile
    trace      trace what is timed, compiled, and let it go   → one ``traced`` a workload

Every command ends with ``done``, which says whether the process is full. The tracer is loaded late because it stays in
a process and could disturb its times. SIGUSR1 ends a ``prepare`` at once.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.child import (
    POISONED,
    Message,
    PoisonedError,
    die_with_parent,
    settle,
    short,
    take_output,
    work_alone,
)
from foretell.processes.parent import resident_bytes
from foretell.profiling.campaign.plan import Compiled, Limits, Measuring
from foretell.profiling.campaign.schedule import settings_from_json
from foretell.profiling.workload import Workload, workload_from_json
from foretell.profiling.zoos.registry import preload
from foretell.units import GIB, bytes_from_gib

_WARMUPS = 3
# so that models of one class, which share their code, are all compiled
_MAX_COMPILATIONS = 1 << 16
_MAX_RESIDENT_BYTES = 8 * GIB
_NO_MEMORY = "out of memory"


class InterruptedPreparation(BaseException):
    """There is no time left to prepare; not an ``Exception``, which compilers catch."""


@dataclass
class Kept:
    """A model on the device, its step as it is and compiled."""

    workload: Workload
    weights: Any
    step: Any = None
    compiled: Any = None
    timed: bool = False

    def close(self) -> None:
        """Let go of the device's memory."""
        for step in (self.step, self.compiled):
            if step is not None:
                with suppress(RuntimeError):
                    step.close()
        self.step = self.compiled = None
        with suppress(RuntimeError):
            self.weights.release()


class CompiledWorker:
    """What one process keeps, and what it does with it; ``compiler`` is :func:`compile_model` where absent."""

    def __init__(
        self,
        runtime: Any,
        plan: tuple[Measuring, Limits, Compiled],
        say: Callable[[Message], None],
        compiler: Callable[[Any], Any] | None = None,
    ) -> None:
        self._runtime = runtime
        self._measuring, self._limits, self._compiled = plan
        self._say = say
        self._compile = compiler or compile_model
        self._kept: dict[str, Kept] = {}
        self._traces = False
        self.preparing = False

    def obey(self, message: Message) -> None:
        """One command."""
        command = message["do"]
        if command == "prepare":
            self._prepare(workload_from_json(message["workload"]))
        elif command == "time":
            self._each(lambda kept: not kept.timed, self._time, message["stop_at"])
        elif command == "tracer":
            self._load_tracer()
        elif command == "trace":
            self._each(lambda kept: kept.timed, self._trace, message["stop_at"])
        else:
            raise MeasurementError(f"Unknown command {command!r}.")

    def is_full(self) -> bool:
        """Whether no other workload should come."""
        few = len(self._kept) < self._compiled.per_process
        free = _free_bytes(self._runtime.device) > bytes_from_gib(self._compiled.free_gib)
        return not (few and free and resident_bytes() < _MAX_RESIDENT_BYTES)

    def _each(self, which: Callable[[Kept], bool], do: Callable[[Kept], None], stop_at: float) -> None:
        for kept in [kept for kept in self._kept.values() if which(kept)]:
            if time.time() > stop_at:
                break
            self._say({"event": "begin", "id": kept.workload.id})
            do(kept)

    def _prepare(self, workload: Workload) -> None:
        status, error, facts = "ok", "", Message()
        self._say({"event": "begin", "id": workload.id})
        try:
            self.preparing = True
            facts = self._keep(workload)
        except InterruptedPreparation:
            status = ""
        except _TooLargeError as failure:
            status, error = "skipped", str(failure)
        except _BuildError as failure:
            status, error = "build_error", str(failure)
        except Exception as failure:  # noqa: BLE001 a model that cannot run is a finding, not an accident
            status, error = _status_of(failure), short(failure)
        finally:
            self.preparing = False
        if status == "ok":
            self._say({"event": "kept", "id": workload.id, "values": facts})
        else:
            self._fail(workload, status, {"error": error})
        gc.collect()

    def _keep(self, workload: Workload) -> Message:
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.steps import make_step, weight_dtype
        from foretell.profiling.zoos.registry import build

        runtime = self._runtime
        try:
            built = build(workload.spec)
            weights = Weights(built.model, cast_buffers=built.cast_buffers)
        except Exception as error:
            raise _BuildError(short(error)) from error
        parameters = sum(parameter.numel() for parameter in built.model.parameters())
        if parameters > self._limits.max_parameters:
            raise _TooLargeError(f"{parameters} parameters")
        gc.collect()
        kept = self._kept[workload.id] = Kept(workload, weights)
        weights.place(runtime.device, weight_dtype(workload))
        kept.step = make_step(built, workload, runtime.device)
        runtime.warm_up(kept.step, self._measuring.warmups)
        kept.compiled = make_step(replace(built, model=self._compile(built.model)), workload, runtime.device)
        graphs, started = _graphs(), time.perf_counter()
        self._run(kept.compiled)
        compile_s, graphs = time.perf_counter() - started, _graphs() - graphs
        for _ in range(_WARMUPS - 1):
            self._run(kept.compiled)
        runtime.tidy()
        return {"compile_s": round(compile_s, 3), "graph_breaks": graphs - 1 if graphs > 0 else None}

    def _run(self, step: Any) -> None:
        step.run()
        if self._runtime.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _time(self, kept: Kept) -> None:
        values: Message = {}
        status = "ok"
        try:
            for name, step in (("eager", kept.step), ("compiled", kept.compiled)):
                record = self._replay(step)
                values |= {f"{name}_ms": record["latency_ms"], f"{name}_cv": record["latency_cv"]}
                values["clock_mhz"] = record["clock_mhz"]
        except Exception as failure:  # noqa: BLE001 a step that cannot be captured is a finding, not an accident
            status, values["error"] = _status_of(failure), short(failure)
        if status != "ok":
            self._fail(kept.workload, status, values)
            return
        kept.timed = True
        self._say({"event": "timed", "id": kept.workload.id, "values": values})

    def _replay(self, step: Any) -> Message:
        captured = self._runtime.capture(step)
        try:
            record: Message = self._runtime.time(captured)
        finally:
            captured.output = None
            captured.close()
        self._runtime.tidy()
        return record

    def _load_tracer(self) -> None:
        """The first trace of a process takes long, and its times are off."""
        if not self._traces:
            import torch

            from foretell.profiling.steps import Step

            step = Step(lambda: torch.ones(8, device=self._runtime.device) * 2, lambda: None)
            with suppress(RuntimeError):  # it will be told of every workload
                self._runtime.trace(step, None, 1)
            self._traces = True

    def _trace(self, kept: Kept) -> None:
        answer: Message = {"event": "traced", "id": kept.workload.id, "kernels": None, "error": None}
        try:
            columns = self._runtime.trace(kept.compiled, None, 1)[0].to_json()
            names = ("name", "duration_us", "hidden_us", "grid", "block")
            answer["kernels"] = {name: columns[name] for name in names}
        except Exception as failure:  # noqa: BLE001 its times are known, and stay
            answer["error"] = short(failure)
        self._say(answer)
        self._forget(kept.workload.id)
        self._check(answer["error"])

    def _fail(self, workload: Workload, status: str, values: Message) -> None:
        """Say why there is no measurement, or nothing where the reason is the end of the time."""
        self._forget(workload.id)
        if status:
            self._say({"event": "failed", "id": workload.id, "status": status, "values": values})
        self._check(status)

    def _forget(self, workload_id: str) -> None:
        kept = self._kept.pop(workload_id, None)
        if kept is not None:
            kept.close()
        del kept
        gc.collect()
        with suppress(RuntimeError):
            self._runtime.tidy()

    def _check(self, failure: object) -> None:
        if failure and not self._runtime.works():
            raise PoisonedError("The device context of this process is broken.")


class _BuildError(MeasurementError):
    """A model that cannot be built."""


class _TooLargeError(MeasurementError):
    """A model that is not worth the time."""


def compile_model(model: Any, backend: str = "inductor") -> Any:
    """The model as ``torch.compile`` makes it in a fresh process: sizes of models before it make nothing dynamic."""
    import torch
    from torch._dynamo import config, pgo

    config.recompile_limit = config.accumulated_recompile_limit = _MAX_COMPILATIONS
    pgo.reset_code_state()
    return torch.compile(model, backend=backend)


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _status_of(failure: BaseException) -> str:
    """A compiler wraps what it stumbles over, lack of memory too."""
    return "oom" if isinstance(failure, MemoryError) or _NO_MEMORY in str(failure) else "run_error"


def _free_bytes(device: str) -> float:
    if device == "cpu":
        return float("inf")
    import torch

    return float(torch.cuda.mem_get_info()[0])


def _open(settings: Message, say: Callable[[Message], None]) -> CompiledWorker:
    from foretell.profiling.replays.captured import CpuReplays, CudaReplays

    measuring, limits = settings_from_json(settings)
    runtime: Any = CpuReplays(measuring) if settings["device"] == "cpu" else CudaReplays(measuring)
    runtime.open()
    return CompiledWorker(runtime, (measuring, limits, Compiled(**settings["compiled"])), say)


def main(arguments: list[str]) -> int:
    """Serve one campaign: settings as JSON in the only argument, commands on standard input."""
    die_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    settings = json.loads(arguments[0])
    work_alone(Path(settings["folder"]))
    say = take_output()
    import torch

    torch.set_num_threads(1)
    worker = _open(settings, say)

    def interrupt(_number: int, _frame: object) -> None:
        if worker.preparing:
            worker.preparing = False
            raise InterruptedPreparation

    signal.signal(signal.SIGUSR1, interrupt)
    preload(settings["preload"])
    settle()  # compilers make millions of small objects; looking through them after each model is enough
    say({"event": "ready", "pid": os.getpid()})
    for line in sys.stdin:
        try:
            worker.obey(json.loads(line))
            full = worker.is_full()
        except PoisonedError:
            os._exit(POISONED)
        say({"event": "done", "full": full})
    os._exit(0)  # what compilers have left behind needs no tidy end


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
