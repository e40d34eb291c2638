"""Rendering: a schedule as Ray placement: a placement group for each GPU, a bundle for each job that may run there.

Ray gives fractions of a GPU: bundles of 0.5 GPU lie two on one. It limits neither memory nor SMs of a job, and knows no
MIG slices; each slice must be started as a GPU of its own (``CUDA_VISIBLE_DEVICES=MIG-…``), as Ray's documentation of
accelerators says. `docs/scheduling.md` has the ten lines that submit such a file.
"""

import json
from collections.abc import Sequence
from typing import Any

from foretell.errors import InputError
from foretell.rendering.svg.gantt import lay_lanes
from foretell.scheduling.cluster import Cluster
from foretell.scheduling.jobs import Run


def ray_placement(cluster: Cluster, runs: Sequence[Run]) -> str:
    """The placement as JSON; ``runs`` are sorted by their start."""
    for run in runs:
        if run.others:
            raise InputError(
                f"A placement group of Ray is one GPU here, and {run.job.profile.name!r} needs {len(run.places)}: "
                "leave out --ray, or such jobs."
            )
    lanes = lay_lanes([(run.place, run.start_s, run.end_s) for run in runs])
    most: dict[int, int] = {}
    for run, lane in zip(runs, lanes, strict=True):
        most[run.place] = max(most.get(run.place, 0), lane + 1)
    groups = {place: number for number, place in enumerate(sorted(most))}
    # fractions of a GPU in Ray have four digits; rounding up would not fit
    share = {place: int(10_000 / count) / 10_000 for place, count in most.items()}
    document: dict[str, Any] = {
        "placement_groups": [
            {
                "name": f"gpu-{cluster.places[place].gpu}-place-{place}",
                "device": cluster.places[place].kind.name,
                "strategy": "STRICT_PACK",
                "bundles": [{"CPU": 1, "GPU": share[place]}] * most[place],
            }
            for place in groups
        ],
        "jobs": [
            {
                "name": run.job.name, "placement_group": groups[run.place], "bundle_index": lane, "num_cpus": 1,
                "num_gpus": share[run.place], "start_s": run.start_s, "end_s": run.end_s,
            }
            for run, lane in zip(runs, lanes, strict=True)
        ],
    }  # fmt: skip
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
