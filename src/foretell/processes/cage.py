"""Processes: runs one task on somebody else's file in a child that can reach nothing, and returns the bytes it answers.

The child is ``python -m MODULE``. It calls :func:`enter`, works, and calls what that returned with its answer:

    parent → child     standard input    one JSON object: the task and the child's confinement
    child → parent     standard output   the answer, at most ``MAX_ANSWER_BYTES``

It starts with three descriptors, few environment variables and an empty folder, which is deleted afterwards. The
layers of ``confine.py`` hold before it imports anything large. The parent limits time and memory once more and kills
the whole group.
"""

import json
import os
import selectors
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from foretell.errors import ModelError
from foretell.processes.child import Message
from foretell.processes.confine import Confinement, confine
from foretell.processes.limits import Limits
from foretell.processes.parent import describe_exit, end, last_line, resident_bytes, source_folder
from foretell.units import MIB, bytes_from_gib

MAX_ANSWER_BYTES = 128 * MIB
OUT_OF_MEMORY = 77  # the exit code of a child that could not get more memory
_POLL_S = 0.1  # between two looks at the child's memory
_TAIL_BYTES = 4000  # of the child's error output that are kept for a message
# what a child inherits of the environment: where Python and its libraries lie, and the language of the system
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


class TooMuchError(ModelError):
    """Reading a file needed more memory or time than allowed."""


def run_caged(module: str, task: Message, name: str, limits: Limits, readable: Sequence[Path] = ()) -> bytes:
    """Return what a child answers to a task; raise an error of one line if it dies or exceeds its limits.

    Args:
        module: The module that the child runs; it calls :func:`enter`.
        task: What the child is asked.
        name: The file in messages.
        limits: The memory and the time that it may take.
        readable: The files that it may read.
    """
    memory_bytes = bytes_from_gib(limits.memory_gib)
    confinement = Confinement(
        memory_bytes=memory_bytes, cpu_s=limits.timeout_s, readable=[str(p.absolute()) for p in readable]
    )
    # a file, not a pipe: a task may be longer than what a pipe holds
    with tempfile.TemporaryDirectory(prefix="foretell-cage-") as folder, tempfile.TemporaryFile() as question:
        question.write(json.dumps({"task": task, "confinement": asdict(confinement)}).encode())
        question.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=question,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=True,
            cwd=folder,
            env=scrubbed_environment(folder),
            start_new_session=True,  # also without a terminal
        )
        try:
            answer, tail = _watch(process, name, limits)
        finally:
            end(process)
            if process.stderr is not None:
                process.stderr.close()
    if process.returncode == 0:
        return answer
    if process.returncode == OUT_OF_MEMORY:
        raise out_of_memory(name, limits)
    if process.returncode == -signal.SIGXCPU:
        raise out_of_time(name, limits)
    last = last_line(tail)[:200]
    raise ModelError(
        f"The process that read {name} {describe_exit(process.returncode)}: the file is damaged, or it needs more than "
        f"{limits.memory_gib:g} GiB.{f' Its last line: {last}' if last else ''}"
    )


def out_of_memory(name: str, limits: Limits) -> TooMuchError:
    """The error for a file that takes too much memory."""
    more = f"{2 * limits.memory_gib:g}"
    return TooMuchError(
        f"{name} needed more than {limits.memory_gib:g} GiB to read and was stopped. If you trust it, give "
        f"--memory-limit {more} (in Python memory_limit_gib={more})."
    )


def out_of_time(name: str, limits: Limits) -> TooMuchError:
    """The error for a file that takes too long."""
    more = f"{2 * limits.timeout_s:g}"
    return TooMuchError(
        f"Reading {name} took longer than {limits.timeout_s:g} s and was stopped. If you trust it, give "
        f"--timeout {more} (in Python timeout_s={more})."
    )


def scrubbed_environment(folder: str) -> dict[str, str]:
    """The environment of a caged child: no secret of the user, one thread, no GPU, and one folder for everything."""
    variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (source_folder(), variables.get("PYTHONPATH"))))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"), folder)
    return {
        **variables,
        **threads,
        **places,
        "LOGNAME": "foretell",  # libraries ask for the user's name, which a namespace does not know
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ORT_DISABLE_TELEMETRY": "1",
    }


def _watch(process: "subprocess.Popen[bytes]", name: str, limits: Limits) -> tuple[bytes, bytes]:
    """Read the answer and the end of the error output, until both are closed."""
    assert process.stdout is not None
    assert process.stderr is not None
    answer, tail, deadline = bytearray(), b"", time.monotonic() + limits.timeout_s
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(_POLL_S):
                output = _read(process.stdout if key.fd == process.stdout.fileno() else process.stderr)
                if output == b"":
                    selector.unregister(key.fileobj)
                elif key.fd == process.stdout.fileno():
                    answer += output or b""
                else:
                    tail = (tail + (output or b""))[-_TAIL_BYTES:]
            if len(answer) > MAX_ANSWER_BYTES:
                raise ModelError(f"The graph of {name} has more than {MAX_ANSWER_BYTES} bytes, which is too large.")
            if time.monotonic() > deadline:
                raise out_of_time(name, limits)
            if resident_bytes(process.pid) > bytes_from_gib(limits.memory_gib):
                raise out_of_memory(name, limits)
    try:
        process.wait(max(deadline - time.monotonic(), _POLL_S))
    except subprocess.TimeoutExpired:
        raise out_of_time(name, limits) from None
    return bytes(answer), tail


def _read(pipe: IO[bytes]) -> bytes | None:
    """Read what is available now; b"" at the end of the stream, None if nothing is available."""
    try:
        return os.read(pipe.fileno(), MIB)
    except BlockingIOError:
        return None


def enter() -> tuple[Message, Callable[[bytes], None]]:
    """In the child: confine this process; returns the task and a function that sends the answer and exits."""
    question = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not be taken for the answer
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    tempfile.tempdir = os.getcwd()  # Python would try to write a file to find the folder
    confine(Confinement(**question["confinement"]))

    def send(answer: bytes) -> None:
        sys.stderr.flush()
        left = memoryview(answer)
        while left:
            left = left[os.write(out, left) :]
        os._exit(0)  # a library that crashes at exit must not spoil the answer

    return question["task"], send


def end_out_of_memory() -> None:
    """In the child: end at once and tell the parent that there was too little memory."""
    os._exit(OUT_OF_MEMORY)
