"""Lab: the fusion campaign: which operators a compiler puts into one kernel, for as many models as time allows.

Child processes export, compile and label models. Nothing is run or timed, so the campaign can run beside one that
measures. A child that dies or hangs costs only the model it was working on.
"""

import logging
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.processes.pool import Pool, WorkerProcess
from foretell.profiling.campaign.done import Trace, done_keys
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import Journal, now_text
from foretell.profiling.campaign.plan import Plan
from foretell.profiling.campaign.schedule import Group, group_to_json, make_schedule
from foretell.profiling.environment import describe
from foretell.profiling.fusion.kernels import fusion_id
from foretell.profiling.workload import shape_text

log = logging.getLogger("foretell.profiling")

# A command, not an import: the worker also reads graphs, and belongs to a room above this one.
WORKER = (sys.executable, "-m", "foretell.workflows.measure.fusion_worker")
_TABLE = "fusion_graphs"
_MEMORY = Path("/dev/shm")
_REPORT_S = 20.0


def run(job: Job) -> dict[str, int]:
    """Compile until the time or the plan is over; return the number of models by outcome."""
    return FusionCampaign(job).run()


class FusionCampaign:
    """One run of a ``fusion`` plan."""

    def __init__(self, job: Job, command: Sequence[str] = WORKER) -> None:
        self._job = job
        self._plan = job.plan
        self._out = job.out
        self._device = job.device
        self._command = command
        reserve_s = job.reserve_s(0.05, 25.0)
        self._stop_at = job.before_end(reserve_s)
        self._kill_at = job.before_end(reserve_s / 2)
        self.campaign_id = uuid.uuid4().hex[:12]
        self._journal = Journal(job.out)
        self._waiting: deque[Group] = deque()
        self._facts: dict[str, object] = {}
        self._timed_out: set[int] = set()
        self.counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def run(self) -> dict[str, int]:
        """Compile until the time or the plan is over; return the number of models by outcome."""
        self._journal.open()
        zoos = sorted({zoo for part in self._plan.parts for zoo in part.zoos})
        settings: Message = {"device": self._device, "preload": zoos}
        settings["max_parameters"] = self._plan.limits.max_parameters
        roles = ["compile"] * self._plan.fusion.processes
        memory = _MEMORY if _MEMORY.is_dir() else None  # files of the workers; they are deleted when the campaign ends
        with tempfile.TemporaryDirectory(prefix="foretell-fusion-", dir=memory) as folder:
            pool = Pool(Path(folder), settings, roles, self._command)
            try:
                pool.start()  # the workers import their libraries while the schedule is made
                self._facts = describe(self._device, self._job.commit)
                header: dict[str, object] = {"kind": "campaign", "campaign_id": self.campaign_id}
                header |= {"runtime": "+".join(self._plan.fusion.backends), "workers": len(roles)}
                self._journal.append(header | self._facts)
                known = done_keys(self._job.folders, _TABLE, ("fusion_id",), trace=Trace("fusion_nodes", "nodes"))
                done = {str(key) for (key,) in known}
                self._waiting.extend(lay_out(self._plan, done))
                log.info("%d models to compile, %d are known", len(self._waiting), len(done))
                self._loop(pool)
            finally:
                pool.stop()
                self._journal.close()
                pool.save_log(self._out)
        self.report()
        for reason, count in self._reasons.most_common(12):
            log.info("%5d × %s", count, reason)
        return dict(self.counts)

    def _loop(self, pool: Pool) -> None:
        reported, got_message = time.monotonic(), False
        while time.monotonic() < self._kill_at:
            running = time.monotonic() < self._stop_at and not self._job.enough(self.counts["ok"])
            for worker in pool.workers.values():
                if running and worker.idle and self._waiting:
                    group = self._waiting.popleft()
                    pool.assign(worker, group, {"group": group_to_json(group, set())})
            busy = any(worker.group is not None for worker in pool.workers.values())
            if not busy and not (running and self._waiting):
                break
            # every worker died twice before its first message: something is wrong with all of them
            if not got_message and pool.restarts >= 2 * len(pool.workers):
                raise MeasurementError(f"No worker could start. See {self._out / 'workers.log'}.")
            for worker, message in pool.listen(0.1):
                got_message = got_message or message is not None
                if message is None:
                    self._handle_end(pool, worker, restart=running and bool(self._waiting))
                else:
                    self._handle(worker, message)
            for worker in pool.hung(self._plan.limits.timeout_s):
                log.warning("worker %d hangs and is killed", worker.index)
                self._timed_out.add(worker.index)
                worker.process.kill()
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                self.report()

    def _handle(self, worker: WorkerProcess, message: Message) -> None:
        event = message["event"]
        if event == "ready":
            worker.ready = True
        elif event == "begin":
            worker.current = message["id"]
        elif event == "record" and worker.group is not None:
            self._write(worker.group, message["status"], message["values"], message["details"])
            worker.current = None
        elif event == "done":
            worker.group = None
            worker.ready = not message["last"]  # after its last group the worker exits, and is then restarted

    def _handle_end(self, pool: Pool, worker: WorkerProcess, *, restart: bool) -> None:
        """A worker has ended: blame the model it was working on, or queue a model again that it had not begun."""
        group, late = worker.group, worker.index in self._timed_out
        self._timed_out.discard(worker.index)
        if group is not None and worker.current is not None and time.monotonic() < self._stop_at:
            reason = f"silent for {self._plan.limits.timeout_s:.0f} s"
            error = reason if late else f"exit code {worker.process.returncode}"
            self._write(group, "timeout" if late else "crash", {"error": error}, None)
        elif group is not None:
            # not the model's fault: it is next again
            self._waiting.appendleft(group)
        worker.group, worker.current, worker.ready = None, None, False
        if restart or (group is not None and self._waiting):
            pool.restart(worker)

    def _write(self, group: Group, status: str, values: Message, details: Message | None) -> None:
        """Write one model: its row, and its nodes, edges and graph."""
        workload, backend = group.workloads[0], group.role
        self.counts[status] += 1
        self.counts["nodes"] += int(values.get("nodes", 0))
        self.counts["edges"] += int(values.get("edges", 0))
        row: dict[str, object] = {"kind": _TABLE, "campaign_id": self.campaign_id}
        row |= {"fusion_id": fusion_id(backend, workload), "backend": backend, "spec": workload.spec}
        row |= {"family": workload.family, "batch_size": workload.batch_size, "dtype": workload.dtype}
        row |= {"input_shape": shape_text(workload.input_shape), "mode": workload.mode, "part": group.part}
        row |= {"host": self._facts.get("host"), "status": status, "error": None}
        row["measured_at"] = now_text()
        if details is not None:
            trace = {"kind": "fusion_nodes", "campaign_id": self.campaign_id, "fusion_id": row["fusion_id"]}
            self._journal.append_trace(trace | details)
        self._journal.append(row | values)
        if status != "ok":
            self._reasons[f"{backend} {status}: {str(values.get('error', ''))[:120]}"] += 1

    def report(self) -> None:
        """Log the progress of the campaign in one line."""
        elapsed_s = self._job.elapsed_s
        rate = self.counts["ok"] / max(elapsed_s, 1.0) * 60
        log.info("%.0f s: %s; %.0f a minute; %d wait", elapsed_s, dict(self.counts), rate, len(self._waiting))


def lay_out(plan: Plan, done: set[str]) -> Iterator[Group]:
    """One group for every model and backend that is not ``done``; the parts of the plan take turns by share."""
    schedule = make_schedule(plan)
    while (group := schedule.next()) is not None:
        for workload in group.workloads[: group.target_count]:
            for backend in plan.fusion.backends:
                if fusion_id(backend, workload) not in done:
                    yield Group(group.part, group.spec, (workload,), 1, backend)
