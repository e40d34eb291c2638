"""Profiling: measure as much of a plan as the time allows, and lose nothing.

    python3 -m foretell.profiling.campaign plans/h200-1.toml --out DIR --seconds 540 [--skip DONE ...]

The campaign gives groups of workloads to its workers and writes down what they answer. It can be killed at any moment
and called again with the same ``--out``; what is in its journal, or in what ``--skip`` names, is not measured again.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, MeasurementError
from foretell.profiling.environment import describe
from foretell.profiling.journal import Journal
from foretell.profiling.messages import Message, group_to_json
from foretell.profiling.plan import Plan, Workers, read_plan
from foretell.profiling.pool import WORKER, Pool, WorkerProcess
from foretell.profiling.schedule import Group, Schedule, chosen_for, make_schedule
from foretell.profiling.tables import read_done, write_tables
from foretell.profiling.workload import Workload, fraction

log = logging.getLogger("foretell.profiling")

_MAX_RESTARTS = 60
_REPORT_S = 20.0
_PATIENCE_S = 120.0
AGAIN = "again"
_AGAIN_SHARE = 0.25


class Campaign:
    """One run of a plan on one device."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        device: str,
        seconds: float,
        began: float,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._plan = plan
        self._command = command
        self._out = out
        self._device = device
        self._began = began
        reserve_s = min(16.0, 0.2 * seconds)
        self._stop_at = began + seconds - reserve_s
        self._kill_at = self._stop_at + reserve_s / 2
        self.campaign_id = uuid.uuid4().hex[:12]
        self._journal = Journal(out)
        self._schedule = Schedule({}, {})
        self._traces: deque[Group] = deque()
        self._known: dict[str, Workload] = {}
        self._parts: dict[str, str] = {}
        self._done: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._ok: set[str] = set()
        self._traced: set[str] = set()
        self._errors: dict[str, str] = {}
        self._heard = False
        self.counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def run(self, skip: Sequence[Path], commit: str, limit: int, again: int = 0) -> dict[str, int]:
        """Measure until the time or the plan is over; returns the rows of each table.

        ``again`` workloads of what ``skip`` has are measured once more, with energy: that tells how well they repeat.
        """
        self._journal.open()
        roles = ["measure"] * self._plan.workers.measure + ["trace"] * self._plan.workers.trace
        zoos = sorted({zoo for part in self._plan.parts for zoo in part.zoos})
        settings: Message = {"device": self._device, "preload": zoos, "measuring": asdict(self._plan.measuring)}
        settings["limits"] = asdict(self._plan.limits)
        with tempfile.TemporaryDirectory(prefix="foretell-campaign-") as folder:
            pool = Pool(Path(folder), settings, roles, self._command)
            facts = describe(self._device, commit)
            try:
                pool.start()  # the workers import their libraries while the plan is laid out
                self._write_header(facts, len(roles))
                repeated = self._resume(skip, again)
                self._schedule = make_schedule(self._plan, self._done, self._seen)
                if repeated:
                    self._schedule.groups[AGAIN], self._schedule.shares[AGAIN] = deque(repeated), _AGAIN_SHARE
                log.info("%d models to measure, %d workloads known", len(self._schedule), len(self._done))
                self._loop(pool, limit)
            finally:
                pool.stop()
                self._journal.close()
                self._keep_log(Path(folder) / "workers.log")
        rows = write_tables(self._out)
        self._write_summary(facts, rows, pool.restarts)
        return rows

    def _write_header(self, facts: dict[str, object], workers: int) -> None:
        runtime = "cpu" if self._device == "cpu" else "cuda-graph"
        header = {"kind": "campaign", "campaign_id": self.campaign_id, "runtime": runtime, "workers": workers}
        self._journal.append(header | facts)

    def _resume(self, skip: Iterable[Path], again: int) -> list[Group]:
        """Take over what is done; returns what shall be measured once more all the same."""
        rows: list[dict[str, Any]] = []
        for path in skip:
            found, traced = read_done(path)
            rows += found
            self._traced |= traced
        own, traced = read_done(self._out)
        chosen = choose_again(rows, again, {row["workload_id"] for row in own})
        rows += own
        self._traced |= traced
        untraced: dict[str, list[Workload]] = {}
        for row in rows:
            known = row["workload_id"] in self._done
            self._done.add(row["workload_id"])
            self._seen.add((row["part"] or "", row["spec"]))
            if not known and row["status"] == "ok" and self._wants_trace(row["workload_id"]):
                workload = _workload(row)
                untraced.setdefault(row["spec"], []).append(workload)
                self._remember(row["part"] or "", [workload])
        for spec, workloads in untraced.items():
            part = self._parts[workloads[0].id]
            self._traces.append(Group(part, spec, tuple(workloads), len(workloads), "trace"))
        self._done -= {workload.id for group in chosen for workload in group.workloads}
        return chosen

    def _wants_trace(self, workload_id: str) -> bool:
        share = self._plan.measuring.trace_share
        return workload_id not in self._traced and chosen_for("trace", share, self._plan, workload_id)

    def _remember(self, part: str, workloads: Iterable[Workload]) -> None:
        for workload in workloads:
            self._known[workload.id] = workload
            self._parts[workload.id] = part

    def _loop(self, pool: Pool, limit: int) -> None:
        reported = time.time()
        while time.time() < self._kill_at:
            if pool.restarts > _MAX_RESTARTS:
                log.warning("%d workers have died: the campaign ends early", pool.restarts)
                break
            running = time.time() < self._stop_at and not (limit and self.counts["ok"] >= limit)
            for worker in pool.workers.values():
                group = self._next(pool, worker) if running and worker.idle else None
                if group is not None:
                    self._remember(group.part, group.workloads)
                    pool.give(worker, group, self._message(group))
            busy = any(worker.group is not None for worker in pool.workers.values())
            starting = running and (self._schedule or self._traces)
            if not busy and not starting:
                break
            if pool.restarts >= 2 * len(pool.workers) and not self._heard:
                raise MeasurementError(f"No worker gets ready. See {self._out / 'workers.log'}.")
            if time.time() - self._began > _PATIENCE_S and not (self.counts["ok"] or self.counts["traced"]):
                log.warning("nothing could be measured in %.0f s: the campaign ends", _PATIENCE_S)
                break
            for worker, message in pool.listen(0.1):
                if message is None:
                    self._bury(pool, worker, "crash", restart=running)
                else:
                    self._hear(worker, message)
            for worker in pool.hung(self._plan.limits.timeout_s):
                log.warning("worker %d hangs: it is ended", worker.index)
                worker.process.kill()
                self._errors[worker.current or ""] = "timeout"
            if time.time() - reported > _REPORT_S:
                reported = time.time()
                self.report()

    def _next(self, pool: Pool, worker: WorkerProcess) -> Group | None:
        tracers = any(other.role == "trace" for other in pool.workers.values())
        if (worker.role == "trace" or not tracers) and self._traces:
            return self._traces.popleft()
        return None if worker.role == "trace" else self._schedule.next()

    def _message(self, group: Group) -> Message:
        share = self._plan.measuring.energy_share
        ids = [workload.id for workload in group.workloads]
        energy = {each for each in ids if group.part == AGAIN or chosen_for("energy", share, self._plan, each)}
        return {"group": group_to_json(group, energy), "stop_at": self._stop_at}

    def _hear(self, worker: WorkerProcess, message: Message) -> None:
        event, group = message["event"], worker.group
        self._heard = True
        if event == "ready":
            worker.ready = True
        elif event == "begin":
            worker.current = message["id"]
        elif event == "trace":
            self._keep_trace(message["id"], message["kernels"])
        elif event == "record" and group is not None:
            worker.finished.add(message["id"])
            if group.role == "trace":
                self.counts["trace failed"] += 1
            else:
                self._keep(message["id"], message["status"], message["values"])
        elif event == "fallback" and group is not None:
            worker.finished.add(message["id"])
            self.counts["fallback"] += 1
            workload = self._known[message["id"]]
            self._errors[message["id"]] = message["error"]
            self._reasons[f"fallback: {message['error'][:120]}"] += 1
            self._traces.appendleft(Group(group.part, group.spec, (workload,), 1, "fallback"))
        elif event == "done" and group is not None:
            self._finish(worker, group, float(message["busy_s"]))

    def _finish(self, worker: WorkerProcess, group: Group, busy_s: float) -> None:
        if group.role == "measure":
            self._schedule.charge(group.part, busy_s)
            wanted = [self._known[each] for each in sorted(worker.finished & self._ok) if self._wants_trace(each)]
            if wanted:
                self._traces.append(Group(group.part, group.spec, tuple(wanted), len(wanted), "trace"))
        worker.group = worker.current = None

    def _keep(self, workload_id: str, status: str, values: Message) -> None:
        """Write one record, once."""
        if workload_id in self._done:
            return
        self._done.add(workload_id)
        self.counts[status] += 1
        if status == "ok":
            self._ok.add(workload_id)
        line: dict[str, object] = {"kind": "measurement", "campaign_id": self.campaign_id, "workload_id": workload_id}
        line |= self._known[workload_id].to_json() | {"part": self._parts[workload_id], "status": status}
        line["measured_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        if workload_id in self._errors:
            line["error"] = self._errors[workload_id]
        self._journal.append(line | values)
        if status != "ok":
            self._reasons[f"{status}: {str(values.get('error', ''))[:120]}"] += 1

    def _keep_trace(self, workload_id: str, kernels: Message) -> None:
        if workload_id not in self._traced and kernels["name"]:
            self._traced.add(workload_id)
            self.counts["traced"] += 1
            self._journal.append_trace(
                {"workload_id": workload_id, "campaign_id": self.campaign_id, "kernels": kernels}
            )

    def _bury(self, pool: Pool, worker: WorkerProcess, status: str, *, restart: bool) -> None:
        """A worker has ended: blame the workload it was at, give the others back, start another worker."""
        group = worker.group
        if group is not None:
            blamed = worker.current
            if blamed is not None and blamed not in worker.finished:
                worker.finished.add(blamed)
                if group.role != "trace" and time.time() < self._stop_at:
                    status = self._errors.pop(blamed, status)
                    status = status if status == "timeout" else "crash"
                    self._keep(blamed, status, {"error": f"exit code {worker.process.returncode}"})
            left = group.without(worker.finished)
            if group.role == "measure":
                self._schedule.put_back(left)
            elif left.workloads:
                self._traces.append(left)
            worker.group = None
        worker.ready = False
        if restart:
            log.warning("worker %d ended with code %s: restarted", worker.index, worker.process.returncode)
            pool.restart(worker)

    def report_reasons(self) -> None:
        """Say why workloads have no measurement, most frequent reasons first."""
        for reason, count in self._reasons.most_common(12):
            log.info("%5d × %s", count, reason)

    def report(self) -> None:
        """Say in one line how far the campaign is."""
        elapsed_s = time.time() - self._began
        rate = self.counts["ok"] / elapsed_s * 60
        used = {name: round(seconds) for name, seconds in self._schedule.used_s.items()}
        log.info("%.0f s: %s; %.0f a minute; %d traces wait; worker seconds %s", elapsed_s, dict(self.counts), rate,
                 len(self._traces), used)  # fmt: skip

    def _keep_log(self, path: Path) -> None:
        with suppress(OSError):
            (self._out / "workers.log").write_bytes(path.read_bytes()[-1_000_000:])

    def _write_summary(self, facts: dict[str, object], rows: dict[str, int], restarts: int) -> None:
        elapsed_s = time.time() - self._began
        summary = {"campaign_id": self.campaign_id, "elapsed_s": elapsed_s, "counts": dict(self.counts), "rows": rows}
        summary |= {"restarts": restarts, "used_s": dict(self._schedule.used_s), "left": len(self._schedule)}
        summary |= {"untraced": sum(len(group.workloads) for group in self._traces), "facts": facts}
        (self._out / "campaign.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def choose_again(rows: Iterable[dict[str, Any]], count: int, done: set[str]) -> list[Group]:
    """``count`` workloads to measure once more, those with energy first, without those that are ``done``."""
    good = {row["workload_id"]: row for row in rows if row["status"] == "ok"}
    order = sorted(good, key=lambda each: (good[each].get("energy_j") is None, fraction(AGAIN, each)))
    specs: dict[str, list[Workload]] = {}
    for workload_id in order[:count]:
        if workload_id not in done:
            specs.setdefault(good[workload_id]["spec"], []).append(_workload(good[workload_id]))
    return [Group(AGAIN, spec, tuple(workloads), len(workloads)) for spec, workloads in specs.items()]


def _workload(row: dict[str, Any]) -> Workload:
    shape = tuple(int(size) for size in row["input_shape"].split("x"))
    fields = (row["dtype"], row["mode"], row["optimizer"] or "", row["family"] or "")
    return Workload(row["spec"], row["batch_size"], shape, *fields)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of a campaign."""
    began = time.time()
    parser = argparse.ArgumentParser(prog="foretell.profiling.campaign", description=__doc__.partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0, help="everything is written when these are over")
    parser.add_argument(
        "--skip", type=Path, action="append", default=[], help="a folder or Parquet file of what is done"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", type=int, default=0, help="stop after so many measurements")
    parser.add_argument("--workers", type=int, nargs=2, metavar=("MEASURE", "TRACE"), help="instead of the plan's")
    parser.add_argument("--again", type=int, default=0, help="measure so many of the skipped workloads once more")
    parser.add_argument("--commit", default="", help="the commit of the code, written into every record")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        plan = read_plan(options.plan)
        if options.workers is not None:
            plan = replace(plan, workers=Workers(*options.workers))
        campaign = Campaign(plan, options.out, options.device, options.seconds, began)
        rows = campaign.run(options.skip, options.commit, options.limit, options.again)
    except ForetellError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    campaign.report_reasons()
    campaign.report()
    log.info("written: %s", rows)
    counts = campaign.counts
    return 3 if counts and not (counts["ok"] or counts["traced"]) else 0


if __name__ == "__main__":
    sys.exit(main())
