"""Profiling: what the campaign and its workers say to each other, one JSON object a line.

campaign → worker    {"group": {...}, "trace": [...]}     measure or trace these workloads; trace these once measured
worker → campaign    {"event": "ready", ...}              imports are done
                     {"event": "begin", "id": ...}        a workload has been begun: who dies now, dies of it
                     {"event": "record", ...}             a measurement, or why there is none
                     {"event": "trace", ...}              the kernels of one run
                     {"event": "fallback", "id": ...}     cannot be captured: a tracing worker shall measure it
                     {"event": "done", ...}               the group is finished
                     {"event": "poisoned"}                the worker's device context is broken; it ends now
"""

from typing import Any

from foretell.profiling.plan import Limits, Measuring
from foretell.profiling.schedule import Group
from foretell.profiling.workload import workload_from_json

Message = dict[str, Any]


def group_to_json(group: Group, energy: set[str]) -> Message:
    """A group as a worker reads it; ``energy`` names the workloads whose energy is measured."""
    workloads = [{**workload.to_json(), "energy": workload.id in energy} for workload in group.workloads]
    return {"part": group.part, "spec": group.spec, "workloads": workloads, "wanted": group.wanted, "role": group.role}


def group_from_json(values: Message) -> tuple[Group, set[str]]:
    """The group that :func:`group_to_json` wrote."""
    workloads = tuple(workload_from_json(workload) for workload in values["workloads"])
    energy = {workload.id for workload, raw in zip(workloads, values["workloads"]) if raw["energy"]}
    return Group(values["part"], values["spec"], workloads, values["wanted"], values["role"]), energy


def settings_from_json(values: Message) -> tuple[Measuring, Limits]:
    """How to measure, and what to leave out."""
    return Measuring(**values["measuring"]), Limits(**values["limits"])
