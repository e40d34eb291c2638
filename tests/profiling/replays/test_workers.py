import sys
import time
from pathlib import Path

from foretell.profiling.replays.workers import Death, ReplayWorkers
from foretell.profiling.workload import Workload

FAKE = (sys.executable, str(Path(__file__).parents[2] / "fakes" / "fake_replay_worker.py"))


def prepare(name):
    return {"do": "prepare", "workloads": [Workload(f"synthetic:{name}", 1, (4,), "fp32").to_json()], "stop_at": 0}


def workload_id(name):
    return Workload(f"synthetic:{name}", 1, (4,), "fp32").id


def test_commands_are_executed_and_dead_or_hanging_processes_are_named(tmp_path):
    heard = []
    replay_workers = ReplayWorkers(tmp_path, {}, ["10", "20", "30"], FAKE)
    with replay_workers:
        for index, name in enumerate(("fine", "crash", "hang")):
            replay_workers.send(index, prepare(name))
        until = time.monotonic() + 600
        deaths = replay_workers.wait([0, 1], until, 600.0, lambda index, message: heard.append((index, message["id"])))
        deaths |= replay_workers.wait([2], until, 0.5, lambda index, message: heard.append((index, message["id"])))
        assert heard == [(0, workload_id("fine"))]
        assert deaths == {
            1: Death("crash", "exit code 9", workload_id("crash")),
            2: Death("timeout", "silent for 0 s", workload_id("hang")),
        }
        assert replay_workers.alive == [0]
        replay_workers.restart(1)
        assert replay_workers.alive == [0, 1]
        replay_workers.send(1, prepare("fine"))
        assert replay_workers.wait([1], until, 600.0, lambda index, message: heard.append((index, message["id"]))) == {}
        assert heard[-1] == (1, workload_id("fine"))


def test_all_processes_have_ended_when_the_context_ends(tmp_path):
    with ReplayWorkers(tmp_path, {}, ["10"], FAKE) as replay_workers:
        replay_workers.send(0, prepare("fine"))
        replay_workers.wait([0], time.monotonic() + 600, 600.0, lambda index, message: None)
        (worker,) = replay_workers._pool.workers.values()
        assert worker.process.poll() is None
    assert worker.process.returncode == 0  # it went by itself


def test_a_command_that_takes_too_long_is_late(tmp_path):
    with ReplayWorkers(tmp_path, {}, ["10"], FAKE) as replay_workers:
        replay_workers.send(0, prepare("hang"))
        (death,) = replay_workers.wait([0], time.monotonic() + 0.3, 600.0, lambda index, message: None).values()
        assert death.status == "timeout"
        assert "in time" in death.error
        assert replay_workers.alive == []


def test_output_of_processes_is_kept(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "workers.log").write_bytes(b"one\n")
    replay_workers = ReplayWorkers(tmp_path, {}, [], FAKE)
    replay_workers.save_log(out)
    replay_workers.save_log(out)
    assert (out / "workers.log").read_text() == "one\none\n"
