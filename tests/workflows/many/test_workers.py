"""Processes that predict: replaced when they die, and ended when nobody waits for them. These answer with an echo."""

import sys

import pytest

from foretell.errors import InputError, ModelError
from foretell.workflows.many.workers import Crash, LocalWorkers, Outcome, cores_here

ECHO = """
import base64, json, os, signal, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    if task["do"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task["do"] == "wait":
        time.sleep(600)
    if task["do"] == "refuse":
        print(json.dumps({"refused": "not here"}), flush=True)
    print(json.dumps({"answer": base64.b64encode(str(os.getpid()).encode()).decode()}), flush=True)
"""


def outcomes(workers: LocalWorkers, count: int) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    while len(found) < count:
        found.update(workers.wait(1.0))
    return found


def test_tasks_are_answered_and_a_worker_that_dies_is_replaced() -> None:
    workers = LocalWorkers(2, (sys.executable, "-c", ECHO))
    workers.start()
    try:
        for number, do in enumerate(("answer", "die", "answer", "answer")):
            workers.submit(number, {"do": do})
        found = outcomes(workers, 4)
        assert found[1] == Crash("its process was killed by SIGKILL")
        assert all(isinstance(found[number], bytes) for number in (0, 2, 3))
        # one that is given up ends, and the next task has a worker again
        workers.submit(4, {"do": "wait"})
        workers.submit(5, {"do": "wait"})
        list(workers.wait(0.1))
        workers.cancel(4)
        workers.cancel(5)
        workers.submit(6, {"do": "answer"})
        assert set(outcomes(workers, 1)) == {6}
        workers.submit(7, {"do": "refuse"})
        with pytest.raises(ModelError, match="not here"):
            outcomes(workers, 1)
    finally:
        workers.stop()


def test_workers_that_never_start_are_one_error_and_not_a_loop() -> None:
    workers = LocalWorkers(1, (sys.executable, "-c", "raise SystemExit('no such library')"))
    workers.start()
    try:
        workers.submit(0, {"do": "answer"})
        with pytest.raises(ModelError, match="The workers do not start: no such library"):
            outcomes(workers, 1)
    finally:
        workers.stop()


def test_their_number_has_bounds() -> None:
    with pytest.raises(InputError, match="give 1 to 64"):
        LocalWorkers(65)
    assert 1 <= cores_here() <= 64
