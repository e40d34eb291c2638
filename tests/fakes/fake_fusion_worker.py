"""A worker that compiles nothing: it answers at once, and dies, hangs or retires where a model's name says so."""

import json
import os
import sys
import time

from foretell.profiling.campaign.schedule import group_from_json


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def details():
    nodes = {"name": ["a", "b"], "op_type": ["Conv", "Relu"], "group": [0, 0], "kernel": ["conv", "conv"]}
    edges = {"source": [0], "target": [1], "fused": [True]}
    return {"nodes": nodes, "edges": edges, "graph": {"version": 1}}


if __name__ == "__main__":
    say({"event": "ready"})
    for line in sys.stdin:
        group, _ = group_from_json(json.loads(line)["group"])
        workload = group.workloads[0]
        say({"event": "begin", "id": workload.id})
        if "crash" in workload.spec:
            os.abort()
        if "hang" in workload.spec:
            time.sleep(600)
        record = {"event": "record", "id": workload.id, "details": None}
        if "broken" in workload.spec:
            say(record | {"status": "build_error", "values": {"error": "no such layer"}})
        else:
            values = {"nodes": 2, "groups": 1, "edges": 1, "fused_edges": 1, "backend_version": group.role}
            say(record | {"status": "ok", "values": values, "details": details()})
        last = "retire" in workload.spec
        say({"event": "done", "last": last})
        if last:
            break
