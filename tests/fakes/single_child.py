"""A child of `isolation` that does what the model's name says; in place of a profiler it prints counters, too."""

import json
import os
import sys
import time
from pathlib import Path

HEADER = '"ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit","Metric Value"'


def counters(path):
    lines = [HEADER]
    for number, (name, duration_ns, occupancy) in enumerate(
        (("nextafter", 9, 1), ("a", 3000, 30), ("b", 1000, 50), ("nextafter", 9, 1))
    ):
        start = f'"{number}","{name}","(128, 1, 1)","(1, 1, 1)"'
        lines.append(f'{start},"gpu__time_duration.sum","ns","{duration_ns}"')
        lines.append(f'{start},"sm__warps_active.avg.pct_of_peak_sustained_active","%","{occupancy}"')
    Path(path).write_text("\n".join(lines) + "\n")


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(arguments):
    request = json.loads(sys.stdin.readline())
    model = request["model"]
    say({"event": "stage", "stage": "building the model"})
    if model == "hang":
        time.sleep(600)
    if model == "grow":
        held = b"x" * (200 << 20)
        time.sleep(600 if held else 0)
    if model == "abort":
        os.abort()
    if model == "killed":
        os.kill(os.getpid(), 9)
    if model == "exit":
        sys.exit("Traceback\nImportError: no such library")
    result = {"event": "result", "status": "ok", "error": None, "workload": None, "kernels": None, "facts": {}}
    say(result | {"values": {"slice": os.environ.get("SLICE"), **request}})
    if "--log-file" in arguments and model == "counted":
        time.sleep(0.2)  # a profiler prints after its program has answered
        counters(arguments[arguments.index("--log-file") + 1])


if __name__ == "__main__":
    main(sys.argv[1:])
