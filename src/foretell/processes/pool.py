"""Processes: a pool of worker processes that take one task after the other and are replaced when they die."""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell.processes.child import Message
from foretell.processes.device_lock import FREE, HOLDING, open_state
from foretell.processes.parent import child_environment, close

_SLOW_START_S = 120.0
_WAITING_FACTOR = 4
_LOG_BYTES = 1_000_000
LOG = "workers.log"


@dataclass
class WorkerProcess:
    """One child process and its current task."""

    index: int
    role: str
    process: subprocess.Popen[bytes]
    ready: bool = False
    group: Any = None
    current: str | None = None
    finished: set[str] = field(default_factory=set)
    last_message_at: float = field(default_factory=time.monotonic)
    buffer: bytes = b""

    @property
    def idle(self) -> bool:
        """Whether it is waiting for a task."""
        return self.ready and self.group is None


class Pool:
    """Workers by index; a dead one is replaced by :meth:`restart`."""

    def __init__(
        self, folder: Path, settings: Message, roles: Sequence[str], command: Sequence[str], first: int = 0
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._roles = roles
        self._command = command
        self._first = first  # the first index: pools that share a folder must not share worker numbers
        self._selector = selectors.DefaultSelector()
        self._state: Any = None
        self._log: Any = None
        self.workers: dict[int, WorkerProcess] = {}
        self.restarts = 0

    def start(self) -> None:
        """Start all workers."""
        self._state = open_state(self._folder)
        self._log = (self._folder / LOG).open("ab")
        for index, role in enumerate(self._roles, self._first):
            self._spawn(index, role)

    def _spawn(self, index: int, role: str) -> None:
        settings = json.dumps({**self._settings, "worker": index, "role": role, "folder": str(self._folder)})
        process = subprocess.Popen(
            [*self._command, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=child_environment(),
            process_group=0,  # Ctrl-C must reach only the campaign: a worker that it killed would look like a crash
        )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        worker = WorkerProcess(index, role, process)
        self.workers[index] = worker
        self._selector.register(process.stdout or 0, selectors.EVENT_READ, worker)

    def assign(self, worker: WorkerProcess, group: Any, message: Message) -> None:
        """Send a task to an idle worker."""
        worker.group, worker.current, worker.finished = group, None, set()
        worker.last_message_at = time.monotonic()
        if worker.process.stdin is not None:
            try:
                worker.process.stdin.write(json.dumps(message).encode() + b"\n")
                worker.process.stdin.flush()
            except BrokenPipeError:  # it has just died; `listen` reports that when its output ends
                return

    def listen(self, timeout_s: float) -> Iterator[tuple[WorkerProcess, Message | None]]:
        """Yield messages as they arrive; ``None`` means that the worker has ended."""
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            try:
                data = os.read(key.fd, 1 << 20)
            except BlockingIOError:
                continue
            if not data:
                self._selector.unregister(key.fileobj)
                close(worker.process)
                yield worker, None
                continue
            # a read may end in the middle of a line: keep the rest for the next one
            *lines, worker.buffer = (worker.buffer + data).split(b"\n")
            worker.last_message_at = time.monotonic()
            for line in lines:
                yield worker, json.loads(line)

    def hung(self, timeout_s: float) -> list[WorkerProcess]:
        """Workers that have been silent for too long; workers that wait for the device may be silent longer."""
        now, silent = time.monotonic(), []
        for worker in self.workers.values():
            if worker.process.poll() is not None or (worker.ready and worker.group is None):
                continue
            limit = timeout_s if worker.ready else max(timeout_s, _SLOW_START_S)
            waits = self._state[worker.index] not in (FREE, HOLDING)
            if now - worker.last_message_at > limit * (_WAITING_FACTOR if waits else 1):
                silent.append(worker)
        return silent

    def restart(self, worker: WorkerProcess) -> None:
        """Replace a dead process by a new one."""
        self.restarts += 1
        self._state[worker.index] = FREE
        self._spawn(worker.index, worker.role)

    def save_log(self, out: Path, mode: str = "wb") -> None:
        """Copy the last part of the workers' error output into a campaign's folder."""
        with suppress(OSError):
            tail = (self._folder / LOG).read_bytes()[-_LOG_BYTES:]
            with (out / LOG).open(mode) as file:
                file.write(tail)

    def stop(self) -> None:
        """Kill all workers."""
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self.workers.values():
            close(worker.process)
        self._selector.close()
        if self._log is not None:
            self._log.close()
        if self._state is not None:
            self._state.close()
