"""Runs inputs in forked processes with little memory and time, and keeps those that did not end as they should.

A process follows hundreds of inputs, because starting one takes longer than most of them. It is confined as a worker of
the server is, so that the readers work in it and start no cage of their own. It says which input it begins: if it dies
or hangs, that input is followed once more, in a process of its own, with a cage where the command line would use one.
This second end counts. All others go on in a new process.
"""

import hashlib
import os
import resource
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from foretell.errors import ForetellError
from foretell.frontends.caged import call_reader
from foretell.frontends.huggingface.configs import HfConfig
from foretell.frontends.request import ModelRequest, parse_inputs
from foretell.processes.confine import Confinement, confine
from foretell.processes.parent import resident_bytes
from fuzz.config_values import SMALL, TYPES
from fuzz.inputs import SEEDS, make_input
from fuzz.whole_path import draw_choice, follow

CORPUS = Path(__file__).parent / "corpus"
LIMIT_BYTES = 4 * 2**30
LIMIT_S = 30.0  # of processor time: on a busy machine, the clock says little
IDLE_LIMIT_S = 600.0  # on the clock, for an input that waits for something
MOST_INPUTS = 500  # of one process; libraries keep a little of each
MOST_GROWTH_BYTES = 2**30  # a process that holds so much more than at its start makes room for a new one
MEMORY_FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # inputs need no disk
SHAPES = {"torchscript": ("3x16x16",)}  # a TorchScript file does not have the shapes of its inputs
# what makes a reader import all that it needs: transformers has a module for every kind of model
FIRST_READS = {
    "torchscript": [("foretell.frontends.torch.torchscript:read_script", str(SEEDS / "script.ts"))],
    "config": [
        (
            "foretell.frontends.huggingface.frontend:read_values",
            asdict(HfConfig(kind, {"model_type": kind, **SMALL}, "")),
        )
        for kind in TYPES
        if isinstance(kind, str)
    ],
}


@dataclass
class Tally:
    """What came out: how many inputs ended how, and the first input of every kind of failure."""

    ends: Counter[str] = field(default_factory=Counter)
    failures: dict[str, int] = field(default_factory=dict)  # what failed → the number of its first input
    slowest_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.ends.values())

    def add(self, number: int, end: str, seconds: float) -> None:
        self.slowest_s = max(self.slowest_s, seconds)
        self.ends[end if not end.startswith("!") else "failed"] += 1
        if end.startswith("!"):
            self.failures.setdefault(end[1:], number)


def run_one(reader: str, seed: int, number: int, folder: Path) -> str:
    """Follow one input; returns how it ended. A failure starts with an exclamation mark."""
    suffix, content = make_input(reader, seed, number)
    path = folder / f"input{suffix}"
    path.write_bytes(content)
    choice = draw_choice(Random(f"choice {reader} {seed} {number}"))
    try:
        end = follow(path, choice, SHAPES.get(reader, ()))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "foretell" in f.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "?"
        return f"!{type(error).__name__} in {where}"
    if _peak_bytes() > LIMIT_BYTES:
        return "!more than 4 GiB"
    return end


def _peak_bytes() -> int:
    """The most memory that this process or one of its children held."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def run_here(reader: str, seed: int, numbers: Iterable[int]) -> Tally:
    """Follow inputs in this process: no limits, for a fixed number of inputs that are known to be harmless."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            tally.add(number, run_one(reader, seed, number, Path(folder)), 0.0)
    return tally


class _Worker:
    """A forked process that follows inputs and reports on a pipe; ``alone`` it follows one and may start a cage."""

    def __init__(self, reader: str, seed: int, numbers: range, *, alone: bool = False) -> None:
        self.left, self.alone = numbers, alone
        self.current: int | None = None
        self.since, self.used_s = time.monotonic(), 0.0
        self.buffer = b""
        self.pipe, end = os.pipe()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_FOLDER)  # a confined process cannot remove its own
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _work(reader, seed, numbers, end, self.folder.name, alone)
        os.close(end)

    def note(self, line: str, tally: Tally) -> None:
        if line.startswith("+"):
            self.current, self.left = int(line[1:]), self.left[1:]
            self.since, self.used_s = time.monotonic(), _processor_s(self.pid)
        else:
            number, seconds, result = line[1:].split(" ", 2)
            cage = "in a cage: " if self.alone and not result.startswith("!") else ""
            tally.add(int(number), cage + result, float(seconds))
            self.current = None

    def late(self) -> str | None:
        """Why the current input takes too long; None if it does not."""
        waited_s = 0.0 if self.current is None else time.monotonic() - self.since
        if waited_s > IDLE_LIMIT_S:
            return f"!took more than {IDLE_LIMIT_S:.0f} s on the clock"
        if waited_s > LIMIT_S and _processor_s(self.pid) - self.used_s > LIMIT_S:
            return f"!took more than {LIMIT_S:.0f} s"
        return None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        os.close(self.pipe)
        status = os.waitpid(self.pid, 0)[1]
        self.folder.cleanup()
        return status


def _processor_s(pid: int) -> float:
    """The processor time that a process and its children, such as a cage, have used; 0 if it has ended."""
    try:
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return ticks / os.sysconf("SC_CLK_TCK") + sum(_processor_s(int(child)) for child in children)


def _work(reader: str, seed: int, numbers: range, pipe: int, folder: str, alone: bool) -> None:
    """The life of a worker; it never returns."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        _limit(folder, alone)
        before = resident_bytes()
        for number in numbers[:MOST_INPUTS]:
            os.write(pipe, f"+{number}\n".encode())
            started = time.monotonic()
            end = run_one(reader, seed, number, Path(folder))
            os.write(pipe, f"-{number} {time.monotonic() - started:.3f} {end}\n".encode())
            # the most memory that a process held does not go down again: the next input must not be blamed for it
            if max(_peak_bytes(), resident_bytes()) - before > MOST_GROWTH_BYTES:
                break
    finally:
        os._exit(0)


def _limit(folder: str, alone: bool) -> None:
    # what is mapped already (libraries) does not count
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = mapped + LIMIT_BYTES
    if alone:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    else:
        confine(Confinement(address_bytes=most, file_bytes=LIMIT_BYTES, readable=[folder], writable=[folder]))


def run_pool(reader: str, seed: int, count: int, seconds: float, processes: int, start: int = 0) -> Tally:
    """Follow inputs in forked processes until the count or the time is reached."""
    _import_all(reader)
    tally, until = Tally(), time.monotonic() + seconds
    selector = selectors.DefaultSelector()

    def begin(numbers: range, *, alone: bool = False) -> None:
        if numbers:
            worker = _Worker(reader, seed, numbers, alone=alone)
            selector.register(worker.pipe, selectors.EVENT_READ, worker)

    def end(worker: _Worker, reason: str | None) -> None:
        selector.unregister(worker.pipe)
        status = worker.close()
        if time.monotonic() > until and reason is None:
            return
        if worker.current is not None and not worker.alone:
            begin(range(worker.current, worker.current + 1), alone=True)
        elif worker.current is not None:
            died = f"!died of signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "!ended early"
            tally.add(worker.current, reason or died, time.monotonic() - worker.since)
        begin(worker.left)

    for offset in range(processes):
        begin(range(start + offset, start + count, processes))
    while selector.get_map():
        for key, _ in selector.select(timeout=1.0):
            worker: _Worker = key.data
            data = os.read(worker.pipe, 2**16)
            if not data:
                end(worker, None)
                continue
            *lines, worker.buffer = (worker.buffer + data).split(b"\n")
            for line in lines:
                worker.note(line.decode(), tally)
        now = time.monotonic()
        for key in list(selector.get_map().values()):
            late = key.data.late()
            if late or now > until:
                key.data.kill()
                end(key.data, late)
    return tally


@cache
def _import_all(reader: str) -> None:
    """Import what the readers need before the first fork; a first answer loads the fitted files."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            run_one("onnx", 0, number, Path(folder))
    for function, source in FIRST_READS.get(reader, ()):
        with suppress(ForetellError):
            call_reader(function, ModelRequest(source, parse_inputs(SHAPES.get(reader, ()))))


def keep(reader: str, seed: int, failure: str, number: int) -> Path:
    """Write a failing input into the corpus; its name says how it failed."""
    suffix, content = make_input(reader, seed, number)
    what = "".join(c if c.isalnum() else "-" for c in failure).strip("-").lower()[:60]
    path = CORPUS / f"{reader}-{what}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def show(reader: str, tally: Tally) -> None:
    """Print the counts of one reader."""
    ends = ", ".join(f"{end} {count}" for end, count in tally.ends.most_common())
    sys.stdout.write(f"{reader}: {tally.count} inputs, slowest {tally.slowest_s:.1f} s: {ends}\n")
    sys.stdout.flush()
