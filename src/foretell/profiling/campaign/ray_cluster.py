"""Profiling: a plan on the machines of a Ray cluster: one task for each workload, with a whole GPU or one core.

Results come back to the driver, and only the driver writes the journal. So whatever dies, a record is written once or
not at all, and the same command continues where it ended. Ray runs a task again if its machine or process dies.
"""

import atexit
import logging
import os
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.processes.child import Message
from foretell.processes.device_lock import MAX_WORKERS
from foretell.profiling.campaign.done import TRIED_AGAIN, done_measurements
from foretell.profiling.campaign.job import WORKER, Job
from foretell.profiling.campaign.journal import Journal, record_of
from foretell.profiling.campaign.progress import Progress
from foretell.profiling.campaign.schedule import (
    Group,
    Schedule,
    chosen_for,
    group_from_json,
    group_to_json,
    make_schedule,
)
from foretell.profiling.campaign.task_worker import TaskWorker
from foretell.profiling.environment import describe

log = logging.getLogger("foretell.profiling")

LOCAL = "local"
MAX_RETRIES = 3
_WAIT_S = 0.5
_QUEUED = 2  # tasks for each slot: while one runs, the next one already waits on the cluster
_HOST_FACTS = ("host", "device_name", "driver")


class RayCampaign:
    """One run of a ``measurements`` plan on a cluster."""

    def __init__(
        self,
        job: Job,
        address: str = LOCAL,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._job = job
        self._plan = job.plan
        self._device = job.device
        self._address = address
        self._command = tuple(command)
        reserve_s = job.reserve_s(0.2, 16.0)
        self._stop_at = job.before_end(reserve_s)
        self._kill_at = job.before_end(reserve_s / 2)
        self._journal = Journal(job.out)
        self._key = uuid.uuid4().hex[:12]
        self._schedule = Schedule({}, {})
        self._ready: deque[Group] = deque()
        self._spares: dict[tuple[str, str], list[Group]] = {}
        self._campaigns: dict[tuple[str, ...], str] = {}
        self._done: set[str] = set()
        self._traced: set[str] = set()
        self._known_before = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> dict[str, int]:
        """Measure until the time is over or the plan is finished; return the number of workloads by status."""
        self._journal.open()
        try:
            for path in self._job.folders:
                is_own = path == self._job.out
                rows, traced = done_measurements(path, None if is_own else self._job.plan.measuring.run)
                failed = () if is_own else TRIED_AGAIN
                self._done |= {row["workload_id"] for row in rows if row["status"] not in failed}
                self._traced |= traced
            self._known_before = len(self._done)
            self._schedule = make_schedule(self._plan, self._done, errors=self._job.errors)
            log.info("%d models to measure, %d workloads known", len(self._schedule), len(self._done))
            if not len(self._schedule):
                return {}
            ray = connect(self._address, self._plan.workers.measure, self._device)
            try:
                self._loop(ray)
            finally:
                ray.shutdown()
        finally:
            self._journal.close()
        return dict(self.counts)

    def _loop(self, ray: Any) -> None:
        resources = {"num_cpus": 1} if self._device == "cpu" else {"num_cpus": 1, "num_gpus": 1}
        task = ray.remote(**resources, max_retries=MAX_RETRIES)(measure_task)
        pending: dict[Any, Group] = {}
        slots = self._slots(ray)
        while time.monotonic() < self._kill_at:
            # tasks in flight count as finished, so that a limit is not exceeded
            running = time.monotonic() < self._stop_at and not self._job.enough(self.counts["ok"] + len(pending))
            while running and len(pending) < slots:
                group = self._next()
                if group is None:
                    break
                pending[task.remote(self._task(group))] = group
                running = not self._job.enough(self.counts["ok"] + len(pending))
            if not pending:
                break
            finished, _ = ray.wait(list(pending), num_returns=1, timeout=_WAIT_S)
            for reference in finished:
                self._write_outcome(pending.pop(reference), *_answer(ray, reference))
            slots = self._slots(ray)  # machines may join or leave the cluster
            self._job.on_progress(self._progress(len(pending)))
        for reference in pending:
            with suppress(Exception):  # it may have ended in the meantime
                ray.cancel(reference, force=True)

    def _slots(self, ray: Any) -> int:
        kind = "CPU" if self._device == "cpu" else "GPU"
        count = int(ray.cluster_resources().get(kind, 0))
        if count < 1:
            raise MeasurementError(f"The Ray cluster has no {kind}: nothing could run. Look at: ray status")
        return _QUEUED * count

    def _next(self) -> Group | None:
        """The next workload, as a group with one workload."""
        if not self._ready:
            group = self._schedule.next()
            if group is None:
                return None
            single = [Group(group.part, group.spec, (workload,), 1) for workload in group.workloads]
            self._ready.extend(single[: group.target_count])
            self._spares[group.part, group.spec] = single[group.target_count :]
        return self._ready.popleft()

    def _task(self, group: Group) -> Message:
        workload_id = group.workloads[0].id
        measuring = self._plan.measuring
        settings: Message = {"device": self._device, "preload": [], "measuring": asdict(measuring)}
        settings |= {"limits": asdict(self._plan.limits), "fresh": self._plan.workers.fresh}
        wants_trace = chosen_for("trace", measuring.trace_share, self._plan, workload_id)
        return {
            "key": self._key,
            "settings": settings,
            "command": list(self._command),
            "commit": self._job.commit,
            "timeout_s": self._plan.limits.timeout_s,
            "group": group_to_json(group, set()),
            "energy": chosen_for("energy", measuring.energy_share, self._plan, workload_id),
            "trace": wants_trace and workload_id not in self._traced,
            # machines have different clocks: they are told how much time is left, not when it ends
            "left_s": self._stop_at - time.monotonic(),
        }

    def _write_outcome(self, group: Group, facts: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        """Write the outcome of a task.

        The trace comes first: a workload that has a record is not measured again, so a trace lost after it would be
        lost for good. If the workload failed, a spare workload of the same model takes its place.
        """
        workload, status = group.workloads[0], str(outcome["status"])
        if workload.id in self._done or not status:
            return
        campaign_id = self._campaign(facts)
        kernels = outcome.get("kernels")
        if kernels and kernels["name"] and workload.id not in self._traced:
            self._traced.add(workload.id)
            self.counts["traced"] += 1
            self._journal.append_trace({"workload_id": workload.id, "campaign_id": campaign_id, "kernels": kernels})
        self._done.add(workload.id)
        self.counts[status] += 1
        line = record_of("measurement", campaign_id, workload, group.part, status)
        self._journal.append(line | dict(outcome["values"]))
        self._schedule.used_s[group.part] += float(outcome.get("busy_s", 0.0))
        if status != "ok":
            spares = self._spares.get((group.part, group.spec), [])
            left = [spare for spare in spares if spare.workloads[0].id not in self._done]
            if left:
                self._ready.appendleft(left[0])
                spares.remove(left[0])

    def _campaign(self, facts: Mapping[str, Any]) -> str:
        """The campaign of one machine and device; its header is written with the first record that comes from it."""
        place = tuple(str(facts.get(name)) for name in _HOST_FACTS)
        if place not in self._campaigns:
            self._campaigns[place] = uuid.uuid4().hex[:12]
            runtime = "cpu" if self._device == "cpu" else "cuda-graph"
            header = {"kind": "campaign", "campaign_id": self._campaigns[place], "runtime": runtime, "workers": 1}
            self._journal.append(header | dict(facts))
        return self._campaigns[place]

    def _progress(self, pending: int) -> Progress:
        finished = sum(count for status, count in self.counts.items() if status != "traced")
        left = sum(group.target_count for queue in self._schedule.groups.values() for group in queue)
        left += len(self._ready) + pending
        failed = finished - self.counts["ok"]
        elapsed_s, budget_s = self._job.elapsed_s, self._job.seconds
        return Progress(finished, failed, left, self._known_before, self.counts["traced"], elapsed_s, budget_s)


def connect(address: str, workers: int, device: str) -> Any:
    """Connect to a Ray cluster, or start one here with ``workers`` slots; return the module ``ray``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without a GPU keeps its environment
    ray = require("ray", extra="ray", purpose="Measuring on a Ray cluster")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == LOCAL:
            cores = max(1, workers) if device == "cpu" else None
            ray.init(address=LOCAL, num_cpus=cores, include_dashboard=False, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise MeasurementError(
            f"Cannot reach the Ray cluster {address!r}: {line} Use --ray local to start one."
        ) from error
    return ray


def _answer(ray: Any, reference: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The facts of the machine and the outcome of a task; a task that Ray gave up counts as a crash."""
    try:
        answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[-300:]
        return describe("cpu") | {"device_name": ""}, {"status": "crash", "values": {"error": reason}}
    return answer["facts"], answer["outcome"]


_task_workers: dict[str, tuple[TaskWorker, dict[str, object]]] = {}


def measure_task(job: Message) -> Message:
    """Measure one workload; runs on a machine of the cluster. The worker process stays for the campaign's next task."""
    device, visible = str(job["settings"]["device"]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    key = f"{job['key']}-{visible or device}"
    if key not in _task_workers:
        folder = Path(tempfile.gettempdir()) / f"foretell-ray-{key}"
        folder.mkdir(exist_ok=True, mode=0o700)
        number = os.getpid() % MAX_WORKERS  # tasks of one machine share a device lock: one at a time measures
        task_worker = TaskWorker(folder, job["settings"], job["command"], float(job["timeout_s"]), number)
        atexit.register(task_worker.close)
        _task_workers[key] = task_worker, describe(device, str(job["commit"]))
    task_worker, facts = _task_workers[key]
    group, _ = group_from_json(job["group"])
    stop_at = time.monotonic() + float(job["left_s"])
    outcome = task_worker.measure(group, energy=job["energy"], trace=job["trace"], stop_at=stop_at)
    return {"facts": facts, "outcome": outcome.to_json()}
