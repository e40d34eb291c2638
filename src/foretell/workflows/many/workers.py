"""Workflows: the workers of a plan on this machine: processes that are replaced when they die."""

import base64
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from foretell.errors import InputError, ModelError
from foretell.processes.child import Message
from foretell.processes.device_lock import MAX_WORKERS
from foretell.processes.parent import describe_exit, last_line
from foretell.processes.pool import LOG, Pool, WorkerProcess
from foretell.workflows.many.task import WORKER

_MAX_FAILED_STARTS = 3
_LOG_TAIL_BYTES = 4000


@dataclass(frozen=True)
class Crash:
    """A worker ended in the middle of its task."""

    why: str


Outcome = bytes | Crash


class Workers(Protocol):
    """Who predicts the tasks of a plan."""

    def start(self) -> None:
        """Make them ready."""

    def cores(self) -> int:
        """How many of them there are now."""

    def slots(self) -> int:
        """How many tasks they take at a time."""

    def submit(self, number: int, message: Message) -> None:
        """Begin a task; ``number`` is new for each."""

    def cancel(self, number: int) -> None:
        """Give up a task; it has no outcome then."""

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Outcome]]:
        """The outcomes that arrive within a time."""

    def stop(self) -> None:
        """End all of them."""


class LocalWorkers:
    """Processes on this machine, one core each."""

    def __init__(self, count: int, command: Sequence[str] = WORKER) -> None:
        if not 1 <= count <= MAX_WORKERS:
            raise InputError(f"Got {count} workers; give 1 to {MAX_WORKERS}. For more, use --ray local.")
        self._count = count
        self._command = command
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._pool: Pool | None = None
        self._waiting: dict[int, Message] = {}
        self._failed_starts = 0

    def start(self) -> None:
        """Start the processes; they import foretell meanwhile."""
        self._folder = tempfile.TemporaryDirectory(prefix="foretell-many-")
        self._pool = Pool(Path(self._folder.name), {}, ["predict"] * self._count, self._command)
        self._pool.start()

    def cores(self) -> int:
        """All of them: one that dies is replaced."""
        return self._count

    def slots(self) -> int:
        """One task for each."""
        return self._count

    def submit(self, number: int, message: Message) -> None:
        """Give a task to an idle process, or to the next one that is."""
        self._waiting[number] = message
        self._assign()

    def _assign(self) -> None:
        assert self._pool is not None
        for worker in self._pool.workers.values():
            if self._waiting and worker.idle:
                number = next(iter(self._waiting))
                self._pool.assign(worker, number, self._waiting.pop(number))

    def cancel(self, number: int) -> None:
        """Kill the process that has the task."""
        assert self._pool is not None
        self._waiting.pop(number, None)
        for worker in self._pool.workers.values():
            if worker.group == number:
                worker.group = None
                worker.ready = False  # no other task may be given to it
                with suppress(OSError):
                    worker.process.kill()

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Outcome]]:
        """Outcomes, as processes send them or die."""
        assert self._pool is not None
        for worker, message in self._pool.listen(timeout_s):
            if message is None:
                yield from self._ended(self._pool, worker)
            elif "ready" in message:
                worker.ready, self._failed_starts = True, 0
            elif "refused" in message:
                raise ModelError(str(message["refused"]))
            elif worker.group is not None:
                number, worker.group = worker.group, None
                yield number, base64.b64decode(message["answer"])
        self._assign()

    def _ended(self, pool: Pool, worker: WorkerProcess) -> Iterator[tuple[int, Outcome]]:
        number, worker.group = worker.group, None
        if number is None and not worker.ready and worker.process.returncode != -9:
            self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise ModelError(f"The workers do not start: {self._last_words() or 'they end at once'}")
        pool.restart(worker)
        if number is not None:
            yield number, Crash(f"its process {describe_exit(worker.process.returncode)}")

    def _last_words(self) -> str:
        assert self._folder is not None
        with suppress(OSError):
            return last_line((Path(self._folder.name) / LOG).read_bytes()[-_LOG_TAIL_BYTES:])
        return ""

    def stop(self) -> None:
        """Kill the processes and remove their folder."""
        if self._pool is not None:
            self._pool.stop()
        if self._folder is not None:
            self._folder.cleanup()


def cores_here() -> int:
    """The cores that this process may use."""
    with suppress(AttributeError):
        return min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    return min(os.cpu_count() or 1, MAX_WORKERS)
