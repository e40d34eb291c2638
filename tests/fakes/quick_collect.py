"""``foretell.collect`` over models that do not exist, with workers that measure nothing.

As a program it waits for folders on standard input and collects each in a fork of its own, so that a run costs no
start: ``OUT STORE BYTES`` begins one, where ``BYTES`` other than 0 is the size at which the disk is full.
"""

import functools
import importlib
import os
import resource
import sys
from pathlib import Path

from foretell.errors import ForetellError
from foretell.profiling.campaign import measurements as campaign
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.plan import read_plan
from foretell.profiling.zoos.zoo import Entry
from foretell.workflows.measure.collect import collect

PLAN = """
seed = 1
[workers]
measure = 2
trace = 1
[measuring]
trace_share = 0.2
[[part]]
name = "fake"
share = 1
zoos = ["synthetic"]
dtypes = ["fp32"]
batch_sizes = [1, 2, 4]
first_batch_sizes = [1]
per_model = 3
"""
WORKER = (sys.executable, str(Path(__file__).with_name("quick_worker.py")))


class QuickZoo:
    names: tuple[str, ...] = tuple(f"model{number}" for number in range(100))

    def entries(self, part, seed):
        return [Entry(f"synthetic:{name}", name.rstrip("0123456789"), (4,)) for name in self.names]


def expected(names=QuickZoo.names):
    """The workloads that the plan asks for."""
    zoo = QuickZoo()
    zoo.names = tuple(names)
    real, schedule.load_zoo = schedule.load_zoo, lambda _: zoo
    path = Path(os.environ["QUICK_PLAN"])
    groups = schedule.make_schedule(read_plan(path)).groups["fake"]
    schedule.load_zoo = real
    return {workload.id for group in groups for workload in group.workloads[: group.target_count]}


def patch(names=QuickZoo.names):
    zoo = QuickZoo()
    zoo.names = tuple(names)
    schedule.load_zoo = lambda _: zoo
    campaign.Campaign = functools.partial(campaign.Campaign, command=WORKER)


def say(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def serve():
    for name in ("duckdb", "pyarrow.parquet", "foretell.workflows.data", "foretell.datasets.parquet_store"):
        importlib.import_module(name)  # once, not in every fork
    patch()
    for line in sys.stdin:
        out, store, full = line.split()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            if int(full):
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(full), resource.RLIM_INFINITY))
            code = 0
            try:
                collect(os.environ["QUICK_PLAN"], out=out, store=store, device="cpu", seconds=60)
            except ForetellError as error:
                sys.stderr.write(f"{error}\n")
                code = 2
            sys.stderr.flush()
            os._exit(code)
        os.setpgid(child, child)
        say(child)
        _, status = os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    serve()
