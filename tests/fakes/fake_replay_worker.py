"""A replay worker that measures nothing: it answers at once, and dies, hangs or fails where a spec says so."""

import json
import os
import sys
import time

from foretell.profiling.workload import workload_from_json


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Fake:
    def __init__(self, settings):
        self.prepared = {}
        self.counts = settings.get("sm_counts") or [
            round(float(settings["role"])) if settings["role"][0].isdigit() else 0
        ]

    def prepare(self, message):
        for values in message["workloads"]:
            workload = workload_from_json(values)
            say({"event": "begin", "id": workload.id})
            if "crash" in workload.spec:
                os._exit(9)
            if "hang" in workload.spec:
                time.sleep(600)
            if "oom" in workload.spec:
                say({"event": "prepared", "id": workload.id, "status": "oom", "values": {"error": "no memory"}})
                continue
            self.prepared[workload.id] = workload
            values = {"macs": 10.0 * workload.batch_size, "outputs": 1.0, "parameters": 1, "sm_count": self.counts[0]}
            say({"event": "prepared", "id": workload.id, "status": "ok", "values": values})

    def time(self, message):
        for workload_id in self.prepared:
            say({"event": "begin", "id": workload_id})
            for count in self.counts:
                values = {"sm_count": count, "latency_ms": 100.0 / count, "repeats": 20}
                say({"event": "timed", "id": workload_id, "status": "ok", "values": values})

    def replay(self, message):
        workload = self.prepared[message["id"]]
        say({"event": "begin", "id": workload.id})
        together = message.get("start") is not None
        if together and "abort" in workload.spec:
            os._exit(9)
        replay_s = 0.002 if together else 0.001
        start = message.get("start") or time.monotonic()
        moments = [start + replay_s * number for number in range(message.get("repeats", 199) + 1)]
        say({"event": "replayed", "id": workload.id, "status": "ok", "moments": moments, "clock_mhz": 1980})

    def drop(self, message):
        self.prepared.clear()


if __name__ == "__main__":
    fake = Fake(json.loads(sys.argv[1]))
    if "sm_counts" in json.loads(sys.argv[1]):
        say({"event": "limited", "slowdown": 4.0, "sm_count": fake.counts[0], "total": 132})
    say({"event": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        getattr(fake, command["do"])(command)
        say({"event": "done"})
