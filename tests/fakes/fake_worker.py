"""A worker that measures nothing: it answers at once, and dies, hangs or breaks where a model's name says so."""

import json
import os
import sys
import time

from foretell.profiling.campaign.schedule import group_from_json

KERNELS = {
    "name": ["gemm"], "duration_us": [1.0], "grid": [[1, 1, 1]], "block": [[32, 1, 1]], "registers": [8],
    "shared_bytes": [0], "occupancy_pct": [5.0], "op_index": [0], "op": ["aten::mm"], "leaf_op": ["aten::mm"],
    "module": [""],
}  # fmt: skip


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def run(group, energy):
    left = group.target_count
    for workload in group.workloads:
        if left <= 0:
            return
        say({"event": "begin", "id": workload.id})
        time.sleep(0.003)
        if "crash" in workload.spec and workload.batch_size == 1:
            os.abort()
        if "hang" in workload.spec and workload.batch_size == 1:
            time.sleep(600)
        if group.role == "trace":
            say({"event": "trace", "id": workload.id, "kernels": KERNELS})
        elif "fallback" in workload.spec and group.role == "measure":
            say({"event": "fallback", "id": workload.id, "error": "The step waits."})
        elif "poison" in workload.spec and workload.batch_size == 1:
            say({"event": "record", "id": workload.id, "status": "cuda_error", "values": {"error": "illegal access"}})
            say({"event": "poisoned"})
            os._exit(3)
        else:
            values = {
                "latency_ms": 1.0,
                "latency_source": group.role,
                "energy_j": 1.0 if workload.id in energy else None,
            }
            say({"event": "record", "id": workload.id, "status": "ok", "values": values})
        left -= 1


if __name__ == "__main__":
    say({"event": "ready"})
    for line in sys.stdin:
        message = json.loads(line)
        run(*group_from_json(message["group"]))
        say({"event": "done", "busy_s": 0.01})
