"""Workflows: predict all models of a plan into a folder of Parquet files, on this machine or on a Ray cluster.

This process hands out tasks and writes what comes back; workers only predict. A task is a shard. When a worker dies,
its task is given out again; when that happens again, its models are halved, until the one that kills workers has a row
that says so. When nothing is left to give out, tasks that take far longer than others are given to a second worker,
and the first answer counts (Dean and Ghemawat, OSDI 2004, call these backup tasks). At most two tables for each worker
are in memory, whatever the length of the plan.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.errors import InputError, UntrustedModelError
from foretell.optional import require
from foretell.workflows.many.plan import ManyPlan, read_many_plan
from foretell.workflows.many.shards import Shard, ShardFolder
from foretell.workflows.many.task import Settings, Task, crashed_rows, from_bytes, message_of, to_bytes
from foretell.workflows.many.workers import Crash, LocalWorkers, Workers, cores_here

_WAIT_S = 0.5
_TRIES, _TRIES_ALONE = 2, 3  # deaths of workers before a task is halved, or its only model given up
_SLOW_FACTOR, _SLOW_S = 3.0, 5.0  # a task that takes longer than this times the median, and than these seconds, is slow


@dataclass(frozen=True)
class PlanProgress:
    """How far a plan is. ``known_before`` counts what an earlier run had predicted; ``done`` includes it."""

    done: int
    total: int
    errors: int
    known_before: int
    elapsed_s: float

    @property
    def rate(self) -> float:
        """Predictions a second of this run."""
        return (self.done - self.known_before) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds that are left at this rate."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


@dataclass(frozen=True)
class PlannedPredictions:
    """What a run has done. ``lost`` counts workers that died in the middle of a task, ``repeated`` backup tasks."""

    out: Path
    models: int
    predictions: int
    errors: int
    shards: int
    known_before: int
    seconds: float
    workers: int
    lost: int
    repeated: int
    interrupted: bool

    @property
    def rate(self) -> float:
        """Predictions a second of this run."""
        return (self.predictions - self.known_before) / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell predict-many --json`` prints."""
        rates = {"predictions_per_s": self.rate, "predictions_per_s_per_worker": self.rate / self.workers}
        return {**vars(self), "out": str(self.out), **rates}


def predict_plan(
    plan: str | Path,
    *,
    out: str | Path,
    ray: str | None = None,
    workers: int | None = None,
    trust: bool = False,
    on_progress: Callable[[PlanProgress], None] = lambda _: None,
) -> PlannedPredictions:
    """Predict all models of a plan. A second call with the same arguments continues; nothing is predicted twice.

    Args:
        plan: A TOML file; docs/many.md has all of its keys.
        out: The folder of the Parquet files.
        ray: The address of a Ray cluster, ``auto`` for the one that this machine belongs to, or ``local``.
        workers: How many processes work on this machine; all cores by default.
        trust: Allow the function of a space, and code that comes with models, to run.
        on_progress: Called about twice a second.

    >>> predict_plan("absent.toml", out="out")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    foretell.errors.InputError: Cannot read absent.toml: No such file or directory. Give a TOML file; ...
    """
    checked = read_many_plan(Path(plan))
    if checked.space and not trust:
        raise UntrustedModelError(f"A space runs the code in {checked.space}. If you trust it, add --trust.")
    require("pyarrow", extra="data", purpose="Predictions in Parquet")
    count = cores_here() if workers is None else workers
    if count < 1:
        raise InputError(f"Got {count} workers; it must be 1 or more.")
    if ray is None:
        crew: Workers = LocalWorkers(count)
    else:
        from foretell.workflows.many.ray_workers import RayWorkers

        crew = RayWorkers(ray, count)
    return run_plan(checked, Path(out), crew, trust=trust, on_progress=on_progress)


def run_plan(
    plan: ManyPlan,
    out: Path,
    workers: Workers,
    *,
    trust: bool = False,
    on_progress: Callable[[PlanProgress], None] = lambda _: None,
) -> PlannedPredictions:
    """Predict a plan with some workers."""
    folder = ShardFolder(out, plan)
    with folder.locked():
        run = _Run(plan, folder, workers, trust, on_progress)
        run.shards = {shard.number: shard for shard in folder.begin()}
        run.known_before = run.done
        interrupted = False
        if len(run.shards) < plan.shards:
            try:
                run.run()
            except KeyboardInterrupt:
                interrupted = True
        if len(run.shards) == plan.shards:
            folder.finish(list(run.shards.values()))
        return run.result(interrupted)


@dataclass
class _Attempt:
    """A task that a worker has, since when; ``copies`` are all numbers under which it was given out."""

    task: Task
    since: float
    copies: list[int]


@dataclass
class _Run:
    """One run of a plan."""

    plan: ManyPlan
    folder: ShardFolder
    workers: Workers
    trust: bool
    on_progress: Callable[[PlanProgress], None]
    shards: dict[int, Shard] = field(default_factory=dict)
    known_before: int = 0

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._ready: deque[Task] = deque()
        self._next_shard = 0
        self._running: dict[int, _Attempt] = {}
        self._parts: dict[int, list[Any]] = {}  # tables of shards that were halved, until all of them are there
        self._missing: dict[int, int] = {}  # tasks of a shard that have no table yet
        self._deaths: dict[Task, int] = {}
        self._took_s: deque[float] = deque(maxlen=100)
        self._numbers = 0
        self._slots = self._cores = 0
        self.lost = 0
        self.repeated = 0
        self._settings = Settings(self.plan.space, self.plan.space_digest, tuple(self.plan.combinations), self.trust)

    @property
    def done(self) -> int:
        """Predictions that are on disk."""
        return sum(shard.rows for shard in self.shards.values())

    def run(self) -> None:
        """Until every shard is on disk."""
        self.workers.start()
        try:
            while len(self.shards) < self.plan.shards:
                self._slots, self._cores = self.workers.slots(), self.workers.cores()
                self._hand_out()
                for number, outcome in self.workers.wait(_WAIT_S):
                    self._received(number, outcome)
                self._give_up_late()
                self.on_progress(self._progress())
        finally:
            self.workers.stop()

    def _hand_out(self) -> None:
        while len(self._running) < self._slots:
            task = self._next()
            if task is not None:
                self._submit(_Attempt(task, time.monotonic(), []))
                continue
            slow = self._slowest()
            if slow is None:
                return
            self.repeated += 1
            self._submit(slow)

    def _submit(self, attempt: _Attempt) -> None:
        self._numbers += 1
        attempt.copies.append(self._numbers)
        self._running[self._numbers] = attempt
        self.workers.submit(self._numbers, message_of(attempt.task, self._settings))

    def _next(self) -> Task | None:
        if self._ready:
            return self._ready.popleft()
        while self._next_shard < self.plan.shards:
            number = self._next_shard
            self._next_shard += 1
            if number not in self.shards:
                first, last = self.plan.models_of(number)
                self._missing[number] = 1
                return Task(number, first, last, self.plan.names[first:last])
        return None

    def _slowest(self) -> _Attempt | None:
        """A task that takes far longer than others and that one worker has."""
        if not self._took_s:
            return None
        limit_s = max(_SLOW_FACTOR * statistics.median(self._took_s), _SLOW_S)
        before = time.monotonic() - limit_s
        slow = [one for one in self._running.values() if len(one.copies) == 1 and one.since < before]
        return min(slow, key=lambda one: one.since, default=None)

    def _received(self, number: int, outcome: bytes | Crash) -> None:
        attempt = self._running.pop(number, None)
        if attempt is None:
            return
        if isinstance(outcome, Crash):
            self.lost += 1
            attempt.copies.remove(number)
            if not attempt.copies:
                self._died(attempt.task, outcome)
            return
        self._took_s.append(time.monotonic() - attempt.since)
        for copy in attempt.copies:
            if self._running.pop(copy, None) is not None:
                self.workers.cancel(copy)
        self._arrived(attempt.task, outcome)

    def _died(self, task: Task, crash: Crash) -> None:
        deaths = self._deaths[task] = self._deaths.get(task, 0) + 1
        alone = task.last - task.first == 1
        if deaths < (_TRIES_ALONE if alone else _TRIES):
            self._ready.appendleft(task)
        elif alone:
            self._arrived(task, to_bytes(crashed_rows(task, self._settings, crash.why)))
        else:
            self._missing[task.shard] += 1
            self._ready.extendleft(task.halves())

    def _arrived(self, task: Task, data: bytes) -> None:
        self._deaths.pop(task, None)
        self._parts.setdefault(task.shard, []).append(from_bytes(data))
        self._missing[task.shard] -= 1
        if not self._missing[task.shard]:
            del self._missing[task.shard]
            self.shards[task.shard] = self.folder.write(task.shard, self._parts.pop(task.shard))

    def _give_up_late(self) -> None:
        """A worker that is silent for too long counts as dead."""
        before = time.monotonic() - self.plan.timeout_s
        for number, attempt in list(self._running.items()):
            if number in self._running and attempt.since < before:
                for copy in attempt.copies:
                    self._running.pop(copy, None)
                    self.workers.cancel(copy)
                self.lost += len(attempt.copies)
                self._died(attempt.task, Crash(f"nothing came back in {self.plan.timeout_s:g} s"))

    def _progress(self) -> PlanProgress:
        total = self.plan.models * len(self.plan.combinations)
        errors = sum(shard.errors for shard in self.shards.values())
        return PlanProgress(self.done, total, errors, self.known_before, time.monotonic() - self._began)

    def result(self, interrupted: bool) -> PlannedPredictions:
        """What was done."""
        errors = sum(shard.errors for shard in self.shards.values())
        return PlannedPredictions(
            self.folder.folder, self.plan.models, self.done, errors, len(self.shards), self.known_before,
            time.monotonic() - self._began, max(self._cores, 1), self.lost, self.repeated, interrupted,
        )  # fmt: skip
