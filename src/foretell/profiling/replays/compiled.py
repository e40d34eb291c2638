"""Profiling: measure models in eager mode and under ``torch.compile``, as many as the time allows.

Compiling takes one core for half a minute and does not disturb others; timing needs the device alone. So many processes
first compile models and keep them in memory. Then one process after the other times and traces its models while the
others wait.
"""

import logging
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.processes.pool import Pool, WorkerProcess
from foretell.profiling.campaign.done import Trace, done_keys
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.plan import Plan
from foretell.profiling.campaign.rows import CampaignRows
from foretell.profiling.campaign.schedule import Group, make_schedule
from foretell.profiling.campaign.selection import Chosen
from foretell.units import ms, seconds_from_us

log = logging.getLogger("foretell.profiling")

WORKER = (sys.executable, "-m", "foretell.profiling.replays.compiled_worker")
TABLE, KERNELS, CALLS = "compiled", "compiled_kernels", "compiled_calls"
_LISTEN_S = 0.05
_REPORT_S = 20.0
_MAX_RESTARTS = 40
# Expected seconds for timing and tracing one compiled workload; measuring begins early enough for all of them.
_MEASURE_S = 0.8
# A process gets another workload only if this share of the usual compile time is left before measuring begins.
_USEFUL_SHARE = 0.6
_INTERRUPT_S = 10.0
_SILENCE_S = 40.0
_BUSY = Group("", "", (), 0)


def run(job: Job, command: Sequence[str] = WORKER) -> dict[str, int]:
    """Compile and measure until the time is over or the plan is finished; return the number of workloads by status."""
    return CompiledCampaign(job, command).run()


class CompiledCampaign:
    """One run of a ``compiled`` plan."""

    def __init__(self, job: Job, command: Sequence[str] = WORKER) -> None:
        self._job = job
        self._plan = job.plan
        self._command = command
        reserve_s = job.reserve_s(0.05, 15.0)
        self._stop_at = job.before_end(reserve_s)
        self._kill_at = job.before_end(reserve_s / 2)
        self._measure_at = job.before_end(self._plan.compiled.measure_share * job.seconds)
        self._rows = CampaignRows(job.out, TABLE)
        self._waiting: deque[Chosen] = deque()
        self._known: dict[str, Chosen] = {}
        self._assigned: dict[int, tuple[str, float]] = {}
        self._compiled: dict[int, set[str]] = {}
        self._facts: dict[str, Message] = {}
        self._timed: dict[str, Message] = {}
        self._took_s: list[float] = []
        self._full: set[int] = set()
        self._stopped: set[int] = set()
        self._timed_out: dict[int, float] = {}
        self._preparing = False
        self._got_message = False
        self._reported = time.monotonic()

    def run(self) -> dict[str, int]:
        """Alternate between compiling and measuring until nothing is left or the time is over."""
        plan, job = self._plan, self._job
        settings: Message = {"device": job.device, "measuring": asdict(plan.measuring)}
        settings |= {"limits": asdict(plan.limits), "compiled": asdict(plan.compiled)}
        settings["preload"] = sorted({zoo for part in plan.parts for zoo in part.zoos})
        roles = ["compile"] * plan.compiled.processes
        self._rows.open(job.device, job.commit, len(roles), runtime="compiled")
        with tempfile.TemporaryDirectory(prefix="foretell-compiled-", ignore_cleanup_errors=True) as folder:
            pool = Pool(Path(folder), settings, roles, self._command)
            try:
                pool.start()  # start first: the workers import their libraries while we make the schedule
                known = done_keys(job.folders, TABLE, ("workload_id",), trace=Trace(KERNELS, "kernels"))
                done = {str(key) for (key,) in known}
                self._waiting.extend(lay_out(plan, done))
                log.info("%d models to compile, %d are known", len(self._waiting), len(done))
                while self._prepare(pool) and self._measure(pool):
                    self._refill(pool)
            finally:
                pool.stop()
                for workload_id in list(self._timed):
                    self._write(workload_id, None)
                self._rows.close()
                pool.save_log(job.out)
        self.report()
        return dict(self._rows.counts)

    def _prepare(self, pool: Pool) -> bool:
        """Compile until it is time to measure or nothing is left; return whether there is anything to measure."""
        self._preparing = True
        while time.monotonic() < self._measuring_begins():
            for worker in pool.workers.values():
                if worker.idle and self._may_begin(worker, pool):
                    self._assign(pool, worker, self._waiting.popleft())
            busy = any(worker.group is not None for worker in pool.workers.values())
            if not busy and not (self._waiting and self._needs_more(pool) and self._has_free_worker(pool)):
                break
            if not self._got_message and pool.restarts >= min(2 * len(pool.workers), _MAX_RESTARTS):
                raise MeasurementError(f"No worker could start. See {self._job.out / 'workers.log'}.")
            self._listen(pool, self._plan.limits.timeout_s)
        self._preparing = False
        return any(self._compiled.values()) or any(worker.group is not None for worker in pool.workers.values())

    def _refill(self, pool: Pool) -> None:
        """Get all workers ready for another round of compiling: empty ones may be filled again, dead ones restart."""
        self._full.clear()
        for worker in list(pool.workers.values()):
            if worker.process.poll() is not None and self._waiting and self._needs_more(pool) and self._in_time():
                self._restart(pool, worker)

    def _measuring_begins(self) -> float:
        compiled = sum(map(len, self._compiled.values()))
        return min(self._measure_at, self._stop_at - compiled * _MEASURE_S)

    def _needs_more(self, pool: Pool) -> bool:
        """Whether the requested number of workloads is neither compiled nor being compiled."""
        begun = sum(map(len, self._compiled.values())) + sum(
            worker.group is not None for worker in pool.workers.values()
        )
        return not self._job.enough(self._rows.counts["ok"] + begun)

    def _has_free_worker(self, pool: Pool) -> bool:
        """Whether any process can take another workload, now or when it has started."""
        takes = (worker for worker in pool.workers.values() if worker.index not in self._full)
        return any(worker.process.poll() is None and (not worker.ready or self._in_time()) for worker in takes)

    def _in_time(self) -> bool:
        """Whether a compilation that begins now will probably finish in time to be measured."""
        usual_s = statistics.median(self._took_s) if self._took_s else 0.0
        return time.monotonic() + _USEFUL_SHARE * usual_s < self._measuring_begins()

    def _may_begin(self, worker: WorkerProcess, pool: Pool) -> bool:
        return bool(self._waiting) and worker.index not in self._full and self._needs_more(pool) and self._in_time()

    def _assign(self, pool: Pool, worker: WorkerProcess, chosen: Chosen) -> None:
        self._known[chosen.workload.id] = chosen
        self._assigned[worker.index] = chosen.workload.id, time.monotonic()
        pool.assign(worker, _BUSY, {"do": "prepare", "workload": chosen.workload.to_json()})

    def _measure(self, pool: Pool) -> bool:
        """Measure in one process after the other; return whether anything was measured.

        Processes whose compilation cannot be interrupted are stopped by a signal. They continue, and are measured, when
        the others have finished.
        """
        before = self._rows.counts.total()
        self._interrupt(pool)
        stopped = frozenset(self._stopped)
        log.info(
            "%.0f s: %d compiled, %d processes still compile",
            self._job.elapsed_s, sum(map(len, self._compiled.values())), len(stopped),
        )  # fmt: skip
        self._rounds(pool, lambda worker: worker.index not in stopped)
        for worker in pool.workers.values():
            if worker.index in stopped:
                _signal(worker, signal.SIGCONT)
        self._stopped.clear()
        self._wait(pool, stopped, self._plan.limits.timeout_s)
        self._rounds(pool, lambda worker: worker.index in stopped)
        return self._rows.counts.total() > before

    def _interrupt(self, pool: Pool) -> None:
        """Interrupt all compilations; stop processes that do not react (SIGSTOP), so that they disturb no timing."""
        busy = [worker for worker in pool.workers.values() if worker.group is not None]
        for worker in busy:
            _signal(worker, signal.SIGUSR1)
        until = min(time.monotonic() + _INTERRUPT_S, self._kill_at)
        while time.monotonic() < until and any(worker.group is not None for worker in busy):
            self._listen(pool, math.inf)
        for worker in busy:
            if worker.group is not None and worker.process.poll() is None:
                self._stopped.add(worker.index)
                _signal(worker, signal.SIGSTOP)

    def _rounds(self, pool: Pool, which: Callable[[WorkerProcess], bool]) -> None:
        """Time in one process after the other, load all tracers at once, then trace in one process after the other.

        Timing gets half of the remaining time, so that tracing has the other half. Repeat for models that did not fit.
        """
        while time.monotonic() < self._stop_at:
            before = self._remaining()
            working = [w for w in pool.workers.values() if which(w) and w.idle and self._compiled.get(w.index)]
            if not working:
                return
            half_at = time.monotonic() + (self._stop_at - time.monotonic()) / 2
            for worker in working:
                self._command_one(pool, worker, {"do": "time", "stop_at": half_at})
            tracing = [worker for worker in working if worker.idle]
            for worker in tracing:
                pool.assign(worker, _BUSY, {"do": "tracer"})
            self._wait(pool, {worker.index for worker in tracing}, _SILENCE_S)
            for worker in tracing:
                self._command_one(pool, worker, {"do": "trace", "stop_at": self._stop_at})
            if self._remaining() == before:
                return

    def _remaining(self) -> tuple[int, int]:
        return sum(map(len, self._compiled.values())), len(self._timed)

    def _command_one(self, pool: Pool, worker: WorkerProcess, message: Message) -> None:
        """Send a command to one process and wait until it has finished."""
        if worker.idle and time.monotonic() < float(message["stop_at"]):
            pool.assign(worker, _BUSY, message)
            self._wait(pool, {worker.index}, _SILENCE_S)

    def _wait(self, pool: Pool, indices: Collection[int], silence_s: float) -> None:
        """Wait until processes have finished; late ones are killed, so that the next process has the device alone."""
        workers = [pool.workers[index] for index in indices]
        for worker in workers:
            worker.last_message_at = time.monotonic()
        while any(worker.group is not None for worker in workers):
            self._listen(pool, silence_s)
            if time.monotonic() > self._kill_at:
                for worker in workers:
                    if worker.group is not None:
                        self._end(worker, "the campaign is over")
                return

    def _listen(self, pool: Pool, silence_s: float) -> None:
        for worker, message in pool.listen(_LISTEN_S):
            self._got_message = self._got_message or message is not None
            if message is None:
                self._handle_end(pool, worker)
            else:
                self._handle_message(worker, message)
        for worker in pool.hung(silence_s):
            if worker.index not in self._timed_out and worker.index not in self._stopped:
                self._timed_out[worker.index] = silence_s
                self._end(worker, f"silent for {silence_s:.0f} s")
        if time.monotonic() - self._reported > _REPORT_S:
            self._reported = time.monotonic()
            self.report()

    def _end(self, worker: WorkerProcess, reason: str) -> None:
        log.warning("worker %d is killed: %s", worker.index, reason)
        worker.process.kill()

    def _handle_message(self, worker: WorkerProcess, message: Message) -> None:
        event, workload_id = message["event"], str(message.get("id", ""))
        if event == "ready":
            worker.ready = True
        elif event == "begin":
            worker.current = workload_id
        elif event == "done":
            worker.group = worker.current = None
            self._requeue(worker)
            if message["full"]:
                self._full.add(worker.index)
        elif event == "kept":
            self._took_s.append(time.monotonic() - self._assigned.pop(worker.index)[1])
            self._compiled.setdefault(worker.index, set()).add(workload_id)
            # keep the first values: a second compilation comes from a cache and is too fast
            self._facts.setdefault(workload_id, message["values"])
        elif event == "timed":
            self._timed[workload_id] = message["values"]
        elif event == "traced":
            if message["error"]:
                log.warning("no trace of %s: %s", self._known[workload_id].workload.spec, message["error"])
            self._compiled[worker.index].discard(workload_id)
            self._write(workload_id, message["kernels"], message.get("calls"))
        elif event == "failed":
            self._assigned.pop(worker.index, None)
            self._compiled.get(worker.index, set()).discard(workload_id)
            self._fail(workload_id, message["status"], message["values"])
        if event in ("kept", "timed", "traced", "failed"):
            worker.current = None

    def _fail(self, workload_id: str, status: str, values: Message) -> None:
        facts = self._facts.get(workload_id, {})
        self._rows.write(self._known[workload_id], status, facts | values)

    def _write(self, workload_id: str, kernels: Message | None, calls: Message | None = None) -> None:
        """Write the row of a workload, and the kernels and calls of its compiled run if they are known."""
        values = self._facts[workload_id] | self._timed.pop(workload_id)
        if kernels and kernels["name"]:
            total_us = math.fsum(kernels["duration_us"])
            values |= {"kernels": len(kernels["name"]), "kernel_ms": ms(seconds_from_us(total_us))}
            self._rows.write_trace(KERNELS, workload_id, kernels)
            if calls and calls["call"]:
                self._rows.write_rows(CALLS, workload_id, calls)
        self._rows.write(self._known[workload_id], "ok", values)

    def _requeue(self, worker: WorkerProcess) -> None:
        """Return the workload that a process was assigned but did not compile to the queue."""
        assigned = self._assigned.pop(worker.index, None)
        if assigned is not None:
            self._waiting.appendleft(self._known[assigned[0]])

    def _handle_end(self, pool: Pool, worker: WorkerProcess) -> None:
        """Handle a process that has ended.

        Its current workload has failed. Its compiled models are lost and go back to the queue.
        """
        silent_s, current, code = self._timed_out.pop(worker.index, None), worker.current, worker.process.returncode
        # a timed workload is complete even without a trace
        lost = self._compiled.pop(worker.index, set()) - self._timed.keys()
        log.warning("worker %d ended with code %s; %d compiled models are lost", worker.index, code, len(lost))
        worker.group, worker.current, worker.ready = None, None, False
        self._full.discard(worker.index)
        self._stopped.discard(worker.index)
        if current is not None and current not in self._timed and time.monotonic() < self._stop_at:
            self._assigned.pop(worker.index, None)
            lost.discard(current)
            error = f"exit code {code}" if silent_s is None else f"silent for {silent_s:.0f} s"
            self._fail(current, "crash" if silent_s is None else "timeout", {"error": error})
        self._requeue(worker)
        # at the front: these models were chosen before those that still wait
        self._waiting.extendleft(self._known[workload_id] for workload_id in sorted(lost))
        if self._preparing and self._waiting and self._in_time():
            self._restart(pool, worker)

    def _restart(self, pool: Pool, worker: WorkerProcess) -> None:
        if pool.restarts < _MAX_RESTARTS:
            pool.restart(worker)

    def report(self) -> None:
        """Log the progress of the campaign in one line."""
        compiled = sum(map(len, self._compiled.values()))
        counts = dict(self._rows.counts)
        full, waiting = len(self._full), len(self._waiting)
        log.info(
            "%.0f s: %s; %d compiled, %d processes full, %d wait", self._job.elapsed_s, counts, compiled, full, waiting
        )


def _signal(worker: WorkerProcess, number: int) -> None:
    with suppress(ProcessLookupError):
        if worker.process.poll() is None:
            os.kill(worker.process.pid, number)


def lay_out(plan: Plan, done: Collection[str]) -> Iterator[Chosen]:
    """The workloads that are not ``done``; the parts of the plan take turns by their shares."""
    schedule = make_schedule(plan, done)
    while (group := schedule.next()) is not None:
        for workload in group.workloads[: group.target_count]:
            yield Chosen(workload, group.part)
