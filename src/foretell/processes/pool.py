"""Processes: a pool of workers that outlive their tasks: started, fed, listened to, watched, replaced when they die."""

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
_PATIENCE = 4
_LOG_BYTES = 1_000_000
LOG = "workers.log"


@dataclass
class WorkerProcess:
    """One child and what it is doing."""

    index: int
    role: str
    process: subprocess.Popen[bytes]
    ready: bool = False
    group: Any = None
    current: str | None = None
    finished: set[str] = field(default_factory=set)
    heard_at: float = field(default_factory=time.monotonic)
    buffer: bytes = b""

    @property
    def idle(self) -> bool:
        """Whether it waits for a group."""
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
        self._first = first  # pools that share a folder number their workers apart
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
            process_group=0,  # Ctrl-C is for the campaign alone: a worker that it ends would look like a crash
        )
        if process.stdout is not None:
            os.set_blocking(process.stdout.fileno(), False)
        worker = WorkerProcess(index, role, process)
        self.workers[index] = worker
        self._selector.register(process.stdout or 0, selectors.EVENT_READ, worker)

    def give(self, worker: WorkerProcess, group: Any, message: Message) -> None:
        """Hand a group to an idle worker."""
        worker.group, worker.current, worker.finished = group, None, set()
        worker.heard_at = time.monotonic()
        if worker.process.stdin is not None:
            try:
                worker.process.stdin.write(json.dumps(message).encode() + b"\n")
                worker.process.stdin.flush()
            except BrokenPipeError:  # it has just died; its end is noticed when its output ends
                return

    def listen(self, timeout_s: float) -> Iterator[tuple[WorkerProcess, Message | None]]:
        """Messages as they come; ``None`` says that the worker has ended."""
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
            *lines, worker.buffer = (worker.buffer + data).split(b"\n")
            worker.heard_at = time.monotonic()
            for line in lines:
                yield worker, json.loads(line)

    def hung(self, timeout_s: float) -> list[WorkerProcess]:
        """Workers that have been silent for too long, not counting those that wait for the device."""
        now, silent = time.monotonic(), []
        for worker in self.workers.values():
            if worker.process.poll() is not None or (worker.ready and worker.group is None):
                continue
            limit = timeout_s if worker.ready else max(timeout_s, _SLOW_START_S)
            waits = self._state[worker.index] not in (FREE, HOLDING)
            if now - worker.heard_at > limit * (_PATIENCE if waits else 1):
                silent.append(worker)
        return silent

    def restart(self, worker: WorkerProcess) -> None:
        """Put a fresh process in the place of a dead one."""
        self.restarts += 1
        self._state[worker.index] = FREE
        self._spawn(worker.index, worker.role)

    def keep_log(self, out: Path, mode: str = "wb") -> None:
        """Copy the end of what the workers said on their error stream into a campaign's folder."""
        with suppress(OSError):
            said = (self._folder / LOG).read_bytes()[-_LOG_BYTES:]
            with (out / LOG).open(mode) as file:
                file.write(said)

    def stop(self) -> None:
        """End all workers now."""
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
