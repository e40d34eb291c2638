"""Profiling: measure as much of a plan as the time allows, without losing a result.

The campaign assigns groups of workloads to its workers and writes their results into the journal. It can be killed at
any moment and started again in the same folder. Workloads in its journal or in the folders to skip are not measured
again.
"""

import json
import logging
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.files import write_whole
from foretell.processes.child import Message
from foretell.processes.pool import Pool, WorkerProcess
from foretell.profiling.campaign.done import TRIED_AGAIN, done_measurements
from foretell.profiling.campaign.job import WORKER, Job
from foretell.profiling.campaign.journal import Journal, record_of
from foretell.profiling.campaign.progress import Progress
from foretell.profiling.campaign.schedule import Group, Schedule, chosen_for, group_to_json, make_schedule
from foretell.profiling.environment import describe
from foretell.profiling.workload import Workload, fraction, workload_from_row

log = logging.getLogger("foretell.profiling")

_MAX_RESTARTS = 60
_REPORT_S = 20.0
_PROGRESS_S = 0.5
_NO_RESULT_S = 120.0  # the campaign gives up if nothing could be measured until then
AGAIN = "again"
_AGAIN_SHARE = 0.25  # relative to the shares of the plan's parts


class Campaign:
    """One run of a plan on one device."""

    def __init__(self, job: Job, command: Sequence[str] = WORKER) -> None:
        self._job = job
        self._plan = job.plan
        self._out = job.out
        self._device = job.device
        self._command = command
        reserve_s = job.reserve_s(0.2, 16.0)
        self._stop_at = job.before_end(reserve_s)
        self._kill_at = job.before_end(reserve_s / 2)
        self.campaign_id = uuid.uuid4().hex[:12]
        self._journal = Journal(job.out)
        self._schedule = Schedule({}, {})
        self._traces: deque[Group] = deque()
        self._known: dict[str, Workload] = {}
        self._parts: dict[str, str] = {}
        self._done: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._ok: set[str] = set()
        self._traced: set[str] = set()
        self._errors: dict[str, str] = {}
        self._got_message = False
        self._known_before = 0
        self._finished = 0
        self._header: dict[str, object] = {}
        self.counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def run(self) -> dict[str, int]:
        """Measure until the time is over or the plan is finished; return the number of workloads by status."""
        self._journal.open()
        roles = ["measure"] * self._plan.workers.measure + ["trace"] * self._plan.workers.trace
        zoos = sorted({zoo for part in self._plan.parts for zoo in part.zoos})
        settings: Message = {"device": self._device, "preload": zoos, "measuring": asdict(self._plan.measuring)}
        settings |= {"limits": asdict(self._plan.limits), "fresh": self._plan.workers.fresh}
        with tempfile.TemporaryDirectory(prefix="foretell-campaign-") as folder:
            pool = Pool(Path(folder), settings, roles, self._command)
            facts = describe(self._device, self._job.commit)
            try:
                pool.start()  # start first: the workers import their libraries while we make the schedule
                self._header = self._make_header(facts, len(roles))
                repeated = self._resume()
                self._schedule = make_schedule(self._plan, self._done, self._seen, self._job.errors)
                self._trace_only()
                if repeated:
                    self._schedule.groups[AGAIN], self._schedule.shares[AGAIN] = deque(repeated), _AGAIN_SHARE
                self._known_before = len(self._done)
                log.info("%d models to measure, %d workloads known", len(self._schedule), len(self._done))
                self._loop(pool)
            finally:
                pool.stop()
                self._journal.close()
                pool.save_log(self._out)
        self._write_summary(facts, pool.restarts)
        return dict(self.counts)

    def _trace_only(self) -> None:
        """Give parts that are not captured to tracing workers, which compute the latency from the kernels of a run."""
        for part in self._plan.parts:
            if not part.captured:
                self._traces.extend(replace(group, role="fallback") for group in self._schedule.groups.pop(part.name))

    def _make_header(self, facts: dict[str, object], workers: int) -> dict[str, object]:
        measuring = self._plan.measuring
        header = {"kind": "campaign", "campaign_id": self.campaign_id, "runtime": "cuda-graph", "workers": workers}
        if self._device == "cpu":
            runtime = "cpu" if measuring.runtime == "eager" else measuring.runtime
            header |= {"runtime": runtime, "threads": measuring.threads}
        return header | facts

    def _write_header(self) -> None:
        """Write the header just before the first record, so that a campaign without results leaves no line."""
        if self._header:
            self._journal.append(self._header)
            self._header = {}

    def _resume(self) -> list[Group]:
        """Read which workloads are done, in this folder and in those to skip; return the groups to measure once more.

        Workloads of this plan's parts that are done but should have a trace and have none are added to the traces to
        record.
        """
        rows: list[dict[str, Any]] = []
        for path in self._job.skip:
            skipped_rows, traced = done_measurements(path, self._plan.measuring.run)
            rows += skipped_rows
            self._traced |= traced
        own, traced = done_measurements(self._out)
        own_ids = {row["workload_id"] for row in own}
        chosen = choose_again(rows, self._job.again, own_ids)
        rows += own
        self._traced |= traced
        untraced: dict[str, list[Workload]] = {}
        parts = {part.name for part in self._plan.parts}
        for row in rows:
            self._seen.add((row["part"] or "", row["spec"]))
            # a crash or timeout in another campaign is tried again, one in this campaign's own folder is not
            if row["status"] in TRIED_AGAIN and row["workload_id"] not in own_ids:
                continue
            known = row["workload_id"] in self._done
            self._done.add(row["workload_id"])
            if not known and row["status"] == "ok" and row["part"] in parts and self._wants_trace(row["workload_id"]):
                workload = workload_from_row(row)
                untraced.setdefault(row["spec"], []).append(workload)
                self._register(row["part"] or "", [workload])
        for spec, workloads in untraced.items():
            part = self._parts[workloads[0].id]
            self._traces.append(Group(part, spec, tuple(workloads), len(workloads), "trace"))
        # what is measured once more must not count as done
        self._done -= {workload.id for group in chosen for workload in group.workloads}
        return chosen

    def _wants_trace(self, workload_id: str) -> bool:
        share = self._plan.measuring.trace_share
        return workload_id not in self._traced and chosen_for("trace", share, self._plan, workload_id)

    def _register(self, part: str, workloads: Iterable[Workload]) -> None:
        for workload in workloads:
            self._known[workload.id] = workload
            self._parts[workload.id] = part

    def _loop(self, pool: Pool) -> None:
        reported = shown = time.monotonic()
        while time.monotonic() < self._kill_at:
            if pool.restarts > _MAX_RESTARTS:
                log.warning("%d workers have died: the campaign ends early", pool.restarts)
                break
            running = time.monotonic() < self._stop_at and not self._job.enough(self.counts["ok"])
            for worker in pool.workers.values():
                group = self._next(pool, worker) if running and worker.idle else None
                if group is not None:
                    self._register(group.part, group.workloads)
                    pool.assign(worker, group, self._message(group))
            busy = any(worker.group is not None for worker in pool.workers.values())
            starting = running and (self._schedule or self._traces)
            if not busy and not starting:
                break
            if pool.restarts >= 2 * len(pool.workers) and not self._got_message:
                raise MeasurementError(f"No worker could start. See {self._out / 'workers.log'}.")
            if self._job.elapsed_s > _NO_RESULT_S and not (self.counts["ok"] or self.counts["traced"]):
                reason = next((f" ({text})" for text, _ in self._reasons.most_common(1)), "")
                log.warning("nothing could be measured in %.0f s%s: the campaign gives up", _NO_RESULT_S, reason)
                break
            for worker, message in pool.listen(0.1):
                if message is None:
                    self._handle_end(pool, worker, "crash", restart=running)
                else:
                    self._handle_message(worker, message)
            for worker in pool.hung(self._plan.limits.timeout_s):
                log.warning("worker %d hangs and is killed", worker.index)
                # `listen` reports its end, and `_handle_end` then finds this reason
                worker.process.kill()
                self._errors[worker.current or ""] = "timeout"
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                self.report()
            if time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                self._job.on_progress(self._progress(pool))
        self._job.on_progress(self._progress(pool))

    def _progress(self, pool: Pool) -> Progress:
        left = sum(group.target_count for queue in self._schedule.groups.values() for group in queue)
        for worker in pool.workers.values():
            if worker.group is not None and worker.group.role == "measure":
                left += max(worker.group.target_count - len(worker.finished), 0)
        if self._job.limit:
            left = min(left, max(self._job.limit - self.counts["ok"], 0))
        failed = self._finished - self.counts["ok"]
        elapsed_s, budget_s = self._job.elapsed_s, self._job.seconds
        return Progress(self._finished, failed, left, self._known_before, self.counts["traced"], elapsed_s, budget_s)

    def _next(self, pool: Pool, worker: WorkerProcess) -> Group | None:
        tracers = any(other.role == "trace" for other in pool.workers.values())
        if (worker.role == "trace" or not tracers) and self._traces:
            return self._traces.popleft()
        return None if worker.role == "trace" else self._schedule.next()

    def _message(self, group: Group) -> Message:
        share = self._plan.measuring.energy_share
        ids = [workload.id for workload in group.workloads]
        energy = {
            workload_id
            for workload_id in ids
            if group.part == AGAIN or chosen_for("energy", share, self._plan, workload_id)
        }
        traced = [workload_id for workload_id in ids if self._plan.workers.fresh and self._wants_trace(workload_id)]
        return {"group": group_to_json(group, energy), "stop_at": self._stop_at, "trace": traced}

    def _handle_message(self, worker: WorkerProcess, message: Message) -> None:
        event, group = message["event"], worker.group
        self._got_message = True
        if event == "ready":
            worker.ready = True
        elif event == "begin":
            worker.current = message["id"]
        elif event == "trace":
            self._write_trace(message["id"], message["kernels"])
        elif event == "record" and group is not None:
            worker.finished.add(message["id"])
            if group.role == "trace":
                self.counts["trace failed"] += 1
            else:
                self._write_record(message["id"], message["status"], message["values"])
        elif event == "fallback" and group is not None:
            worker.finished.add(message["id"])
            self.counts["fallback"] += 1
            workload = self._known[message["id"]]
            self._errors[message["id"]] = message["error"]
            self._reasons[f"fallback: {message['error'][:120]}"] += 1
            # first in the queue: without it the workload would have no latency
            self._traces.appendleft(Group(group.part, group.spec, (workload,), 1, "fallback"))
        elif event == "done" and group is not None:
            self._finish(worker, group, float(message["busy_s"]))

    def _finish(self, worker: WorkerProcess, group: Group, busy_s: float) -> None:
        if group.role == "measure":
            self._schedule.charge(group.part, busy_s)
            to_trace = [
                self._known[workload_id]
                for workload_id in sorted(worker.finished & self._ok)
                if self._wants_trace(workload_id)
            ]
            if to_trace:
                self._traces.append(Group(group.part, group.spec, tuple(to_trace), len(to_trace), "trace"))
        worker.group = worker.current = None

    def _write_record(self, workload_id: str, status: str, values: Message) -> None:
        """Write the record of a workload, unless it has one already."""
        if workload_id in self._done:
            return
        self._done.add(workload_id)
        self._finished += 1
        self.counts[status] += 1
        self._write_header()
        if status == "ok":
            self._ok.add(workload_id)
        workload, part = self._known[workload_id], self._parts[workload_id]
        line = record_of("measurement", self.campaign_id, workload, part, status)
        # a workload that could not be captured keeps the reason, even though the fallback measured it
        if workload_id in self._errors:
            line["error"] = self._errors[workload_id]
        self._journal.append(line | values)
        if status != "ok":
            self._reasons[f"{status}: {str(values.get('error', ''))[:120]}"] += 1

    def _write_trace(self, workload_id: str, kernels: Message) -> None:
        if workload_id not in self._traced and kernels["name"]:
            self._traced.add(workload_id)
            self.counts["traced"] += 1
            self._write_header()
            self._journal.append_trace(
                {"workload_id": workload_id, "campaign_id": self.campaign_id, "kernels": kernels}
            )

    def _handle_end(self, pool: Pool, worker: WorkerProcess, status: str, *, restart: bool) -> None:
        """Handle a worker that has ended.

        Its current workload gets a record with ``status``. The remaining workloads of its group go back into the
        schedule, and a new worker takes its place if ``restart``.
        """
        group = worker.group
        if group is not None:
            blamed = worker.current
            if blamed is not None and blamed not in worker.finished:
                worker.finished.add(blamed)
                if group.role != "trace" and time.monotonic() < self._stop_at:
                    status = self._errors.pop(blamed, status)
                    status = status if status == "timeout" else "crash"
                    self._write_record(blamed, status, {"error": f"exit code {worker.process.returncode}"})
            left = group.without(worker.finished)
            if group.role == "measure":
                self._schedule.put_back(left)
            elif left.workloads:
                self._traces.append(left)
            worker.group = None
        worker.ready = False
        if restart:
            log.warning("worker %d ended with code %s and is restarted", worker.index, worker.process.returncode)
            pool.restart(worker)

    def report_reasons(self) -> None:
        """Log why workloads have no measurement, the most frequent reasons first."""
        for reason, count in self._reasons.most_common(12):
            log.info("%5d × %s", count, reason)

    def report(self) -> None:
        """Log the progress of the campaign in one line."""
        elapsed_s = self._job.elapsed_s
        rate = self.counts["ok"] / elapsed_s * 60
        ended = ", ".join(f"{count} {status}" for status, count in self.counts.items()) or "nothing measured"
        used = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self._schedule.used_s.items()) or "none"
        waiting = f"; {len(self._traces)} traces wait" if self._traces else ""
        log.info("%.0f s: %s; %.0f a minute%s; time by part: %s", elapsed_s, ended, rate, waiting, used)

    def _write_summary(self, facts: dict[str, object], restarts: int) -> None:
        elapsed_s = self._job.elapsed_s
        summary = {"campaign_id": self.campaign_id, "elapsed_s": elapsed_s, "counts": dict(self.counts)}
        summary |= {"restarts": restarts, "used_s": dict(self._schedule.used_s), "left": len(self._schedule)}
        summary |= {"untraced": sum(len(group.workloads) for group in self._traces), "facts": facts}
        write_whole(self._out / "campaign.json", (json.dumps(summary, indent=1) + "\n").encode())


def choose_again(rows: Iterable[dict[str, Any]], count: int, done: set[str]) -> list[Group]:
    """``count`` workloads to measure once more, without those that are ``done``.

    Those that were measured least often come first, then those with energy.
    """
    measured = [row for row in rows if row["status"] == "ok"]
    row_by_id = {row["workload_id"]: row for row in measured}
    measured_times = Counter(row["workload_id"] for row in measured)
    order = sorted(
        row_by_id,
        key=lambda name: (measured_times[name], row_by_id[name].get("energy_j") is None, fraction(AGAIN, name)),
    )
    specs: dict[str, list[Workload]] = {}
    for workload_id in order[:count]:
        if workload_id not in done:
            specs.setdefault(row_by_id[workload_id]["spec"], []).append(workload_from_row(row_by_id[workload_id]))
    return [Group(AGAIN, spec, tuple(workloads), len(workloads)) for spec, workloads in specs.items()]


def run(job: Job) -> dict[str, int]:
    """Run a ``measurements`` campaign; return the number of workloads by status."""
    campaign = Campaign(job)
    counts = campaign.run()
    campaign.report_reasons()
    campaign.report()
    return counts
