"""Workflows: store one measurement, through the same journal and tables as a campaign."""

import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.profiling.campaign.journal import Journal, record_of
from foretell.profiling.single import Request
from foretell.profiling.workload import workload_from_json
from foretell.workflows.data import merge_stores, write_tables

PART = "profile"


def store_single(store: str | Path, spec: str, request: Request, result: Mapping[str, Any]) -> dict[str, int]:
    """Append the result of one request, also a failure; return the number of new rows by table.

    A failure before the input shape was known has no key, so it is not stored.
    """
    if result.get("workload") is None:
        return {}
    workload = workload_from_json(result["workload"])
    # Models of zoos keep their spec; files get one with the hash of their content.
    if workload.spec == request.model:
        workload = replace(workload, spec=spec)
    if ":" not in workload.spec:
        raise InputError(f"{workload.spec!r} cannot be stored: it has no zoo, such as timm:.")
    campaign_id = uuid.uuid4().hex[:12]
    header = {"kind": "campaign", "campaign_id": campaign_id, "runtime": runtime_name(request), "workers": 1}
    line = record_of("measurement", campaign_id, workload, PART, result["status"]) | {"error": result["error"]}
    with tempfile.TemporaryDirectory(prefix="foretell-store-") as folder:
        journal = Journal(Path(folder))
        journal.open()
        try:
            journal.append(header | dict(result["facts"]))
            journal.append(line | dict(result.get("values") or {}))
            if result.get("kernels"):
                trace = {"workload_id": workload.id, "campaign_id": campaign_id, "kernels": result["kernels"]}
                journal.append_trace(trace)
        finally:
            journal.close()
        write_tables(Path(folder))
        return merge_stores([folder], str(store))


def runtime_name(request: Request) -> str:
    """The runtime as campaigns write it: eager PyTorch on a CPU is ``cpu``."""
    return "cpu" if (request.device, request.runtime) == ("cpu", "eager") else request.runtime
