"""Runs inputs in forked processes with little memory and time, and keeps those that did not end as they should."""

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
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from fuzz.inputs import make_input
from fuzz.whole_path import draw_choice, follow

CORPUS = Path(__file__).parent / "corpus"
LIMIT_BYTES = 4 * 2**30
LIMIT_S = 30.0
SHAPES = {"torchscript": ("3x16x16",)}  # a TorchScript file does not have the shapes of its inputs


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
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > LIMIT_BYTES:
        return "!more than 4 GiB"
    return end


def run_here(reader: str, seed: int, numbers: Iterable[int]) -> Tally:
    """Follow inputs in this process: no limits, for a fixed number of inputs that are known to be harmless."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            tally.add(number, run_one(reader, seed, number, Path(folder)), 0.0)
    return tally


class _Worker:
    """A forked process that follows every n-th input and reports on a pipe."""

    def __init__(self, reader: str, seed: int, numbers: range) -> None:
        self.numbers = numbers
        self.current: int | None = None
        self.since = time.monotonic()
        self.buffer = b""
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _work(reader, seed, numbers, end)
        os.close(end)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        os.close(self.pipe)
        return os.waitpid(self.pid, 0)[1]


def _work(reader: str, seed: int, numbers: range, pipe: int) -> None:
    """The life of a worker; it never returns."""
    try:
        # what is mapped already (libraries) does not count
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + LIMIT_BYTES, mapped + LIMIT_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                os.write(pipe, f"+{number}\n".encode())
                started = time.monotonic()
                end = run_one(reader, seed, number, Path(folder))
                os.write(pipe, f"-{number} {time.monotonic() - started:.3f} {end}\n".encode())
    finally:
        os._exit(0)


def run_pool(reader: str, seed: int, count: int, seconds: float, processes: int, start: int = 0) -> Tally:
    """Follow inputs in forked processes until the count or the time is reached."""
    _import_all(reader)
    tally, until = Tally(), time.monotonic() + seconds
    selector = selectors.DefaultSelector()

    def begin(numbers: range) -> None:
        if numbers:
            worker = _Worker(reader, seed, numbers)
            selector.register(worker.pipe, selectors.EVENT_READ, worker)

    def end(worker: _Worker, reason: str | None) -> None:
        selector.unregister(worker.pipe)
        status = worker.close()
        if worker.current is None or (time.monotonic() > until and reason is None):
            return
        if reason is None:
            reason = f"!died of signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "!ended early"
        tally.add(worker.current, reason, time.monotonic() - worker.since)
        following = range(worker.current + worker.numbers.step, worker.numbers.stop, worker.numbers.step)
        begin(following)

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
                _note(line.decode(), worker, tally)
        now = time.monotonic()
        for key in list(selector.get_map().values()):
            late = key.data.current is not None and now - key.data.since > LIMIT_S
            if late or now > until:
                key.data.kill()
                end(key.data, f"!took more than {LIMIT_S:.0f} s" if late else None)
    return tally


def _note(line: str, worker: _Worker, tally: Tally) -> None:
    if line.startswith("+"):
        worker.current, worker.since = int(line[1:]), time.monotonic()
    else:
        number, seconds, result = line[1:].split(" ", 2)
        tally.add(int(number), result, float(seconds))
        worker.current = None


def _import_all(reader: str) -> None:
    """Import what the readers need before the first fork; a first answer loads the fitted files."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            run_one("onnx", 0, number, Path(folder))
    if reader in ("torchscript", "config"):
        pass
    if reader == "config":
        import transformers  # noqa: F401


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
