"""A Ray campaign over models that do not exist, on a cluster of two workers; run as a program: OUT MODEL…

``--nodes`` makes a cluster of two machines with one core each in place of one machine with two.
"""

import json
import sys
import time
from pathlib import Path

from foretell.profiling.campaign import schedule
from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.plan import Limits, Measuring, Part, Plan, Workers
from foretell.profiling.campaign.ray_cluster import LOCAL, RayCampaign
from foretell.profiling.zoos.zoo import Entry

PART = Part("fake", 1.0, ("synthetic",), dtypes=("fp32",), batch_sizes=(1, 2, 4), first_batch_sizes=(1,), per_model=2)
PLAN = Plan(1, (PART,), measuring=Measuring(trace_share=0.5), limits=Limits(timeout_s=600.0), workers=Workers(2, 0))
WORKER = (sys.executable, str(Path(__file__).with_name("quick_worker.py")))


class Zoo:
    def __init__(self, names):
        self.names = names

    def entries(self, part, seed):
        return [Entry(f"synthetic:{name}", name.rstrip("0123456789"), (4,)) for name in self.names]


def main(arguments):
    nodes = "--nodes" in arguments
    out, *names = [argument for argument in arguments if argument != "--nodes"]
    schedule.load_zoo = lambda _: Zoo(names)
    address = LOCAL
    if nodes:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        address = cluster.address
    counts = RayCampaign(Job(PLAN, Path(out), "cpu", 1500.0, time.monotonic()), address, WORKER).run()
    if nodes:
        cluster.shutdown()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
