"""Processes: what a parent needs for its children: their environment, their memory, and their end.

A child is the leader of a process group, so that its own children end with it.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from foretell.units import KIB

_SOURCE = str(Path(__file__).parents[2])


def source_folder() -> str:
    """The folder from which a child can import this package."""
    return _SOURCE


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that can import this package, with the variables in ``more``."""
    variables = {**os.environ, **(more or {})}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (_SOURCE, variables.get("PYTHONPATH"))))
    return variables


def kill_group(pid: int) -> None:
    """Kill all processes of a group; do nothing if they have ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and its group, wait for it, and close its pipes."""
    kill_group(process.pid)
    close(process)


def close(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a child that has ended, and close its pipes."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # the child ended before it read everything
                pipe.close()


def describe_exit(code: int) -> str:
    """The end of a process in words.

    >>> describe_exit(3), describe_exit(-11)
    ('exited with code 3', 'was killed by SIGSEGV')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def last_line(output: bytes) -> str:
    """The last line that a process wrote, or an empty text.

    >>> last_line(b"one\\ntwo\\n"), last_line(b"")
    ('two', '')
    """
    return (output.decode(errors="replace").strip().splitlines()[-1:] or [""])[0].strip()


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one; 0 if it has ended or the system does not report it."""
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("VmRSS")), 0)


def group_bytes(group: int) -> int:
    """The memory that all processes of a group hold; 0 on systems without /proc.

    An address-space limit would be simpler, but TensorFlow reserves far more address space than it uses.
    """
    total = 0
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and _is_in_group(int(entry.name), group):
                total += resident_bytes(int(entry.name))
    return total


def _is_in_group(pid: int, group: int) -> bool:
    with suppress(OSError):
        return os.getpgid(pid) == group
    return False
