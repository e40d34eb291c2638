"""Profiling: the same captured steps on slices of the device: MPS, with a process per percentage, and green contexts.

All processes prepare the same few workloads at the same time; then one process after the other times them. So when a
campaign ends early, every workload has been measured on all slices or on none.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.processes.child import Message
from foretell.profiling.campaign.done import done_keys
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.rows import CampaignRows
from foretell.profiling.campaign.selection import Chosen, choose
from foretell.profiling.replays.mps import MpsDaemon
from foretell.profiling.replays.workers import WORKER, Death, ReplayWorkers

log = logging.getLogger("foretell.profiling")

TABLE = "slices"
_RESERVE = 0.12
_MAX_RESERVE_S = 16.0
_GREEN_SHARE = 0.22
_SILENCE_S = 40.0
_FIRST_ESTIMATE_S = 3.0
_MAX_RESTARTS = 8
_MEMORY_GIB = 9.0


def run(job: Job, command: Sequence[str] = WORKER) -> dict[str, int]:
    """Run a ``slices`` campaign; return the number of rows by status."""
    return SliceCampaign(job, command).run()


class SliceCampaign:
    """One run of a plan on one device."""

    def __init__(self, job: Job, command: Sequence[str]) -> None:
        self._job = job
        self._plan = job.plan
        self._out = job.out
        self._device = job.device
        self._stop_at = job.before_end(job.reserve_s(_RESERVE, _MAX_RESERVE_S))
        self._command = command
        self._rows = CampaignRows(job.out, TABLE)
        self._known: dict[str, Chosen] = {}
        self._done: set[tuple[object, ...]] = set()
        self._total = 0

    def run(self) -> dict[str, int]:
        """Measure with both methods, one after the other."""
        self._out.mkdir(parents=True, exist_ok=True)
        for method, share in (("mps", "percent"), ("green-context", "sm_count")):
            keys = done_keys(self._job.folders, TABLE, ("workload_id", "method", share))
            self._done |= {key for key in keys if key[1] == method}
        chosen = choose(self._plan, self._job.limit)
        self._known = {one.workload.id: one for one in chosen}
        self._rows.open(self._device, self._job.commit, len(self._plan.slices.percents))
        started = time.monotonic()
        try:
            for method in self._plan.slices.methods:
                green = method == "green-context"
                later = "green-context" in self._plan.slices.methods and not green
                share_s = _GREEN_SHARE * (self._stop_at - started) if later else 0.0
                try:
                    self._green(chosen) if green else self._mps(chosen, self._stop_at - share_s)
                except MeasurementError as error:
                    log.warning("%s: %s", method, error)
                log.info("%s: %.0f s, rows %s", method, time.monotonic() - started, dict(self._rows.counts))
        finally:
            self._rows.close()
        if not self._rows.counts and not self._done:
            raise MeasurementError(f"No slice could be measured. See {self._out / 'workers.log'}.")
        return dict(self._rows.counts)

    def _mps(self, chosen: Sequence[Chosen], stop_at: float) -> None:
        percents = [float(percent) for percent in self._plan.slices.percents]
        queues = [
            [one for one in chosen if (one.workload.id, "mps", percent) not in self._done] for percent in percents
        ]
        if not any(queues):
            return
        with _folder("foretell-mps-") as folder, self._daemon(Path(folder)) as client:
            environments = {f"{percent:g}": client(percent) for percent in percents}
            with self._replay_workers(Path(folder), list(environments), environments=environments) as replay_workers:
                writer = _SliceWriter(self, "mps", lambda index, _: percents[index])
                _Rounds(replay_workers, writer, queues, stop_at).run(chosen, self._plan.slices.batch)

    def _green(self, chosen: Sequence[Chosen]) -> None:
        counts = [int(count) for count in self._plan.slices.sm_counts]
        few = chosen[: self._plan.slices.green_workloads]
        keys = {one.workload.id: {(one.workload.id, "green-context", count) for count in counts} for one in few}
        left = [one for one in few if not keys[one.workload.id] <= self._done]
        if not left:
            return
        if self._command == WORKER and self._device == "cpu":
            raise MeasurementError("Green contexts need a GPU.")
        processes = max(1, min(self._plan.slices.green_processes, len(left)))
        queues = [left[index::processes] for index in range(processes)]
        with (
            _folder("foretell-green-") as folder,
            self._replay_workers(Path(folder), ["green"] * processes, sm_counts=counts) as replay_workers,
        ):
            writer = _SliceWriter(self, "green-context", lambda _, sm_count: self._percent(sm_count))
            _Rounds(replay_workers, writer, queues, self._stop_at).run(left, self._plan.slices.batch)

    def _percent(self, sm_count: int) -> float:
        return round(100.0 * sm_count / self._total, 2) if self._total else 0.0

    @contextmanager
    def _daemon(self, folder: Path) -> Iterator[Callable[[float], dict[str, str]]]:
        if self._device == "cpu":
            yield lambda _: {}
            return
        with MpsDaemon(folder / "mps") as daemon:
            yield daemon.client

    @contextmanager
    def _replay_workers(self, folder: Path, roles: Sequence[str], **more: object) -> Iterator[ReplayWorkers]:
        settings: Message = {"device": self._device, "measuring": asdict(self._plan.measuring)}
        settings |= {"memory_gib": _MEMORY_GIB, "energy": self._plan.slices.energy, **more}
        replay_workers = ReplayWorkers(folder, settings, roles, self._command)
        try:
            with replay_workers:
                yield replay_workers
        finally:
            replay_workers.save_log(self._out)

    def set_total(self, total: int) -> None:
        """Set the number of multiprocessors of the whole device."""
        self._total = total

    def write(self, workload_id: str, method: str, percent: float, status: str, values: Message) -> None:
        """Write one row, unless it has been written."""
        key = (workload_id, method, values.get("sm_count") if method == "green-context" else percent)
        if key in self._done:
            return
        self._done.add(key)
        row = {"method": method, "percent": percent, "sm_count": None, **values}
        self._rows.write(self._known[workload_id], status, row)

    @property
    def on_gpu(self) -> bool:
        """Whether processes run on a GPU, where they see how many multiprocessors they have."""
        return self._device != "cpu"

    @property
    def sm_counts(self) -> tuple[int, ...]:
        """The multiprocessors of the green contexts."""
        return tuple(int(count) for count in self._plan.slices.sm_counts)


def _folder(prefix: str) -> "tempfile.TemporaryDirectory[str]":
    # MPS may still write files while its folder is removed; that must not end the campaign
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


class _SliceWriter:
    """Writes the rows that the processes of one method report."""

    def __init__(self, campaign: SliceCampaign, method: str, percent: Callable[[int, int], float]) -> None:
        self._campaign = campaign
        self.method = method
        self._percent = percent
        self.sm_count_by_process: dict[int, int] = {}

    def handle_message(self, index: int, message: Message) -> None:
        event = message["event"]
        if event == "limited":
            self._campaign.set_total(int(message["total"]))
            log.info("%d multiprocessors are %.2f times slower", message["sm_count"], message["slowdown"])
        elif event == "unlimited":
            raise MeasurementError(str(message["error"]))
        elif event == "prepared":
            if message["status"] == "ok":
                self.sm_count_by_process[index] = int(message["values"]["sm_count"])
            else:
                self.failed(index, message["id"], message["status"], message["values"]["error"])
        elif event == "timed":
            values = message["values"]
            percent = self._percent(index, int(values["sm_count"]))
            self._campaign.write(message["id"], self.method, percent, message["status"], values)

    def failed(self, index: int, workload_id: str, status: str, error: str) -> None:
        """Write that a workload failed on all slices of a process."""
        counts = self._campaign.sm_counts if self.method == "green-context" else (None,)
        for count in counts:
            percent = self._percent(index, count or 0)
            values = {"error": error, "sm_count": count}
            self._campaign.write(workload_id, self.method, percent, status, values)

    def check_limits(self) -> None:
        """Raise an error if all shares see the same number of multiprocessors."""
        if (
            self.method == "mps"
            and self._campaign.on_gpu
            and len(self.sm_count_by_process) > 1
            and len(set(self.sm_count_by_process.values())) == 1
        ):
            raise MeasurementError(
                f"All shares see {min(self.sm_count_by_process.values())} multiprocessors: MPS limits nothing."
            )


class _Rounds:
    """Rounds: prepare a few workloads in all processes, time them in one process after the other, drop them."""

    def __init__(
        self, replay_workers: ReplayWorkers, writer: _SliceWriter, queues: Sequence[Sequence[Chosen]], stop_at: float
    ) -> None:
        self._replay_workers = replay_workers
        self._writer = writer
        self._queues = queues
        self._stop_at = stop_at
        self._restarts = 0

    def run(self, order: Sequence[Chosen], batch: int) -> None:
        """Run all rounds that fit into the time, with ``batch`` of the workloads in ``order`` each."""
        by_id = [{chosen.workload.id: chosen for chosen in queue} for queue in self._queues]
        left = [chosen.workload.id for chosen in order if any(chosen.workload.id in queue for queue in by_id)]
        workload_s = _FIRST_ESTIMATE_S
        first = True
        while left and time.monotonic() < self._stop_at:
            # after the first round the time per workload is known: prepare only as many as can still be timed
            size = batch if first else min(batch, int((self._stop_at - time.monotonic()) / workload_s))
            if size < 1:
                break
            names, left = left[:size], left[size:]
            started = time.monotonic()
            self._round([[queue[name] for name in names if name in queue] for queue in by_id])
            workload_s, first = (time.monotonic() - started) / len(names), False
            log.info("%s: %d workloads in %.1f s", self._writer.method, len(names), time.monotonic() - started)

    def _round(self, work: Sequence[Sequence[Chosen]]) -> None:
        self._prepare(work)
        self._writer.check_limits()
        for index in self._replay_workers.alive:
            if work[index]:
                self._replay_workers.send(index, {"do": "time", "stop_at": self._stop_at})
                self._handle_end(self._wait([index]), work)
        for index in self._replay_workers.alive:
            self._replay_workers.send(index, {"do": "drop"})
        self._handle_end(self._wait(self._replay_workers.alive), work)

    def _prepare(self, work: Sequence[Sequence[Chosen]]) -> None:
        waiting = [index for index in self._replay_workers.alive if work[index]]
        blamed: set[tuple[int, str]] = set()
        while waiting:
            for index in waiting:
                requested = [chosen.workload for chosen in work[index] if (index, chosen.workload.id) not in blamed]
                message = {"do": "prepare", "workloads": [workload.to_json() for workload in requested]}
                self._replay_workers.send(index, message | {"stop_at": self._stop_at})
            deaths = self._wait(waiting)
            blamed |= {(index, death.workload_id) for index, death in deaths.items() if death.workload_id is not None}
            # restarted processes prepare again, without the workloads at which they died
            waiting = [index for index in self._handle_end(deaths, work) if time.monotonic() < self._stop_at]

    def _wait(self, indices: Sequence[int]) -> dict[int, Death]:
        return self._replay_workers.wait(
            indices, self._stop_at + _MAX_RESERVE_S / 4, _SILENCE_S, self._writer.handle_message
        )

    def _handle_end(self, deaths: dict[int, Death], work: Sequence[Sequence[Chosen]]) -> list[int]:
        """Write the workloads at which processes died as failed, and restart the processes; return the restarted."""
        fresh = []
        for index, death in deaths.items():
            log.warning("process %d: %s, %s, at %s", index, death.status, death.error, death.workload_id)
            if death.workload_id is not None and time.monotonic() < self._stop_at:
                self._writer.failed(index, death.workload_id, death.status, death.error)
            if self._restarts < _MAX_RESTARTS and time.monotonic() < self._stop_at:
                self._restarts += 1
                self._replay_workers.restart(index)
                fresh.append(index)
        if not self._replay_workers.alive:
            raise MeasurementError("No process is left.")
        return [index for index in fresh if work[index]]
