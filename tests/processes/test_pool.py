import sys
import time
from pathlib import Path

import pytest

from foretell.processes.device_lock import WAITING_ALONE, open_state
from foretell.processes.pool import LOG, Pool
from foretell.profiling.campaign.schedule import Group, group_to_json
from foretell.profiling.workload import Workload

FAKE = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "fake_worker.py"))
ECHO = """
import json, sys
settings = json.loads(sys.argv[1])
print("worker", settings["worker"], file=sys.stderr, flush=True)
print(json.dumps(settings), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path):
    pools = []

    def make(command, roles=("measure",), first=0):
        pools.append(Pool(tmp_path, {"device": "cpu"}, roles, command, first))
        pools[-1].start()
        return pools[-1]

    yield make
    for pool in pools:
        pool.stop()
        assert all(worker.process.poll() is not None for worker in pool.workers.values())


def _handle_message(pool, enough):
    heard, late = [], time.monotonic() + 120
    while not enough(heard):
        assert time.monotonic() < late, heard
        heard += [message for _, message in pool.listen(0.1)]
    return heard


def _group(name):
    workload = Workload(f"timm:{name}", 1, (3, 8, 8), "fp32")
    group = Group("timm", workload.spec, (workload,), 1)
    return group, {"group": group_to_json(group, set())}


def test_workers_get_their_number_and_their_errors_are_kept(start, tmp_path):
    pool = start((sys.executable, "-c", ECHO), ("measure", "trace"), first=3)
    heard = sorted(_handle_message(pool, lambda heard: len(heard) == 2), key=lambda message: message["worker"])
    assert [(message["worker"], message["role"]) for message in heard] == [(3, "measure"), (4, "trace")]
    assert all(message["device"] == "cpu" and message["folder"] == str(tmp_path) for message in heard)
    out = tmp_path / "campaign"
    out.mkdir()
    pool.save_log(out)
    assert sorted((out / LOG).read_text().splitlines()) == ["worker 3", "worker 4"]


def test_a_dead_worker_is_noticed_and_replaced(start):
    pool = start(FAKE)
    _handle_message(pool, lambda heard: {"event": "ready"} in heard)
    dead = pool.workers[0]
    pool.assign(dead, *_group("crash"))
    assert _handle_message(pool, lambda heard: None in heard)[0]["event"] == "begin"
    assert dead.process.returncode < 0
    pool.restart(dead)
    assert pool.restarts == 1
    assert pool.workers[0].process.pid != dead.process.pid
    _handle_message(pool, lambda heard: {"event": "ready"} in heard)
    pool.assign(pool.workers[0], *_group("resnet"))
    heard = _handle_message(pool, lambda heard: heard and heard[-1]["event"] == "done")
    assert [message["event"] for message in heard] == ["begin", "record", "done"]


def test_silence_is_a_hang_unless_idle_or_waiting_for_the_device(start, tmp_path):
    pool = start(FAKE)
    worker = pool.workers[0]
    _handle_message(pool, lambda heard: {"event": "ready"} in heard)
    worker.last_message_at -= 20
    assert pool.hung(10) == []  # not yet known to be ready: a start may be slow
    worker.ready = True
    assert pool.hung(10) == []  # idle
    pool.assign(worker, *_group("hang"))
    _handle_message(pool, lambda heard: heard)
    assert pool.hung(10) == []
    worker.last_message_at -= 20
    assert pool.hung(10) == [worker]
    state = open_state(tmp_path)
    state[0] = WAITING_ALONE
    state.close()
    assert pool.hung(10) == []
