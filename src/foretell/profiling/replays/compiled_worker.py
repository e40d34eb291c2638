"""Profiling: a child process that compiles models, keeps them on the device, and measures them on command.

    prepare    build, warm up and compile one workload        → ``prepared``, or ``failed`` with a status
    time       replay all models, eager and compiled          → one ``timed`` (or ``failed``) for each workload
    tracer     load the tracer; nothing is timed meanwhile
    trace      trace timed models, compiled, and drop them    → one ``traced`` for each workload

Every command ends with ``done``, which says whether the process is full. The tracer is loaded late, because it stays in
the process and could disturb timings. SIGUSR1 ends a ``prepare`` at once.
"""

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.child import (
    POISONED,
    Message,
    PoisonedError,
    configure_libraries,
    die_with_parent,
    redirect_output,
    short,
    stop_garbage_collection,
)
from foretell.processes.parent import resident_bytes
from foretell.profiling.campaign.plan import Compiled, Limits, Measuring
from foretell.profiling.campaign.schedule import settings_from_json
from foretell.profiling.replays.calls import Call, recorded_calls, tie, to_columns
from foretell.profiling.workload import Workload, workload_from_json
from foretell.profiling.zoos.registry import preload
from foretell.units import GIB, bytes_from_gib

_WARMUPS = 3
# models of one class share their code; with torch's default limit only the first few would be compiled
_MAX_COMPILATIONS = 1 << 16
_MAX_RESIDENT_BYTES = 8 * GIB
_NO_MEMORY = "out of memory"


class InterruptedPreparation(BaseException):
    """There is no time left to prepare. Not an ``Exception``, because compilers catch those."""


@dataclass
class PreparedModel:
    """A model on the device with its eager and its compiled step."""

    workload: Workload
    weights: Any
    step: Any = None
    compiled: Any = None
    timed: bool = False
    calls: list[Call] = field(default_factory=list)

    def close(self) -> None:
        """Release the device's memory."""
        for step in (self.step, self.compiled):
            if step is not None:
                with suppress(RuntimeError):
                    step.close()
        self.step = self.compiled = None
        with suppress(RuntimeError):
            self.weights.release()


class CompiledWorker:
    """The models of one process, and the commands on them; ``compiler`` is :func:`compile_model` by default."""

    def __init__(
        self,
        runtime: Any,
        plan: tuple[Measuring, Limits, Compiled],
        send: Callable[[Message], None],
        compiler: Callable[[Any], Any] | None = None,
    ) -> None:
        self._runtime = runtime
        self._measuring, self._limits, self._compiled = plan
        self._send = send
        self._compile = compiler or compile_model
        self._models: dict[str, PreparedModel] = {}
        self._tracer_loaded = False
        self.preparing = False

    def execute(self, message: Message) -> None:
        """Execute one command."""
        command = message["do"]
        if command == "prepare":
            self._prepare(workload_from_json(message["workload"]))
        elif command == "time":
            self._run_on_models(lambda prepared: not prepared.timed, self._time, message["stop_at"])
        elif command == "tracer":
            self._load_tracer()
        elif command == "trace":
            self._run_on_models(lambda prepared: prepared.timed, self._trace, message["stop_at"])
        else:
            raise MeasurementError(f"Unknown command {command!r}.")

    def is_full(self) -> bool:
        """Whether this process should get no further workload."""
        few = len(self._models) < self._compiled.per_process
        free = _free_bytes(self._runtime.device) > bytes_from_gib(self._compiled.free_gib)
        return not (few and free and resident_bytes() < _MAX_RESIDENT_BYTES)

    def _run_on_models(
        self, which: Callable[[PreparedModel], bool], do: Callable[[PreparedModel], None], stop_at: float
    ) -> None:
        for prepared in [prepared for prepared in self._models.values() if which(prepared)]:
            if time.monotonic() > stop_at:
                break
            self._send({"event": "begin", "id": prepared.workload.id})
            do(prepared)

    def _prepare(self, workload: Workload) -> None:
        status, error, facts = "ok", "", Message()
        self._send({"event": "begin", "id": workload.id})
        try:
            self.preparing = True
            facts = self._build_and_compile(workload)
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
            self._send({"event": "kept", "id": workload.id, "values": facts})
        else:
            self._fail(workload, status, {"error": error})
        gc.collect()

    def _build_and_compile(self, workload: Workload) -> Message:
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
        # automatic collection is off; free remains of earlier models before this one takes memory
        gc.collect()
        prepared = self._models[workload.id] = PreparedModel(workload, weights)
        weights.place(runtime.device, weight_dtype(workload), channels_last=workload.channels_last)
        prepared.step = make_step(built, workload, runtime.device)
        runtime.warm_up(prepared.step, self._measuring.warmups)
        prepared.compiled = make_step(replace(built, model=self._compile(built.model)), workload, runtime.device)
        graphs, started = _graphs(), time.perf_counter()
        with recorded_calls() as prepared.calls:
            self._run(prepared.compiled)
        compile_s, graphs = time.perf_counter() - started, _graphs() - graphs
        for _ in range(_WARMUPS - 1):
            self._run(prepared.compiled)
        runtime.release_cache()
        return {"compile_s": round(compile_s, 3), "graph_breaks": graphs - 1 if graphs > 0 else None}

    def _run(self, step: Any) -> None:
        step.run()
        if self._runtime.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def _time(self, prepared: PreparedModel) -> None:
        values: Message = {}
        status = "ok"
        try:
            for name, step in (("eager", prepared.step), ("compiled", prepared.compiled)):
                record = self._replay(step)
                values |= {f"{name}_ms": record["latency_ms"], f"{name}_cv": record["latency_cv"]}
                values["clock_mhz"] = record["clock_mhz"]
        except Exception as failure:  # noqa: BLE001 a step that cannot be captured is a finding, not an accident
            status, values["error"] = _status_of(failure), short(failure)
        if status != "ok":
            self._fail(prepared.workload, status, values)
            return
        prepared.timed = True
        self._send({"event": "timed", "id": prepared.workload.id, "values": values})

    def _replay(self, step: Any) -> Message:
        captured = self._runtime.capture(step)
        try:
            record: Message = self._runtime.time(captured)
        finally:
            captured.output = None
            captured.close()
        self._runtime.release_cache()
        return record

    def _load_tracer(self) -> None:
        """Trace something trivial: the first trace of a process takes long, and its times are wrong."""
        if not self._tracer_loaded:
            import torch

            from foretell.profiling.steps import Step

            step = Step(lambda: torch.ones(8, device=self._runtime.device) * 2, lambda: None)
            with suppress(RuntimeError):  # the same error will be reported for every workload
                self._runtime.trace(step, None, 1)
            self._tracer_loaded = True

    def _trace(self, prepared: PreparedModel) -> None:
        answer: Message = {"event": "traced", "id": prepared.workload.id, "kernels": None, "calls": None, "error": None}
        try:
            table = self._runtime.trace(prepared.compiled, None, 1)[0]
            columns = table.to_json()
            names = ("name", "duration_us", "hidden_us", "grid", "block", "op", "op_index")
            answer["kernels"] = {name: columns[name] for name in names}
            owner = tie(prepared.calls, table.name, table.op, table.op_index)
            answer["calls"] = to_columns(prepared.calls, owner, table.duration_us)
        except Exception as failure:  # noqa: BLE001 its timings are known and stay valid
            answer["error"] = short(failure)
        self._send(answer)
        self._forget(prepared.workload.id)
        self._check(answer["error"])

    def _fail(self, workload: Workload, status: str, values: Message) -> None:
        """Drop the workload and send why it failed; send nothing without a status (the time was over)."""
        self._forget(workload.id)
        if status:
            self._send({"event": "failed", "id": workload.id, "status": status, "values": values})
        self._check(status)

    def _forget(self, workload_id: str) -> None:
        prepared = self._models.pop(workload_id, None)
        if prepared is not None:
            prepared.close()
        del prepared
        gc.collect()
        with suppress(RuntimeError):
            self._runtime.release_cache()

    def _check(self, failure: object) -> None:
        if failure and not self._runtime.works():
            raise PoisonedError("The device context of this process is broken.")


class _BuildError(MeasurementError):
    """A model that cannot be built."""


class _TooLargeError(MeasurementError):
    """A model with more parameters than the limit."""


def compile_model(model: Any, backend: str = "inductor") -> Any:
    """Compile the model as in a fresh process: no shape becomes dynamic because of models that came before."""
    import torch
    from torch._dynamo import config, pgo

    config.recompile_limit = config.accumulated_recompile_limit = _MAX_COMPILATIONS
    pgo.reset_code_state()
    return torch.compile(model, backend=backend)


def _graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _status_of(failure: BaseException) -> str:
    """The status of a failure; compilers wrap errors, so a lack of memory is recognised by its message."""
    return "oom" if isinstance(failure, MemoryError) or _NO_MEMORY in str(failure) else "run_error"


def _free_bytes(device: str) -> float:
    if device == "cpu":
        return float("inf")
    import torch

    return float(torch.cuda.mem_get_info()[0])


def _open(settings: Message, send: Callable[[Message], None]) -> CompiledWorker:
    from foretell.profiling.replays.captured import CpuReplays, CudaReplays

    measuring, limits = settings_from_json(settings)
    runtime: Any = CpuReplays(measuring) if settings["device"] == "cpu" else CudaReplays(measuring)
    runtime.open()
    return CompiledWorker(runtime, (measuring, limits, Compiled(**settings["compiled"])), send)


def main(arguments: list[str]) -> int:
    """Serve one campaign: settings as JSON in the only argument, commands on standard input."""
    die_with_parent()
    # ignore it until the handler is set: by default it would kill this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    settings = json.loads(arguments[0])
    configure_libraries(Path(settings["folder"]))
    send = redirect_output()
    import torch

    torch.set_num_threads(1)
    worker = _open(settings, send)

    def interrupt(_number: int, _frame: object) -> None:
        if worker.preparing:
            worker.preparing = False
            raise InterruptedPreparation

    signal.signal(signal.SIGUSR1, interrupt)
    preload(settings["preload"])
    stop_garbage_collection()  # compilers make millions of small objects; one collection after each model is enough
    send({"event": "ready", "pid": os.getpid()})
    for line in sys.stdin:
        try:
            worker.execute(json.loads(line))
            full = worker.is_full()
        except PoisonedError:
            os._exit(POISONED)
        send({"event": "done", "full": full})
    os._exit(0)  # skip the clean-up of what compilers have left behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
