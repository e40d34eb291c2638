"""Lab: the occupancy campaign: achieved occupancy by hardware counters, many workloads for each start of the profiler.

Several ``ncu`` processes build their models at the same time, and one of them counts. ``ncu`` prints its results only
when its program ends, so each process gets only a few workloads: what one loses in a crash, another counts again.
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.processes.parent import child_environment, kill_group
from foretell.profiling.campaign.done import Trace, done_keys
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.rows import CampaignRows
from foretell.profiling.campaign.schedule import Group, Schedule, make_schedule
from foretell.profiling.campaign.selection import Chosen, choose
from foretell.profiling.trackers.distinct_calls import expand
from foretell.profiling.trackers.ncu import OPTIONS, Counters, error_text, find_ncu, read_counters, split_ranges
from foretell.profiling.workload import Workload
from foretell.units import ms, seconds_from_us

log = logging.getLogger("foretell.profiling")

WORKER = ("-m", "foretell.profiling.runtimes.counted_worker")
_TABLE = "occupancy"
_POLL_S = 0.1
_REPORT_S = 20.0
_MAX_FAILED_STARTS = 3
_MAX_LOST = 2
# The first profiler gets so many workloads and each further one so many more, so that counting begins early.
_MORE = 2


@dataclass
class _Child:
    """One ``ncu`` process and the groups of its worker."""

    folder: Path
    groups: list[Group]
    process: subprocess.Popen[bytes]
    ending: bool = False
    killed_at: float = 0.0

    def read_events(self) -> list[dict[str, Any]]:
        """All complete lines that the worker has written."""
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


class OccupancyCampaign:
    """One run of an ``occupancy`` plan."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan = job.plan
        self._out = job.out
        self._device = job.device
        reserve_s = job.reserve_s(0.12, 25.0)
        self._stop_at = job.before_end(reserve_s)
        self._kill_at = job.before_end(0.75 * reserve_s)
        self._give_up_at = job.before_end(0.45 * reserve_s)
        self._rows = CampaignRows(job.out, _TABLE)
        self._schedule = Schedule({}, {})
        self._requeued: deque[Group] = deque()
        self._lost: Counter[str] = Counter()
        self._known: dict[str, Chosen] = {}
        self._done: set[str] = set()
        self._failed_starts = 0
        self._error_text = ""
        self._ncu = ""

    def run(self) -> dict[str, int]:
        """Count until the time or the plan is over; return the number of workloads by outcome."""
        self._ncu = find_ncu()
        processes, options = self._plan.occupancy.processes, " ".join(OPTIONS)
        self._rows.open(self._device, self._job.commit, processes, runtime="ncu", ncu=options)
        try:
            done = done_keys(self._job.folders, _TABLE, ("workload_id",), trace=Trace("occupancy_kernels", "kernels"))
            self._done = {str(key) for (key,) in done}
            self._schedule = self._lay_out()
            log.info("%d models to count, %d workloads known", len(self._schedule), len(self._done))
            with tempfile.TemporaryDirectory(prefix="foretell-occupancy-") as folder:
                self._loop(Path(folder))
        finally:
            self._rows.close()
        self.report()
        return dict(self._counts)

    @property
    def _counts(self) -> Counter[str]:
        return self._rows.counts

    def _lay_out(self) -> Schedule:
        """Parts that name their models are counted as they are, others choose from what was measured."""
        if not self._plan.selection.measured:
            return make_schedule(self._plan, self._done)
        named = tuple(part for part in self._plan.parts if part.specs)
        others = tuple(part for part in self._plan.parts if not part.specs)
        specs: dict[tuple[str, str], list[Workload]] = {}
        for chosen in choose(replace(self._plan, parts=others)) if others else ():
            specs.setdefault((chosen.part, chosen.workload.spec), []).append(chosen.workload)
        groups: dict[str, deque[Group]] = {part.name: deque() for part in others}
        groups |= make_schedule(replace(self._plan, parts=named), self._done).groups
        for (part, spec), workloads in specs.items():
            remaining = Group(part, spec, tuple(workloads), len(workloads)).without(self._done)
            if remaining.workloads:
                groups[part].append(remaining)
        return Schedule(groups, {part.name: part.share for part in self._plan.parts})

    def _loop(self, folder: Path) -> None:
        children: dict[int, _Child] = {}
        started, reported = 0, time.monotonic()
        try:
            while time.monotonic() < self._give_up_at:
                running = time.monotonic() < self._stop_at and not self._job.enough(self._counts["ok"])
                for slot in range(self._plan.occupancy.processes):
                    if running and slot not in children:
                        groups = self._next_groups((started + 1) * _MORE)
                        if groups:
                            children[slot] = self._start(folder / str(started), groups)
                            started += 1
                if not children:
                    break
                for slot, child in list(children.items()):
                    if self._ended(child):
                        del children[slot]
                        self._save(child)
                # without permission for hardware counters every start fails: stop early and say why
                if self._failed_starts >= _MAX_FAILED_STARTS and not self._counts["ok"]:
                    raise MeasurementError(f"ncu counts nothing: {self._error_text or 'it printed no kernels'}")
                if time.monotonic() - reported > _REPORT_S:
                    reported = time.monotonic()
                    self.report()
                time.sleep(_POLL_S)
        finally:
            for child in children.values():
                _kill(child)
                self._save(child)

    def _next_groups(self, most: int) -> list[Group]:
        """Groups for one profiler: about ``per_process`` workloads, at most ``most``."""
        groups: list[Group] = []
        room = min(most, self._plan.occupancy.per_process)
        if self._job.limit:
            room = min(room, max(1, math.ceil(self._job.limit / self._plan.occupancy.processes)))
        while sum(group.target_count for group in groups) < room:
            group = self._requeued.popleft() if self._requeued else self._schedule.next()
            if group is None:
                break
            groups.append(group)
        return groups

    def _start(self, folder: Path, groups: list[Group]) -> _Child:
        folder.mkdir()
        settings = {
            "device": self._device,
            "folder": str(folder.parent),
            "events": str(folder / "events.jsonl"),
            "campaign": os.getpid(),
            "stop_at": self._stop_at,
            "kill_at": self._kill_at,
            "kernels_max": self._plan.occupancy.kernels_max,
            "run_s": self._plan.occupancy.run_s,
            "limits": asdict(self._plan.limits),
            "preload": sorted({group.spec.partition(":")[0] for group in groups}),
            "groups": [
                {"workloads": [workload.to_json() for workload in group.workloads], "wanted": group.target_count}
                for group in groups
            ],
        }
        for group in groups:
            for workload in group.workloads:
                self._known[workload.id] = Chosen(workload, group.part)
        path = folder / "settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        # LC_ALL: decimal points. TMPDIR: ncu keeps a lock there, which would block processes that are still building.
        environment = child_environment({"LC_ALL": "C", "TMPDIR": str(folder)})
        command = [self._ncu, *OPTIONS, "--log-file", str(folder / "ncu.csv"), sys.executable, *WORKER, str(path)]
        with (folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # a process group of its own, so that `_kill` reaches ncu and its program together
                start_new_session=True,
            )
        return _Child(folder, groups, process)

    def _ended(self, child: _Child) -> bool:
        """Whether the profiler has ended.

        One that is late is ended; its program is killed first, so that ``ncu`` can still print its results.
        """
        if child.process.poll() is not None:
            return True
        now, events = time.monotonic(), child.read_events()
        if now > self._give_up_at or (child.ending and now > child.killed_at + self._plan.limits.timeout_s):
            _kill(child)
            return True
        working = bool(events) and events[-1]["event"] in ("begin", "open")
        late = working and now > float(events[-1]["at"]) + self._plan.limits.timeout_s
        if (late or now > self._kill_at) and not child.ending:
            child.ending, child.killed_at = True, now
            for event in events:
                if event["event"] == "pid":
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(int(event["pid"]), signal.SIGKILL)
        return False

    def _save(self, child: _Child) -> None:
        """Write the results of one profiler; queue what it did not get to again."""
        events = child.read_events()
        lines = _lines(child.folder / "ncu.csv")
        ranges = split_ranges(read_counters(lines))
        opened = [str(event["id"]) for event in events if event["event"] == "open"]
        closed = {str(event["id"]): event for event in events if event["event"] == "close"}
        begun = [str(event["id"]) for event in events if event["event"] == "begin"]
        finished = any(event["event"] == "done" for event in events)
        for event in events:
            if event["event"] == "record":
                self._write(str(event["id"]), str(event["status"]), error=str(event["error"]))
        counted = 0
        # a profiler that was killed has opened a range that it did not print
        for workload_id, counters in zip(opened, ranges, strict=False):
            if workload_id in closed and counters:
                kernels = _all_kernels(closed[workload_id]["calls"], counters)
                counted += bool(kernels)
                if kernels:
                    self._write_counters(workload_id, kernels, len(counters), float(closed[workload_id]["profile_s"]))
        # runs ended, but ncu printed nothing for them
        if closed and not counted:
            self._failed_starts += 1
        elif not begun:
            self._failed_starts += 1
            self._error_text = self._error_text or _last_line(child.folder / "output.log")
        self._error_text = error_text(lines) or error_text(_lines(child.folder / "output.log")) or self._error_text
        self._log(child, lines)
        if begun and not finished and begun[-1] not in closed and time.monotonic() < self._stop_at:
            late = child.ending or child.process.returncode == -signal.SIGKILL
            reason = f"the worker ended during this workload; ncu's exit code {child.process.returncode}"
            self._write(begun[-1], "timeout" if late else "crash", error=reason)
        for workload_id in closed:
            if workload_id not in self._done:
                self._lost[workload_id] += 1
                if self._lost[workload_id] >= _MAX_LOST:
                    self._write(workload_id, "crash", error="ncu printed no counters for this workload")
        self._requeue(child, finished)

    def _requeue(self, child: _Child, finished: bool) -> None:
        """Queue the groups of a profiler again of which workloads are missing."""
        lost = {workload_id for workload_id in self._lost if workload_id not in self._done}
        for group in child.groups:
            remaining = group.without(self._done)
            has_lost = bool(lost & {workload.id for workload in group.workloads})
            if remaining.workloads and remaining.target_count > 0 and (has_lost or not finished):
                self._requeued.append(remaining)

    def _write(self, workload_id: str, status: str, **values: object) -> None:
        """Write one record, once."""
        if workload_id not in self._done:
            self._done.add(workload_id)
            self._rows.write(self._known[workload_id], status, values)

    def _write_counters(self, workload_id: str, kernels: Sequence[Counters], counted: int, profile_s: float) -> None:
        if workload_id in self._done:
            return
        total_us = math.fsum(kernel.duration_us for kernel in kernels)
        weighted = math.fsum(kernel.duration_us * kernel.occupancy_pct for kernel in kernels)
        columns: dict[str, object] = {
            "name": [kernel.name for kernel in kernels],
            "duration_us": [round(kernel.duration_us, 3) for kernel in kernels],
            "occupancy_pct": [kernel.occupancy_pct for kernel in kernels],
            "grid": [list(kernel.grid) for kernel in kernels],
            "block": [list(kernel.block) for kernel in kernels],
        }
        self._rows.write_trace("occupancy_kernels", workload_id, columns)
        self._write(
            workload_id,
            "ok",
            kernels=len(kernels),
            kernel_ms=ms(seconds_from_us(total_us)),
            occupancy_mean=math.fsum(kernel.occupancy_pct for kernel in kernels) / len(kernels),
            occupancy_weighted=weighted / total_us if total_us else 0.0,
            profile_s=round(profile_s, 3),
        )
        self._counts["kernels"] += counted

    def _log(self, child: _Child, lines: Sequence[str]) -> None:
        """Append the messages of a profiler and its program to the log."""
        messages = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
        messages += _lines(child.folder / "output.log")[-20:]
        if not split_ranges(read_counters(lines)):
            messages += [*lines[:6], *lines[-6:]]
        if messages:
            with suppress(OSError), (self._out / "workers.log").open("a", encoding="utf-8") as file:
                file.write(
                    f"process {child.folder.name}, exit code {child.process.returncode}\n" + "".join(messages) + "\n"
                )

    def report(self) -> None:
        """Log the progress of the campaign in one line."""
        elapsed_s = self._job.elapsed_s
        rate = self._counts["ok"] / max(elapsed_s, 1.0) * 60
        left = len(self._schedule)
        log.info("%.0f s: %s; %.0f a minute; %d models wait", elapsed_s, dict(self._counts), rate, left)


def _all_kernels(calls: Sequence[int], counters: Sequence[Counters]) -> list[Counters]:
    """The kernels of a whole run from those of its distinct calls; none where a kernel names no call."""
    if len(set(calls)) == len(calls):
        return list(counters)
    of_call: dict[int, list[Counters]] = {}
    for kernel in counters:
        if kernel.call is None:
            return []
        of_call.setdefault(kernel.call, []).append(kernel)
    return expand(calls, of_call)


def _kill(child: _Child) -> None:
    pids = [int(event["pid"]) for event in child.read_events() if event["event"] == "pid"]
    with suppress(ProcessLookupError, PermissionError):
        kill_group(child.process.pid)
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.process.wait()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []


def _last_line(path: Path) -> str:
    return next((line.strip() for line in reversed(_lines(path)) if line.strip()), "")


def run(job: Job) -> dict[str, int]:
    """Run an ``occupancy`` campaign; return the number of workloads by outcome."""
    return OccupancyCampaign(job).run()
