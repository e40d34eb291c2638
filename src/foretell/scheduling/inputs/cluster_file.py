"""Scheduling: a cluster from a TOML file of the user: GPUs by catalogue name, their number, how they are shared.

[[gpu]]
device = "h200"
count = 4
share = "mps"          # exclusive (default), mps or time-slicing
max_jobs = 3           # together on one GPU or slice; 2 by default
mig = ["3g.71gb", "3g.71gb"]      # instead of the whole GPU: its slices
slots = 2              # what slot packing offers; 1 by default
"""

from pathlib import Path

from foretell.devices import Device, Slice, device_of, parse_slice
from foretell.errors import DataError, DeviceError
from foretell.registry import did_you_mean
from foretell.scheduling.cluster import EXCLUSIVE, METHODS, Cluster, PlaceKind, build_cluster, kind_name
from foretell.toml_rows import Row, read_own

_KEYS = ("device", "count", "share", "max_jobs", "mig", "slots")
_MOST_GPUS = 100_000
_MAX_JOBS = 2


def read_cluster(path: Path | str) -> Cluster:
    """The cluster of a file."""
    file = read_own(path, "docs/scheduling.md").allow("gpu")
    rows = file.list_of_rows("gpu")
    if not rows:
        raise DataError(f'{file.where}: there is no GPU. Add a table [[gpu]] with device = "h200" and count = 4')
    gpus: list[tuple[PlaceKind, ...]] = []
    for row in rows:
        gpus += [_parts(row.allow(*_KEYS))] * row.count("count", default=1)
        if len(gpus) > _MOST_GPUS:
            raise DataError(f"{row.where}: more than {_MOST_GPUS:,} GPUs; simulate a part of the cluster")
    return build_cluster(gpus)


def _parts(row: Row) -> tuple[PlaceKind, ...]:
    try:
        device = device_of(row.text("device"))
        if device.is_cpu:
            raise DeviceError(f"{device.id} is a CPU; a cluster has GPUs. See: foretell devices")
        parts = _mig_parts(row, device)
    except DeviceError as error:
        raise DataError(f"{row.where}: {error}") from error
    method = row.maybe_text("share") or EXCLUSIVE
    if method not in METHODS:
        raise DataError(f"{row.where}: unknown way to share {method!r}.{did_you_mean(method, METHODS)}")
    most = 1 if method == EXCLUSIVE else row.count("max_jobs", default=_MAX_JOBS)
    slots = row.count("slots", default=1)
    if slots > most:
        raise DataError(f"{row.where}: {slots} slots, but at most {most} jobs together; set share and max_jobs")
    return tuple(PlaceKind(kind_name(device, part, method), device, part, method, most, slots) for part in parts)


def _mig_parts(row: Row, device: Device) -> tuple[Slice | None, ...]:
    """The slices of a GPU; None is the whole."""
    names = row.texts("mig")
    if not names:
        return (None,)
    slices = tuple(parse_slice(f"mig:{name}", device) for name in names)
    for profile in device.mig_profiles:
        if names.count(profile.name) > profile.max_instances:
            raise DeviceError(f"{device.id} holds at most {profile.max_instances} instances of {profile.name}")
    sms, memory_gib = sum(part.sms for part in slices), sum(part.memory_gib for part in slices)
    if sms > device.sms or memory_gib > device.memory_gib:
        raise DeviceError(
            f"the MIG slices need {sms} SMs and {memory_gib:.4g} GiB, but {device.id} has {device.sms} and "
            f"{device.memory_gib:.4g}"
        )
    return slices
