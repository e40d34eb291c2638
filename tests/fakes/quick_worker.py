"""A campaign's worker that measures nothing and imports nothing: it starts at once and answers at once."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

KERNELS = {
    "name": ["gemm"], "duration_us": [1.0], "grid": [[1, 1, 1]], "block": [[32, 1, 1]], "registers": [8],
    "shared_bytes": [0], "occupancy_pct": [5.0], "op_index": [0], "op": ["aten::mm"], "leaf_op": ["aten::mm"],
    "module": [""],
}  # fmt: skip
SECONDS = float(os.environ.get("QUICK_WORKER_S", "0.004"))


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def identity(workload):
    shape = "x".join(map(str, workload["input_shape"]))
    parts = (
        workload["spec"],
        workload["batch_size"],
        shape,
        workload["dtype"],
        workload["mode"],
        workload["optimizer"],
    )
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def answer(workload, role):
    say({"event": "begin", "id": identity(workload)})
    time.sleep(SECONDS)
    spec = workload["spec"]
    if "die" in spec:  # takes the process that started it along, the first time
        mark = Path(os.environ["QUICK_WORKER_MARKS"]) / spec.partition(":")[2]
        if not mark.exists():
            mark.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    if "crash" in spec:
        os.abort()
    if "hang" in spec:
        time.sleep(600)
    if role == "trace":
        say({"event": "trace", "id": identity(workload), "kernels": KERNELS})
    elif "fallback" in spec and role == "measure":
        say({"event": "fallback", "id": identity(workload), "error": "The step waits."})
    elif "fails" in spec:
        say({"event": "record", "id": identity(workload), "status": "oom", "values": {"error": "too large"}})
        return False
    else:
        values = {"latency_ms": 1.0, "latency_source": role}
        say({"event": "record", "id": identity(workload), "status": "ok", "values": values})
    return True


if __name__ == "__main__":
    say({"event": "ready"})
    for line in sys.stdin:
        group = json.loads(line)["group"]
        left = group["wanted"]
        for workload in group["workloads"]:
            if left > 0:
                left -= answer(workload, group["role"])
        say({"event": "done", "busy_s": 0.01})
