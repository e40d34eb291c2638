"""A campaign over models that do not exist, with workers that measure nothing: what is left is the bookkeeping."""

import sys
import time
from dataclasses import replace
from pathlib import Path

from foretell.datasets.journal_tables import write_tables
from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records, read_traces
from foretell.profiling.campaign.measurements import Campaign
from foretell.profiling.campaign.plan import Limits, Measuring, Part, Plan, Workers
from foretell.profiling.zoos.zoo import Entry

PART = Part("fake", 1.0, ("synthetic",), dtypes=("fp32",), batch_sizes=(1, 2, 4), first_batch_sizes=(1,), per_model=3)
PLAN = Plan(
    seed=1,
    parts=(PART,),
    measuring=Measuring(energy_share=0.5, trace_share=0.5),
    limits=Limits(timeout_s=600.0),
    workers=Workers(measure=2, trace=1),
)
IMPATIENT = replace(PLAN, limits=Limits(timeout_s=3.0))  # where a worker hangs
WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


class FakeZoo:
    names: tuple[str, ...] = tuple(f"model{number}" for number in range(40))

    def entries(self, part, seed):
        return [Entry(f"synthetic:{name}", name.rstrip("0123456789"), (4,)) for name in self.names]


def run(
    out,
    names=FakeZoo.names,
    seconds=600.0,
    skip=(),
    limit=0,
    again=0,
    on_progress=lambda _: None,
    began=None,
    plan=PLAN,
):
    zoo = FakeZoo()
    zoo.names = tuple(names)
    schedule.load_zoo = lambda _: zoo
    places = tuple(Path(path) for path in skip)
    job = Job(plan, Path(out), "cpu", seconds, began or time.monotonic(), places, "", limit, again, on_progress)
    campaign = Campaign(job, WORKER)
    campaign.run()
    return campaign, write_tables(Path(out), read_records(Path(out)), read_traces(Path(out)))


if __name__ == "__main__":
    run(sys.argv[1])
