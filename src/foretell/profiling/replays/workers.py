"""Profiling: processes that keep prepared workloads on the device and execute one command at a time.

    prepare    build, warm up and capture these workloads     → one ``prepared`` for each workload
    time       time replays of all prepared workloads         → one ``timed`` for each workload and slice
    replay     replay one workload from a given moment on,
               for some time or a number of times             → ``replayed`` with the boundaries of its replays
    drop       drop all prepared workloads

Every command ends with ``done``. The campaign must send ``time`` to only one process at a time.
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
OnMessage = Callable[[int, Message], None]

_SLOW_START_S = 90.0
_EXIT_TIMEOUT_S = 8.0
_BUSY = Group("", "", (), 0)


@dataclass(frozen=True)
class Death:
    """How a process ended, and its current workload."""

    status: str
    error: str
    workload_id: str | None


class ReplayWorkers:
    """A pool of processes as a context manager; all of them have ended when the context is left."""

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
        # close their input and let them exit: an MPS client that is killed at work can crash the other clients
        for worker in self._pool.workers.values():
            if worker.process.stdin is not None:
                with suppress(OSError):
                    worker.process.stdin.close()
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while self._any_running() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._pool.stop()

    def _any_running(self) -> bool:
        return any(worker.process.poll() is None for worker in self._pool.workers.values())

    @property
    def alive(self) -> list[int]:
        """The indices of the processes that can take commands."""
        return [index for index in range(len(self._roles)) if index not in self._dead]

    @property
    def idle(self) -> list[int]:
        """The indices of the processes that have finished their command."""
        return [index for index in self.alive if self._pool.workers[index].group is None]

    def send(self, index: int, message: Message) -> None:
        """Send a command to an idle process."""
        self._pool.assign(self._pool.workers[index], _BUSY, message)

    def restart(self, index: int) -> None:
        """Replace a dead process by a new one."""
        self._dead.discard(index)
        self._pool.restart(self._pool.workers[index])

    def wait(
        self,
        indices: Iterable[int],
        deadline: float,
        silence_s: float,
        on_message: OnMessage,
        *,
        until_one: bool = False,
    ) -> dict[int, Death]:
        """Wait until ``indices`` have finished; kill processes that hang or are late; return those that have died.

        With ``until_one``, wait only until one of them has finished or died.
        """
        waiting = {index for index in indices if index not in self._dead}
        asked = len(waiting)
        deaths: dict[int, Death] = {}
        reasons: dict[int, str] = {}
        while waiting and not (until_one and len(waiting) < asked):
            for worker, message in self._pool.listen(0.02):
                if message is None:
                    waiting.discard(worker.index)
                    deaths[worker.index] = self._handle_end(worker, reasons.get(worker.index))
                elif self._handle_message(worker, message, on_message):
                    waiting.discard(worker.index)
            for index in waiting:
                worker = self._pool.workers[index]
                limit = silence_s if worker.ready else max(silence_s, _SLOW_START_S)
                late, silent = time.monotonic() > deadline, time.monotonic() - worker.last_message_at > limit
                if (late or silent) and index not in reasons:
                    reasons[index] = "it was not done in time" if late else f"silent for {limit:.0f} s"
                    worker.process.kill()
        return deaths

    def _handle_message(self, worker: WorkerProcess, message: Message, on_message: OnMessage) -> bool:
        worker.ready = True
        event = message["event"]
        if event == "begin":
            worker.current = message["id"]
        elif event == "done":
            worker.group = worker.current = None
            return True
        elif event != "ready":
            on_message(worker.index, message)
        return False

    def _handle_end(self, worker: WorkerProcess, reason: str | None) -> Death:
        self._dead.add(worker.index)
        status = "crash" if reason is None else "timeout"
        error = reason or f"exit code {worker.process.returncode}"
        worker.ready = False
        return Death(status, error, worker.current)

    def save_log(self, out: Path) -> None:
        """Append the processes' error output to that of earlier pools of the campaign."""
        self._pool.save_log(out, "ab")
