"""A plan on a Ray cluster of two machines with one core each, one of which is lost; run as a program: PLAN OUT."""

import json
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

from foretell.workflows.many.predict_plan import predict_plan


def main(plan, out):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1)]

    def lose_a_machine(progress):
        if nodes and progress.done:
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    done = predict_plan(Path(plan), out=out, ray=cluster.address, trust=True, on_progress=lose_a_machine)
    sys.stdout.write(json.dumps(done.to_dict() | {"lost_machines": 1 - len(nodes)}) + "\n")
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
