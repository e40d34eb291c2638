"""Rendering: a schedule as Kubernetes manifests, with the resources that NVIDIA's device plugin offers.

A job on a GPU of its own asks for ``nvidia.com/gpu``. Where GPUs are shared, the plugin offers replicas of each under
the name ``nvidia.com/gpu.shared``; a MIG slice is ``nvidia.com/mig-3g.71gb`` (strategy "mixed"). The plugin reads how
it shares from a ConfigMap, which is written too: a configuration for each kind of GPU, chosen by a label of the node.
Manifests are JSON, which kubectl reads like YAML.

Limits: Kubernetes chooses the GPU and the moment. A manifest has the planned ones as annotations, and a job that is
planned to start later is suspended: whoever runs the schedule resumes it. Under MPS the plugin gives each replica an
equal part of the memory and the SMs of its GPU; `notes` names the jobs that need more memory than that.

Source: https://github.com/NVIDIA/k8s-device-plugin, README (v0.17), "Shared Access to GPUs" and "Catalog of Labels".
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from foretell.errors import InputError
from foretell.scheduling.cluster import EXCLUSIVE, MPS, Cluster, PlaceKind
from foretell.scheduling.jobs import Run

IMAGE = "foretell.invalid/replace-with-your-image"
_LONGEST_NAME = 50
_VENDOR = "nvidia.com"
_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def kubernetes_files(cluster: Cluster, runs: Sequence[Run]) -> dict[str, str]:
    """The text of each file: ``jobs.json`` and ``device-plugin.json``."""
    for kind in cluster.kinds:
        if kind.slice is not None and kind.method == MPS:
            raise InputError(f"NVIDIA's device plugin has no MPS on MIG slices ({kind.name}): share by time-slicing.")
    for run in runs:
        kind = cluster.places[run.place].kind
        if run.others and kind.method != EXCLUSIVE:
            raise InputError(
                f"NVIDIA's device plugin gives parts of GPUs where they are shared ({kind.name}): put "
                f"{run.job.profile.name!r}, which needs {len(run.places)} whole ones, on GPUs without share."
            )
    jobs = [_job(number, run, cluster) for number, run in enumerate(runs)]
    documents = {
        "jobs.json": {"apiVersion": "v1", "kind": "List", "items": jobs},
        "device-plugin.json": _device_plugin(cluster),
    }
    return {name: json.dumps(document, indent=1, allow_nan=False) + "\n" for name, document in documents.items()}


def notes(cluster: Cluster, runs: Sequence[Run]) -> list[str]:
    """What the device plugin does otherwise than the schedule assumes."""
    found: dict[str, None] = {}
    for run in runs:
        kind = cluster.places[run.place].kind
        need, part = run.job.profile.demands[kind.name].memory_mib, kind.memory_mib / kind.max_jobs
        if kind.method == MPS and need > part:
            found[
                f"{run.job.profile.name} needs {need:,.0f} MiB; a replica of the device plugin gets {part:,.0f} "
                f"(1/{kind.max_jobs} of {kind.device.id})"
            ] = None
    return list(found)


def resource_name(kind: PlaceKind) -> str:
    """The extended resource that a job at such a place asks for.

    >>> from foretell.devices import find_device, parse_slice
    >>> h200 = find_device("h200")
    >>> part = parse_slice("mig:1g.18gb+me", h200)
    >>> [resource_name(PlaceKind("", h200, None, method, 2)) for method in ("exclusive", "mps")]
    ['nvidia.com/gpu', 'nvidia.com/gpu.shared']
    >>> resource_name(PlaceKind("", h200, part, "exclusive", 1))
    'nvidia.com/mig-1g.18gb.me'
    """
    plain = f"{_VENDOR}/gpu"
    if kind.slice is not None:
        # a name of a resource has no plus sign
        plain = f"{_VENDOR}/mig-{kind.slice.text.removeprefix('mig:').replace('+', '.')}"
    return plain if kind.method == EXCLUSIVE else f"{plain}.shared"


def _job(number: int, run: Run, cluster: Cluster) -> dict[str, Any]:
    place = cluster.places[run.place]
    annotations = {
        "foretell/job": run.job.name,
        "foretell/gpu": str(place.gpu),
        "foretell/start-s": f"{run.start_s:.3f}",
        "foretell/end-s": f"{run.end_s:.3f}",
    }
    if run.others:
        annotations["foretell/gpu"] = ",".join(str(cluster.places[number].gpu) for number in run.places)
    container: dict[str, Any] = {
        "name": "job",
        "image": IMAGE,
        "resources": {"limits": {resource_name(place.kind): len(run.places)}},
    }
    percentage = run.job.profile.percentage
    if percentage is not None and place.kind.method == MPS:
        container["env"] = [{"name": _PERCENTAGE, "value": f"{percentage:g}"}]
    pod = {"restartPolicy": "Never", "nodeSelector": dict(_labels(place.kind)), "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _name(run.job.name, number), "annotations": annotations},
        "spec": {"suspend": run.start_s > 0, "backoffLimit": 0, "template": {"spec": pod}},
    }


def _labels(kind: PlaceKind) -> Iterator[tuple[str, str]]:
    yield f"{_VENDOR}/gpu.product", re.sub(r"[^A-Za-z0-9.]+", "-", kind.device.name).strip("-")
    yield f"{_VENDOR}/device-plugin.config", _configuration_name(kind)


def _configuration_name(kind: PlaceKind) -> str:
    parts = "mig" if kind.slice is not None else "whole"
    return re.sub(r"[^a-z0-9-]+", "-", f"{kind.device.id}-{parts}-{kind.method}-{kind.max_jobs}")


def _device_plugin(cluster: Cluster) -> dict[str, Any]:
    """A ConfigMap with a configuration of the plugin for each kind of GPU."""
    configurations: dict[str, dict[str, Any]] = {}
    for kind in cluster.kinds:
        strategy = "mixed" if kind.slice is not None else "none"
        entry: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": strategy}}
        found = configurations.setdefault(_configuration_name(kind), entry)
        if kind.method != EXCLUSIVE:
            sharing = "mps" if kind.method == MPS else "timeSlicing"
            shared = found.setdefault("sharing", {}).setdefault(sharing, {"renameByDefault": True, "resources": []})
            replicas = {"name": resource_name(kind).removesuffix(".shared"), "replicas": kind.max_jobs}
            shared["resources"].append(replicas)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "foretell-device-plugin", "namespace": "nvidia-device-plugin"},
        "data": {name: json.dumps(entry, indent=1) for name, entry in configurations.items()},
    }


def _name(name: str, number: int) -> str:
    """A name that Kubernetes allows, and no two jobs share.

    >>> _name("timm:resnet50 (B)", 7), _name("***", 8)
    ('timm-resnet50-b-7', 'job-8')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return f"{plain or 'job'}-{number}"
