"""Web: warm worker processes; one that takes too long or too much memory is killed and replaced."""

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
MOST_ANSWERS = 500  # then a fresh process takes over: libraries that read models may leak
_START_S = 120.0
_LOOK_S = 0.2
_PAUSE_S = 1.0
_LONGEST_LINE = 64 * MIB


class Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers = 0

    @property
    def worn(self) -> bool:
        """Whether it has ended, or has answered enough."""
        return self.process.returncode is not None or self.answers >= MOST_ANSWERS

    async def ask(self, message: dict[str, Any], settings: Settings) -> dict[str, Any]:
        """Its answer; raises where there is none, and is of no use then."""
        assert self.process.stdin is not None
        with suppress(ConnectionError):  # it has just died: that is told below
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()
        line = await self._listen(settings)
        if not line.endswith(b"\n"):
            raise RefusedError("The model made its reader end: it is damaged, or it needs more memory than allowed.")
        self.answers += 1
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def _listen(self, settings: Settings) -> bytes:
        assert self.process.stdout is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + settings.timeout_s
        reading = asyncio.ensure_future(self.process.stdout.readline())
        try:
            while True:
                await asyncio.wait([reading], timeout=_LOOK_S)
                if reading.done():
                    return reading.result()
                if loop.time() > until:
                    raise TooSlowError(f"No answer within {settings.timeout_s:g} s; a smaller question may get one.")
                if resident_bytes(self.process.pid) > bytes_from_mib(settings.memory_mib):
                    raise RefusedError(f"The model needs more than {settings.memory_mib:g} MiB to be read: refused.")
        except ValueError as error:
            raise BrokenError("The answer is too long to be passed on.") from error
        finally:
            reading.cancel()

    async def end(self) -> None:
        """Kill it and what it has started."""
        kill_group(self.process.pid)
        await self.process.wait()


class Pool:
    """Workers that wait for questions; all questions beyond them wait in a line of their own."""

    def __init__(self, settings: Settings, folder: Path, command: Sequence[str] = WORKER) -> None:
        self._settings = settings
        self._folder = folder
        self._command = command
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._alive: set[Worker] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self.busy = 0
        self.restarts = 0

    @property
    def pids(self) -> list[int]:
        """The processes, for whoever watches them."""
        return [worker.process.pid for worker in self._alive]

    def start(self) -> None:
        """Begin to start all workers; questions may come at once."""
        for _ in range(self._settings.workers):
            self._hire()

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer of the next free worker."""
        worker = await self._next()
        self.busy += 1
        reply: dict[str, Any] = {"tainted": True}
        try:
            reply = await worker.ask(message, self._settings)
        finally:
            self.busy -= 1
            if reply.pop("tainted", False) or worker.worn:
                self._replace(worker)
            else:
                self._idle.put_nowait(worker)
        return reply

    async def _next(self) -> Worker:
        while True:
            try:
                worker = await asyncio.wait_for(self._idle.get(), self._settings.timeout_s)
            except TimeoutError as error:
                raise BusyError("All workers are busy; come back in a moment.") from error
            if not worker.worn:
                return worker
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        self.restarts += 1
        self._alive.discard(worker)
        self._hire(worker)

    def _hire(self, instead_of: Worker | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._start_one(instead_of))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start_one(self, instead_of: Worker | None) -> None:
        if instead_of is not None:
            await instead_of.end()
        while True:
            worker = await self._spawn()
            self._alive.add(worker)
            assert worker.process.stdout is not None
            with suppress(TimeoutError):
                if await asyncio.wait_for(worker.process.stdout.readline(), _START_S):
                    self._idle.put_nowait(worker)
                    return
            self._alive.discard(worker)
            await worker.end()
            await asyncio.sleep(_PAUSE_S)

    async def _spawn(self) -> Worker:
        more = {
            "TMPDIR": str(self._folder),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",  # a spec must not make the server fetch anything
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime would tell its maker, and write files for it
        }
        process = await asyncio.create_subprocess_exec(
            *self._command,
            f"{self._settings.memory_mib:g}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LONGEST_LINE,
            cwd=self._folder,  # empty: a spec that looks like a path finds nothing there
            env=child_environment(more),
            start_new_session=True,
        )
        return Worker(process)

    async def stop(self) -> None:
        """End all workers now."""
        for task in list(self._starts):
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._alive))
        self._alive.clear()


def resident_mib(pids: Sequence[int]) -> float:
    """What processes hold in memory together."""
    return sum(mib(resident_bytes(pid)) for pid in pids)
