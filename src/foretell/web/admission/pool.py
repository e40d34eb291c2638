"""Web: a pool of worker processes. A worker that takes too long or too much memory is killed and replaced.

Workers import their libraries before the first question, because that takes seconds. Each answers one question at a
time, so a model that crashes its reader takes down one request only.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretell.processes.parent import child_environment, kill_group, resident_bytes
from foretell.units import MIB, bytes_from_mib, mib
from foretell.web.refusals import BrokenError, BusyError, RefusedError, TooSlowError
from foretell.web.settings import Settings

WORKER = (
    sys.executable,
    "-P",
    "-m",
    "foretell.web.admission.worker",
)  # -P: nothing is imported from the working folder
MOST_ANSWERS = 500  # then a new process replaces the worker: libraries that read models may leak memory
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2  # how often memory and time of a busy worker are checked
_RETRY_PAUSE_S = 1.0  # a worker that cannot start must not be restarted in a tight loop
_MAX_ANSWER_BYTES = 64 * MIB


class Worker:
    """One worker process, which answers one question at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers = 0

    @property
    def needs_replacement(self) -> bool:
        """Whether the process has ended or has reached its number of answers."""
        return self.process.returncode is not None or self.answers >= MOST_ANSWERS

    async def ask(self, message: dict[str, Any], settings: Settings) -> dict[str, Any]:
        """The worker's answer. If this raises, the worker must not be used again."""
        assert self.process.stdin is not None
        with suppress(ConnectionError):  # the process has just died: the empty answer below says so
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()
        line = await self._read_answer(settings)
        if not line.endswith(b"\n"):
            raise RefusedError(
                "The process that read the model ended: the file is damaged, or it needs more memory than allowed."
            )
        self.answers += 1
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def _read_answer(self, settings: Settings) -> bytes:
        assert self.process.stdout is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.timeout_s
        reading = asyncio.ensure_future(self.process.stdout.readline())
        try:
            while True:
                await asyncio.wait([reading], timeout=_POLL_S)
                if reading.done():
                    return reading.result()
                if loop.time() > deadline:
                    raise TooSlowError(
                        f"No answer within {settings.timeout_s:g} s. Try a smaller model or fewer devices."
                    )
                if resident_bytes(self.process.pid) > bytes_from_mib(settings.memory_mib):
                    raise RefusedError(
                        f"Reading the model needs more than {settings.memory_mib:g} MiB, which is not allowed here."
                    )
        except ValueError as error:  # readline raises it for a line beyond the limit
            raise BrokenError("The answer is too long to be sent.") from error
        finally:
            reading.cancel()

    async def end(self) -> None:
        """Kill the process and its children."""
        kill_group(self.process.pid)
        await self.process.wait()


class Pool:
    """A fixed number of workers. Questions wait until one is idle."""

    def __init__(self, settings: Settings, folder: Path, command: Sequence[str] = WORKER) -> None:
        self._settings = settings
        self._folder = folder
        self._command = command
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._alive: set[Worker] = set()
        self._start_tasks: set[asyncio.Task[None]] = set()
        self.busy = 0
        self.restarts = 0

    @property
    def pids(self) -> list[int]:
        """The process ids of all workers."""
        return [worker.process.pid for worker in self._alive]

    def start(self) -> None:
        """Start all workers in the background; questions may be asked at once."""
        for _ in range(self._settings.workers):
            self._start_soon()

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer of the next free worker."""
        worker = await self._next_idle()
        self.busy += 1
        reply: dict[str, Any] = {"tainted": True}  # also if ask() raises or the client disconnects
        try:
            reply = await worker.ask(message, self._settings)
        finally:
            self.busy -= 1
            if reply.pop("tainted", False) or worker.needs_replacement:
                self._replace(worker)
            else:
                self._idle.put_nowait(worker)
        return reply

    async def _next_idle(self) -> Worker:
        while True:
            try:
                worker = await asyncio.wait_for(self._idle.get(), self._settings.timeout_s)
            except TimeoutError as error:
                raise BusyError("All workers are busy. Try again in a few seconds.") from error
            if not worker.needs_replacement:
                return worker
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        self.restarts += 1
        self._alive.discard(worker)
        self._start_soon(worker)

    def _start_soon(self, replaced: Worker | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._start_one(replaced))
        self._start_tasks.add(task)
        task.add_done_callback(self._start_tasks.discard)

    async def _start_one(self, replaced: Worker | None) -> None:
        if replaced is not None:
            await replaced.end()  # first, so that there are never more processes than allowed
        while True:
            worker = await self._spawn()
            self._alive.add(worker)
            assert worker.process.stdout is not None
            with suppress(TimeoutError):
                if await asyncio.wait_for(worker.process.stdout.readline(), _START_TIMEOUT_S):
                    self._idle.put_nowait(worker)
                    return
            self._alive.discard(worker)
            await worker.end()
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _spawn(self) -> Worker:
        environment = {
            "TMPDIR": str(self._folder),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",  # no request may make the server download anything
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime would send data to its vendor and write files for that
        }
        process = await asyncio.create_subprocess_exec(
            *self._command,
            f"{self._settings.memory_mib:g}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_MAX_ANSWER_BYTES,
            cwd=self._folder,  # an empty folder: a model name that looks like a path finds nothing
            env=child_environment(environment),
            start_new_session=True,
        )
        return Worker(process)

    async def stop(self) -> None:
        """Kill all workers now."""
        for task in list(self._start_tasks):
            task.cancel()
        await asyncio.gather(*self._start_tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive))
        self._alive.clear()


def resident_mib(pids: Sequence[int]) -> float:
    """The resident memory of some processes together."""
    return sum(mib(resident_bytes(pid)) for pid in pids)
