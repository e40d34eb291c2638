"""Profiling: a measurement in a child process: a hang or a crash of the child becomes a result with a status."""

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.processes.parent import child_environment, describe_exit, end, group_bytes, last_line
from foretell.profiling.environment import describe
from foretell.profiling.single import Request, Values
from foretell.profiling.trackers.ncu import OPTIONS, error_text, find_ncu, read_counters, split_ranges
from foretell.units import bytes_from_gib

# not `python -m`: the package imports this module too, and Python would warn that it is loaded twice
SINGLE = (sys.executable, "-c", "import sys; from foretell.profiling.single import main; sys.exit(main())")
_TAIL_BYTES = 4000
_PROFILER_S = 60.0


def measure_alone(
    request: Request,
    *,
    timeout_s: float,
    memory_limit_gib: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = SINGLE,
    wait_s: float = 0.0,
) -> Values:
    """The result of ``request``; if the child hangs or dies, the result has a status that says so.

    A profiler around the child needs time after the result; it gets ``wait_s``. A child that holds more main memory
    than ``memory_limit_gib``, together with its own children, is killed.
    """
    most_bytes = math.inf if memory_limit_gib is None else bytes_from_gib(memory_limit_gib)
    variables = child_environment(environment)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables, process_group=0
        )
        try:
            result, stage, too_large = _exchange(process, request, time.monotonic() + timeout_s, most_bytes, on_stage)
            timed_out = result is None and process.poll() is None
            if result is not None and wait_s:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(wait_s)
        finally:
            end(process)
        if result is not None:
            return result
        facts = describe("cpu") | {"device_name": request.device}
        if too_large:
            error = f"It took more than {memory_limit_gib:g} GiB of memory while {stage}. Allow more: --memory-limit."
            return _failed("oom", error, facts)
        if timed_out:
            error = f"Nothing came back in {timeout_s:.0f} s while {stage}. Allow more with --timeout."
            return _failed("timeout", error, facts)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return _failed(*_exit_status(process.returncode, stage, last_line(errors.read())), facts)


def count_alone(
    request: Request, *, timeout_s: float, memory_limit_gib: float | None = None, ncu: Sequence[str] = ()
) -> Values:
    """The achieved occupancy of one run, counted by a profiler around the child.

    The values are ``occupancy_mean`` and ``occupancy_weighted`` (by duration), in percent.
    """
    profiler = tuple(ncu) or (find_ncu(),)
    with tempfile.TemporaryDirectory(prefix="foretell-occupancy-") as folder:
        log = Path(folder) / "ncu.csv"
        command = (*profiler, *OPTIONS, "--log-file", str(log), *SINGLE)
        counted = replace(request, counting=True, energy=False, kernels=False, fusion="")
        result = measure_alone(
            # LC_ALL: ncu must print numbers with decimal points
            counted,
            timeout_s=timeout_s,
            memory_limit_gib=memory_limit_gib,
            environment={"LC_ALL": "C"},
            command=command,
            wait_s=_PROFILER_S,
        )
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    if result["status"] != "ok":
        return result
    kernels = [kernel for run in split_ranges(read_counters(lines)) for kernel in run]
    total_us = math.fsum(kernel.duration_us for kernel in kernels)
    if not total_us:
        error = f"ncu counted no kernel. {error_text(lines)}".strip()
        return _failed("run_error", error, result["facts"])
    weighted = math.fsum(kernel.duration_us * kernel.occupancy_pct for kernel in kernels) / total_us
    mean = math.fsum(kernel.occupancy_pct for kernel in kernels) / len(kernels)
    return result | {"values": {"occupancy_mean": mean, "occupancy_weighted": weighted}}


def _failed(status: str, error: str, facts: Values) -> Values:
    return {"status": status, "error": error, "workload": None, "kernels": None, "facts": facts}


def _exit_status(code: int, stage: str, last: str) -> tuple[str, str]:
    # we did not kill it, so most likely the kernel did when memory ran out
    if code == -signal.SIGKILL:
        return "oom", f"The process was killed while {stage}: most likely the machine ran out of memory."
    return "crash", f"The process {describe_exit(code)} while {stage}.{' ' + last if last else ''}"


def _exchange(
    process: "subprocess.Popen[bytes]",
    request: Request,
    deadline: float,
    most_bytes: float,
    on_stage: Callable[[str], None],
) -> tuple[Values | None, str, bool]:
    """Send the request and wait for the result, the child's end or a limit.

    Returns the result, the last stage, and whether the child took too much memory.
    """
    stage, buffer = "starting", b""
    if process.stdin is None or process.stdout is None:
        return None, stage, False
    with suppress(BrokenPipeError):  # the child has died already; its exit code says why
        process.stdin.write(request.to_json().encode() + b"\n")
        process.stdin.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            ready = selector.select(min(1.0, max(deadline - time.monotonic(), 0.0)))
            # not looked at without a limit: it takes a few milliseconds, which a measurement on a CPU would notice
            if most_bytes < math.inf and group_bytes(process.pid) > most_bytes:
                return None, stage, True
            if not ready:
                continue
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                process.wait()
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                if message.pop("event") == "result":
                    return message, stage, False
                stage = message["stage"]
                on_stage(stage)
    return None, stage, False
