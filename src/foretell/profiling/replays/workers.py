"""Profiling: processes that keep prepared workloads on the device and obey one command at a time.

    prepare    build, warm up and capture these workloads     → one ``prepared`` a workload
    time       time replays of all that is prepared           → one ``timed`` a workload and slice
    replay     replay one workload from a given moment on     → ``replayed`` with the boundaries of its replays
    drop       forget all that is prepared

Every command ends with ``done``. Who times is the campaign's decision: it gives that command to one process alone.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from foretell.processes.child import Message
from foretell.processes.pool import Pool, WorkerProcess
from foretell.profiling.campaign.schedule import Group

WORKER = (sys.executable, "-m", "foretell.profiling.replays.replay_worker")
Hear = Callable[[int, Message], None]

_SLOW_START_S = 90.0
_FAREWELL_S = 8.0
_BUSY = Group("", "", (), 0)


@dataclass(frozen=True)
class Death:
    """How a process ended, and the workload it was at."""

    status: str
    error: str
    workload_id: str | None


class ReplayWorkers:
    """A context: all its processes have ended when it is left."""

    def __init__(self, folder: Path, settings: Message, roles: Sequence[str], command: Sequence[str] = WORKER) -> None:
        self._pool = Pool(folder, settings, roles, command)
        self._roles = roles
        self._dead: set[int] = set()

    def __enter__(self) -> "ReplayWorkers":
        self._pool.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a client of MPS that is killed in the middle of its work can take the others with it: let them go
        for worker in self._pool.workers.values():
            if worker.process.stdin is not None:
                with suppress(OSError):
                    worker.process.stdin.close()
        until = time.monotonic() + _FAREWELL_S
        while self._living() and time.monotonic() < until:
            time.sleep(0.02)
        self._pool.stop()

    def _living(self) -> bool:
        return any(worker.process.poll() is None for worker in self._pool.workers.values())

    @property
    def alive(self) -> list[int]:
        """The processes that can be given commands."""
        return [index for index in range(len(self._roles)) if index not in self._dead]

    def send(self, index: int, message: Message) -> None:
        """Give a command to a process that has none."""
        self._pool.give(self._pool.workers[index], _BUSY, message)

    def restart(self, index: int) -> None:
        """Put a fresh process in the place of a dead one."""
        self._dead.discard(index)
        self._pool.restart(self._pool.workers[index])

    def wait(self, indices: Iterable[int], until: float, silence_s: float, hear: Hear) -> dict[int, Death]:
        """Listen until the commands of ``indices`` are done; those that die, hang or are late are buried."""
        waiting = {index for index in indices if index not in self._dead}
        deaths: dict[int, Death] = {}
        reasons: dict[int, str] = {}
        while waiting:
            for worker, message in self._pool.listen(0.02):
                if message is None:
                    waiting.discard(worker.index)
                    deaths[worker.index] = self._bury(worker, reasons.get(worker.index))
                elif self._hear(worker, message, hear):
                    waiting.discard(worker.index)
            for index in waiting:
                worker = self._pool.workers[index]
                limit = silence_s if worker.ready else max(silence_s, _SLOW_START_S)
                late, silent = time.time() > until, time.monotonic() - worker.heard_at > limit
                if (late or silent) and index not in reasons:
                    reasons[index] = "it was not done in time" if late else f"silent for {limit:.0f} s"
                    worker.process.kill()
        return deaths

    def _hear(self, worker: WorkerProcess, message: Message, hear: Hear) -> bool:
        worker.ready = True
        event = message["event"]
        if event == "begin":
            worker.current = message["id"]
        elif event == "done":
            worker.group = worker.current = None
            return True
        elif event != "ready":
            hear(worker.index, message)
        return False

    def _bury(self, worker: WorkerProcess, reason: str | None) -> Death:
        self._dead.add(worker.index)
        status = "crash" if reason is None else "timeout"
        error = reason or f"exit code {worker.process.returncode}"
        worker.ready = False
        return Death(status, error, worker.current)

    def keep_log(self, out: Path) -> None:
        """Add what the processes said to what earlier crews of a campaign did."""
        self._pool.keep_log(out, "ab")
