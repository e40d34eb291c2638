"""A worker that compiles nothing: it keeps names, and dies, hangs, fails or is deaf where a model's name says so."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from foretell.profiling.workload import workload_from_json

HANGING_S = 600


class Interrupted(BaseException):
    pass


class Fake:
    def __init__(self, settings):
        self.prepared = {}
        self.timed = set()
        self.log = os.path.join(settings["folder"], "turns")
        self.deaf, self.traced = (Path(settings["folder"]) / name for name in ("deaf", "traced"))
        self.room = settings["compiled"]["per_process"]
        self.preparing = False

    def execute(self, message):
        getattr(self, message["do"])(message)
        say({"event": "done", "full": len(self.prepared) >= self.room})

    def prepare(self, message):
        workload = workload_from_json(message["workload"])
        name = workload.spec
        if "hang" in name or "slow" in name:
            try:
                self.preparing = True
                say({"event": "begin", "id": workload.id})
                time.sleep(HANGING_S)
            except Interrupted:
                return
        if "deaf" in name:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            self.deaf.write_text(str(os.getpid()))
        say({"event": "begin", "id": workload.id})
        if "crash" in name:
            os.abort()
        if "deaf" in name:
            self.wait_for_others()
        if "broken" in name:
            say({"event": "failed", "id": workload.id, "status": "build_error", "values": {"error": "no such layer"}})
            return
        self.prepared[workload.id] = name
        say({"event": "kept", "id": workload.id, "values": {"compile_s": 1.5, "graph_breaks": None}})

    def wait_for_others(self):
        """Compile until another process has been traced: only then may a process that does not listen go on."""
        until = time.monotonic() + HANGING_S
        while not self.traced.exists() and time.monotonic() < until:
            time.sleep(0.01)
        self.deaf.unlink()

    def alone(self):
        """Fails where two processes measure at once, or one that does not listen still runs."""
        until = time.monotonic() + HANGING_S
        while self.deaf.exists() and not stands_still(self.deaf.read_text()):  # a signal takes a moment to arrive
            assert time.monotonic() < until
            time.sleep(0.01)
        handle = os.open(self.log, os.O_CREAT | os.O_EXCL)
        time.sleep(0.01)
        os.close(handle)
        os.unlink(self.log)

    def time(self, message):
        self.alone()
        for workload_id, name in list(self.prepared.items()):
            say({"event": "begin", "id": workload_id})
            if "fatal" in name:
                os.abort()
            if "uncaptured" in name:
                del self.prepared[workload_id]
                values = {"eager_ms": 2.0, "error": "CaptureError: no"}
                say({"event": "failed", "id": workload_id, "status": "run_error", "values": values})
                continue
            self.timed.add(workload_id)
            values = {"eager_ms": 2.0, "eager_cv": 0.01, "compiled_ms": 1.0, "compiled_cv": 0.02, "clock_mhz": 1980}
            say({"event": "timed", "id": workload_id, "values": values})

    def tracer(self, message):
        pass

    def trace(self, message):
        self.alone()
        for workload_id in list(self.timed):
            say({"event": "begin", "id": workload_id})
            if "mortal" in self.prepared[workload_id]:
                os.abort()
            kernels = {"name": ["triton_poi_0", "gemm"], "duration_us": [300.0, 600.0], "hidden_us": [0.0, 0.0]}
            kernels |= {"grid": [[4, 1, 1], [8, 1, 1]], "block": [[128, 1, 1], [256, 1, 1]]}
            calls = {"call": [0, 1], "library": [False, True], "kernels": [1, 1], "duration_us": [300.0, 600.0]}
            say({"event": "traced", "id": workload_id, "kernels": kernels, "calls": calls, "error": None})
            del self.prepared[workload_id]
        self.timed.clear()
        self.traced.touch()


def stands_still(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    fake = Fake(json.loads(sys.argv[1]))

    def interrupt(_number, _frame):
        if fake.preparing:
            fake.preparing = False
            raise Interrupted

    signal.signal(signal.SIGUSR1, interrupt)
    say({"event": "ready"})
    for line in sys.stdin:
        fake.execute(json.loads(line))
