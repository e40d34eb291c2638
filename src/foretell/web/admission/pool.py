"""Web: a pool of worker processes. A worker that takes too long or too much memory is killed and replaced.

Workers import their libraries before the first question, because that takes seconds. A model that nobody has asked
about before is alone with its worker, so that one that crashes its reader takes down one request only. Questions about
models that were answered before may join: when a worker is free, it takes all of them that wait, up to a number, and
answers them together. Nobody waits for company. What goes wrong with a group is asked again, each question alone.
"""

import asyncio
import heapq
import itertools
import json
import os
import signal
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.processes.parent import child_environment, describe_exit, kill_group, resident_bytes
from foretell.units import MIB, bytes_from_mib, mib
from foretell.web.refusals import BrokenError, BusyError, RefusedError, TooSlowError, WorkerKilledError
from foretell.web.settings import Settings

WORKER = (
    sys.executable,
    "-P",
    "-m",
    "foretell.web.admission.worker",
)  # -P: nothing is imported from the working folder
MOST_READ = 500  # models; then a new process replaces the worker: libraries that read models may leak memory
MOST_TOGETHER = 32  # questions that a worker takes at once: a second of work, so that others do not wait long
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2  # how often memory and time of a busy worker are checked
_RETRY_PAUSE_S = 1.0  # a worker that cannot start must not be restarted in a tight loop
_MAX_ANSWER_BYTES = 64 * MIB
_RECENT_ANSWERS = 64  # whose times tell how long others will wait
_EXIT_WAIT_S = 10.0
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)  # no model causes these


class WorkerDiedError(RefusedError):
    """The worker ended before it answered, with this exit code."""

    def __init__(self, code: int | None) -> None:
        super().__init__("The worker process " + ("ended" if code is None else describe_exit(code)) + ".")
        self.code = code


@dataclass(eq=False)
class _Question:
    """A question in the line. Its future has a worker for it, an answer that came with others, or None: ask alone."""

    message: dict[str, Any]
    on_start: Callable[[], None]
    joins: bool
    future: "asyncio.Future[Worker | dict[str, Any] | None] | None" = None
    started: bool = False

    def start(self) -> None:
        """A worker has it now."""
        self.started = True
        self.on_start()

    def settle(self, answer: dict[str, Any] | None) -> None:
        """Pass on what came of a group, unless nobody waits any more."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answer)


class Worker:
    """One worker process, which answers one question, or one group of questions, at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.read = 0

    @property
    def needs_replacement(self) -> bool:
        """Whether the process has ended or has read its number of models."""
        return self._has_ended() or self.read >= MOST_READ

    async def ask(self, message: dict[str, Any], settings: Settings) -> dict[str, Any]:
        """The worker's answer. If this raises, the worker must not be used again."""
        assert self.process.stdin is not None
        with suppress(ConnectionError):  # the process has just died: the empty answer below says so
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()
        line = await self._read_answer(settings)
        if not line.endswith(b"\n"):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), _EXIT_WAIT_S)
            raise WorkerDiedError(self.process.returncode)
        reply: dict[str, Any] = json.loads(line)
        self.read += int(reply.pop("read", 1))
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

    def _has_ended(self) -> bool:
        """Whether the process has ended, even if asyncio has not noticed yet."""
        if self.process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    async def end(self) -> None:
        """Kill the process and its children."""
        kill_group(self.process.pid)
        await self.process.wait()


_Reserved = asyncio.Future[Worker | dict[str, Any] | None] | None


def _waits(question: _Question) -> bool:
    return question.future is not None and not question.future.done()


class Pool:
    """A fixed number of workers. Questions wait in the order of their arrival until one is idle."""

    def __init__(self, settings: Settings, folder: Path, command: Sequence[str] = WORKER) -> None:
        self._settings = settings
        self._folder = folder
        self._command = command
        self._idle: deque[Worker] = deque()
        self._line: list[tuple[int, _Question]] = []  # a heap, the earliest ticket first
        self._tickets = itertools.count()
        self._alive: set[Worker] = set()
        self._start_tasks: set[asyncio.Task[None]] = set()
        self._recent_s: deque[float] = deque(maxlen=_RECENT_ANSWERS)
        self.busy = 0
        self.restarts = 0
        self.deaths = 0
        self.joined = 0

    @property
    def pids(self) -> list[int]:
        """The process ids of all workers."""
        return [worker.process.pid for worker in self._alive]

    @property
    def waiting(self) -> int:
        """How many questions wait for a worker."""
        return sum(_waits(question) for _, question in self._line)

    @property
    def wait_s(self) -> float:
        """How long a new question would wait, by the times of recent answers."""
        each_s = statistics.fmean(self._recent_s) if self._recent_s else 1.0
        return each_s * (self.waiting + self.busy) / self._settings.workers

    def start(self) -> None:
        """Start all workers in the background; questions may be asked at once."""
        for _ in range(self._settings.workers):
            self._start_soon()

    async def ask(
        self, message: dict[str, Any], on_start: Callable[[], None] = lambda: None, *, joins: bool = False
    ) -> dict[str, Any]:
        """The answer of the next free worker; ``on_start`` is called when one begins.

        A question that ``joins`` may be answered together with others. A worker that dies is not blamed on the model:
        somebody may have killed it, or the system was short of memory. The question is asked once more, of a fresh
        worker: whatever killed one may be killing the others too.
        """
        ticket, question = next(self._tickets), _Question(message, on_start, joins)
        while True:
            got = await self._next_idle(ticket, question)
            if isinstance(got, Worker):
                question.start()
                others = self._others() if question.joins else []
                if not others:
                    return await self._ask_alone(got, message)
                answer = await self._ask_together(got, question, others)
            else:
                answer = got
            if answer is not None:
                return answer
            question.joins = False  # the group that it was in found no answer

    async def _ask_alone(self, worker: Worker, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._use(worker, message)
        except WorkerDiedError:
            self.deaths += 1
        fresh = await self._successor(worker)
        try:
            return await self._use(fresh, message)
        except WorkerDiedError as error:
            self.deaths += 1
            self._replace(fresh)
            if error.code in _FROM_OUTSIDE:
                raise WorkerKilledError(
                    f"{error} That happened twice. It says nothing about the model: the machine may be short of memory."
                    " Try again later.",
                    self.wait_s,
                ) from error
            raise RefusedError(f"{error} Another one had died of the same question before.") from error

    def _others(self) -> list[_Question]:
        """Take the questions that may join out of the line, the earliest first."""
        taken: list[_Question] = []
        for _, question in sorted(self._line, key=lambda entry: entry[0]):
            if question.joins and _waits(question) and len(taken) < MOST_TOGETHER - 1:
                question.start()
                taken.append(question)
        chosen = set(map(id, taken))
        self._line = [entry for entry in self._line if id(entry[1]) not in chosen]
        heapq.heapify(self._line)
        return taken

    async def _ask_together(
        self, worker: Worker, question: _Question, others: list[_Question]
    ) -> dict[str, Any] | None:
        """Ask a group; None where that went wrong, and each of it has to be asked alone."""
        group = [question, *others]
        self.joined += len(others)
        answers: list[dict[str, Any] | None] = [None] * len(group)
        try:
            reply = await self._use(worker, {"together": [each.message for each in group]}, len(group))
            if any(each.pop("tainted", False) for each in reply["replies"]):
                worker.read = MOST_READ  # it is replaced before its next question
            answers = reply["replies"]
        except WorkerDiedError:
            self.deaths += 1
            self._replace(worker)
        except RefusedError:  # too slow, too much memory: by one of them, and the worker is replaced already
            pass
        finally:
            for each, answer in zip(others, answers[1:], strict=True):
                each.settle(answer)
        return answers[0]

    async def _use(self, worker: Worker, message: dict[str, Any], questions: int = 1) -> dict[str, Any]:
        self.busy += 1
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            reply = await worker.ask(message, self._settings)
        except WorkerDiedError:
            raise  # the caller replaces it
        except BaseException:  # also if the question is cancelled
            self._replace(worker)
            raise
        finally:
            self.busy -= 1
            self._recent_s.extend([(loop.time() - started) / questions] * questions)
        if reply.pop("tainted", False) or worker.needs_replacement:
            self._replace(worker)
        else:
            self._offer(worker)
        return reply

    async def _successor(self, dead: Worker) -> Worker:
        """Replace a worker that has died, and wait for the new one before others get it."""
        self.restarts += 1
        question = _Question({}, lambda: None, joins=False, future=asyncio.get_running_loop().create_future())
        self._start_soon(dead, question.future)
        worker = await self._wait_for(question, _START_TIMEOUT_S)
        assert isinstance(worker, Worker)
        return worker

    async def _next_idle(self, ticket: int, question: _Question) -> "Worker | dict[str, Any] | None":
        while True:
            got = self._idle.popleft() if self._idle else await self._stand_in_line(ticket, question)
            if not isinstance(got, Worker) or not got.needs_replacement:
                return got
            self._replace(got)

    async def _stand_in_line(self, ticket: int, question: _Question) -> "Worker | dict[str, Any] | None":
        question.future, question.started = asyncio.get_running_loop().create_future(), False
        heapq.heappush(self._line, (ticket, question))
        return await self._wait_for(question, self._settings.timeout_s)

    async def _wait_for(self, question: _Question, timeout_s: float) -> "Worker | dict[str, Any] | None":
        future = question.future
        assert future is not None
        try:
            await asyncio.wait([future], timeout=timeout_s)
            if question.started and not future.done():  # a group has it, which has a timeout of its own
                await asyncio.wait([future])
        except asyncio.CancelledError:
            if not future.cancel() and isinstance(worker := future.result(), Worker):
                self._offer(worker)  # a worker came at the same moment: the next one gets it
            raise
        if not future.done():
            future.cancel()
            raise BusyError("All workers are busy. Try again later.", self.wait_s)
        return future.result()

    def _offer(self, worker: Worker) -> None:
        """Give an idle worker to the earliest question in the line."""
        while self._line:
            _, question = heapq.heappop(self._line)
            if question.future is not None and not question.future.done():
                question.future.set_result(worker)
                return
        self._idle.append(worker)

    def _replace(self, worker: Worker) -> None:
        self.restarts += 1
        self._start_soon(worker)

    def _start_soon(self, replaced: Worker | None = None, reserved: "_Reserved" = None) -> None:
        task = asyncio.get_running_loop().create_task(self._start_one(replaced, reserved))
        self._start_tasks.add(task)
        task.add_done_callback(self._start_tasks.discard)

    async def _start_one(self, replaced: Worker | None, reserved: "_Reserved") -> None:
        if replaced is not None:
            await replaced.end()  # first, so that there are never more processes than allowed
            self._alive.discard(replaced)  # not before: stop() must end it where this task is cancelled
        while True:
            try:
                worker = await self._spawn()
            except OSError:  # no memory or no file handle at the moment
                await asyncio.sleep(_RETRY_PAUSE_S)
                continue
            self._alive.add(worker)
            assert worker.process.stdout is not None
            with suppress(TimeoutError):
                if await asyncio.wait_for(worker.process.stdout.readline(), _START_TIMEOUT_S):
                    if reserved is None or reserved.done():
                        self._offer(worker)
                    else:
                        reserved.set_result(worker)
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
