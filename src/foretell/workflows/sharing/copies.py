"""Workflows: two or three copies of one model on a GPU under MPS, as places where it can be served."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from foretell.advisors.placement import Candidate
from foretell.devices import Device
from foretell.graph import Graph
from foretell.records import Estimate, Target
from foretell.workflows.sharing.group_slowdowns import batch_logs
from foretell.workflows.sharing.launches import describe_launches, measured_model
from foretell.workflows.sharing.share import COUNTS, MPS, slowed_down
from foretell.workflows.workload import Configuration


def is_measured(device: Device) -> bool:
    """Whether somebody measured how this device is shared."""
    return measured_model(device) is not None


def shared_candidates(graph: Graph, device: Device, whole: Sequence[Candidate]) -> Iterator[Candidate]:
    """Several copies on one device, for each candidate that has it for itself.

    Every copy is taken to have work all the time, so its latency is that beside busy others. The energy of copies is
    not known, as that of slices is not.
    """
    model = measured_model(device)
    if model is None or not whole:
        return
    jobs = [
        describe_launches(model, Configuration(Target(device), one.batch_size, one.dtype, "inference").workload(graph))
        for one in whole
    ]
    asked = [(one, job, count) for one, job in zip(whole, jobs, strict=True) for count in COUNTS]
    logs = batch_logs(model, [[job] * count for _, job, count in asked])
    for (one, job, count), (log, *_) in zip(asked, logs, strict=True):
        width = model.width(log)
        slowdown = Estimate(math.exp(log), math.exp(max(log - width, 0.0)), math.exp(log + width))
        # MPS itself makes launches longer, as foretell share says
        alone_ms = one.latency_ms + Estimate(job.mps_ms, job.mps_ms, job.mps_ms)
        yield replace(
            one,
            latency_ms=slowed_down(alone_ms, slowdown),
            need_mib=None if one.need_mib is None else one.need_mib.scaled(count),
            energy_j=None,
            power_w=None,
            copies=count,
            shared_by=MPS,
        )
