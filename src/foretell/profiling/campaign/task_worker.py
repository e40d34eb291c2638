"""Profiling: one worker process that measures and traces one workload after the other and returns the outcomes."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.processes.pool import Pool, WorkerProcess
from foretell.profiling.campaign.schedule import Group, group_to_json

_LISTEN_S = 0.2


@dataclass
class Outcome:
    """The outcome of one workload's task."""

    status: str = ""
    values: Message = field(default_factory=dict)
    kernels: Message | None = None
    busy_s: float = 0.0

    def to_json(self) -> Message:
        """The outcome as plain values."""
        return json.loads(json.dumps(vars(self)))  # type: ignore[no-any-return]


class TaskWorker:
    """A pool of one worker; a worker that dies is replaced when the next workload comes."""

    def __init__(
        self, folder: Path, settings: Message, command: Sequence[str], timeout_s: float, number: int = 0
    ) -> None:
        self._pool = Pool(folder, settings, ["measure"], command, first=number)
        self._number = number
        self._timeout_s = timeout_s
        self._fresh = bool(settings.get("fresh", False))
        self._alive = False

    def measure(self, group: Group, *, energy: bool, trace: bool, stop_at: float) -> Outcome:
        """Measure the one workload of ``group``; with ``trace``, also trace it if it ran."""
        outcome = Outcome()
        started = time.perf_counter()
        # A fresh process may trace right after timing, because it ends then. A process that stays must not load the
        # tracer between timings, so it gets a separate trace below.
        self._run(group, outcome, energy=energy, trace=trace and self._fresh, stop_at=stop_at)
        if outcome.status == "fallback":
            reason = outcome.values
            self._run(Group(group.part, group.spec, group.workloads, 1, "fallback"), outcome, stop_at=stop_at)
            outcome.values = reason | outcome.values
        if trace and outcome.status == "ok" and outcome.kernels is None:
            traced = Outcome()
            self._run(Group(group.part, group.spec, group.workloads, 1, "trace"), traced, stop_at=stop_at)
            outcome.kernels = traced.kernels
        outcome.busy_s = time.perf_counter() - started
        return outcome

    def _ready_worker(self) -> WorkerProcess:
        if not self._pool.workers:
            self._pool.start()
        elif not self._alive:
            self._pool.restart(self._pool.workers[self._number])
        self._alive = True
        worker = self._pool.workers[self._number]
        while not worker.ready:
            for _, message in self._pool.listen(_LISTEN_S):
                if message is None:
                    self._alive = False
                    raise MeasurementError(f"The worker ended with code {worker.process.returncode} as it started.")
                worker.ready = worker.ready or message["event"] == "ready"
            if self._pool.hung(self._timeout_s):
                worker.process.kill()
        return worker

    def _run(
        self, group: Group, outcome: Outcome, *, energy: bool = False, trace: bool = False, stop_at: float
    ) -> None:
        worker = self._ready_worker()
        ids = {workload.id for workload in group.workloads}
        task = {"group": group_to_json(group, ids if energy else set()), "stop_at": stop_at}
        self._pool.assign(worker, group, task | {"trace": sorted(ids) if trace else []})
        hung = False
        while True:
            for _, message in self._pool.listen(_LISTEN_S):
                if message is None:
                    self._alive = worker.ready = False
                    if group.role != "trace" and not outcome.status:
                        outcome.status = "timeout" if hung else "crash"
                        outcome.values = {"error": f"exit code {worker.process.returncode}"}
                    return
                if message["event"] == "done":
                    worker.group = worker.current = None
                    return
                self._handle_message(message, outcome)
            if not hung and self._pool.hung(self._timeout_s):
                hung = True
                worker.process.kill()

    def _handle_message(self, message: dict[str, Any], outcome: Outcome) -> None:
        if message["event"] == "record":
            outcome.status, outcome.values = message["status"], message["values"]
        elif message["event"] == "trace":
            outcome.kernels = message["kernels"]
        elif message["event"] == "fallback":
            outcome.status, outcome.values = "fallback", {"error": message["error"]}

    def close(self) -> None:
        """End the worker."""
        self._pool.stop()
