import os
import time

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.replays.mps import MpsDaemon

CONTROL = """#!/bin/sh
if [ "$1" = "-d" ]; then
    sleep 600 &
    echo $! > "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
    echo started >> "$CUDA_MPS_LOG_DIRECTORY/control.log"
else
    read word
    echo "$word" >> "$CUDA_MPS_LOG_DIRECTORY/control.log"
    QUIT
fi
"""
OBEYS = 'kill $(cat "$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid")'


def control(tmp_path, monkeypatch, end=OBEYS, text=CONTROL):
    binary = tmp_path / "bin" / "nvidia-cuda-mps-control"
    binary.parent.mkdir()
    binary.write_text(text.replace("QUIT", end))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    return tmp_path / "mps"


def lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as stat:  # an orphan in a container may wait for nobody
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def daemon_of(folder):
    return int((folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text())


def gone(process):
    until = time.monotonic() + 120
    while lives(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not lives(process)


def test_the_daemon_quits_when_its_context_ends(tmp_path, monkeypatch):
    folder = control(tmp_path, monkeypatch)
    with MpsDaemon(folder) as daemon:
        process = daemon_of(folder)
        assert lives(process)
        assert daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] == str(folder / "pipe")
        assert daemon.client(12.5)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "12.5"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in daemon.environment
    assert gone(process)
    assert (folder / "log" / "control.log").read_text().split() == ["started", "quit"]


def test_an_error_inside_ends_the_daemon_too(tmp_path, monkeypatch):
    folder = control(tmp_path, monkeypatch)
    seen = []

    def fail():
        with MpsDaemon(folder):
            seen.append(daemon_of(folder))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gone(seen[0])


def test_a_daemon_that_does_not_obey_is_killed(tmp_path, monkeypatch):
    folder = control(tmp_path, monkeypatch, end=":")
    with MpsDaemon(folder, timeout_s=120) as daemon:
        process = daemon_of(folder)
        daemon._timeout_s = 0.6  # with its end alone
    assert gone(process)


def test_a_control_that_hangs_costs_a_bounded_time(tmp_path, monkeypatch):
    folder = control(tmp_path, monkeypatch, end="exec sleep 600")
    with MpsDaemon(folder, timeout_s=120) as daemon:
        process = daemon_of(folder)
        daemon._timeout_s = 0.6  # with its end alone
    assert gone(process)


def test_a_machine_without_mps_names_what_is_missing(tmp_path, monkeypatch):
    with pytest.raises(MeasurementError, match="multi-process service"), MpsDaemon(tmp_path / "mps", "no-such-control"):
        pass


def test_a_control_that_fails_is_quoted(tmp_path, monkeypatch):
    folder = control(tmp_path, monkeypatch, text="#!/bin/sh\necho 'cannot do that' >&2\nexit 4\n")
    with pytest.raises(MeasurementError, match="code 4: cannot do that"), MpsDaemon(folder):
        pass
