"""What a parent does with its children."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import foretell
from foretell.processes.parent import child_environment, describe_exit, end, group_bytes, last_line, resident_bytes

# a child that starts another one and says its number
FAMILY = (
    "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); time.sleep(600)"
)


def start(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0)


def test_whatever_a_child_has_started_ends_with_it() -> None:
    child = start(FAMILY)
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    end(child)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.closed
    until = time.monotonic() + 120
    while _runs(grandchild):  # the system takes a moment to bury it
        assert time.monotonic() < until


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2]
    except OSError:
        return False
    return state != "Z"


def test_ending_a_child_that_has_ended_is_fine() -> None:
    child = start("raise SystemExit(3)")
    child.wait()
    end(child)
    assert child.returncode == 3


def test_a_child_finds_the_package_wherever_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = child_environment({"MORE": "1"})
    first, *rest = variables["PYTHONPATH"].split(os.pathsep)
    assert os.path.samefile(first, os.path.join(os.path.dirname(foretell.__file__), ".."))
    assert rest == ["/elsewhere"]
    assert variables["MORE"] == "1"
    assert os.environ["PYTHONPATH"] == "/elsewhere"


def test_a_process_knows_its_resident_memory() -> None:
    before = resident_bytes()
    buffer = bytearray(os.urandom(1 << 20)) * 64
    assert resident_bytes() - before > len(buffer) / 2
    assert group_bytes(os.getpgid(0)) >= resident_bytes(os.getpid()) / 2
    assert resident_bytes(2**22 + 1) == group_bytes(2**22 + 1) == 0


def test_ends_in_words() -> None:
    assert describe_exit(-signal.SIGABRT) == "was killed by SIGABRT"
    assert describe_exit(7) == "exited with code 7"
    assert last_line(b"first\n last words \n\n") == "last words"
