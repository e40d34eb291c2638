"""Training: fills: how the kernels of every traced unit of work fill the device, extracted once and cached.

A trace has the grid, the block, the registers and the shared memory of each kernel. From these follows how many of its
blocks fit on an SM at a time, and so which part of the device it holds while it runs.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import find_device
from foretell.errors import DataError, ForetellError
from foretell.features import Units, extract_units
from foretell.files import write_whole
from foretell.records import Target, Workload
from foretell.training.examples.calls import OPTIMIZER, Call
from foretell.training.examples.graphs import read_graphs
from foretell.training.examples.samples import fingerprint, teaching_rows
from foretell.training.examples.workloads import call_nodes, workload_of
from foretell.training.fusion import fold_of

FILLS_VERSION = 1  # raise it when a unit gets other figures than before
# what one SM of compute capability 8.0 and 9.0 holds (CUDA C++ Programming Guide, table of compute capabilities)
_WARP, _SM_WARPS, _SM_BLOCKS, _SM_REGISTERS, _SM_SHARED_BYTES = 32, 64, 32, 65536, 233472
_REGISTER_UNIT, _BLOCK_SHARED_BYTES = 256, 1024  # registers of a warp are rounded up; the system takes some memory
_PER_GRAPH = 6  # workloads of one graph: more of them are nearly the same rows
_GRID, _BLOCK = ("grid_x", "grid_y", "grid_z"), ("block_x", "block_y", "block_z")
_COLUMNS = ("workload_id", "campaign_id", "op_index", "op", "duration_us", *_GRID, *_BLOCK, "registers", "shared_bytes")

Log = Callable[[str], None]
Values = NDArray[np.float64]
Sums = NDArray[np.float64]  # time, time × fill, time × spread, longest kernel


@dataclass(frozen=True)
class Launches:
    """Units with what their kernels hold, each weighted with time: ``fill`` of the places for blocks, ``spread`` of the
    SMs; ``longest`` is the share of the longest kernel of the unit."""

    features: NDArray[np.float32]
    fill: Values
    spread: Values
    longest: Values
    time_us: Values
    fold: NDArray[np.intp]


def read_launches(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> Launches:
    """The launches of a device's traced units, from the cache where there is one."""
    device = find_device(device).id
    file = cache_file(store, device, cache)
    if not file.exists():
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **vars(_extract(store, device, log)))
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as stored:
        return Launches(**{name: stored[name] for name in stored.files})


def cache_file(store: Path, device: str, cache: Path) -> Path:
    """Where the launches of a store are cached; other records or versions have another name."""
    return cache / f"fills-{device}-{fingerprint(store, device, fills=FILLS_VERSION)}.npz"


def held_by(columns: Mapping[str, NDArray[Any]], sms: int) -> tuple[Values, Values]:
    """For each kernel the share of the places for blocks, and of the SMs, that it fills.

    >>> one = {name: np.array([1]) for name in (*_GRID, *_BLOCK, "registers", "shared_bytes")}
    >>> held_by(one | {"grid_x": np.array([66]), "block_x": np.array([1024])}, 132)
    (array([0.25]), array([0.5]))
    """
    threads = np.prod([columns[name].astype(np.float64) for name in _BLOCK], axis=0)
    blocks = np.prod([columns[name].astype(np.float64) for name in _GRID], axis=0)
    warps = np.maximum(np.ceil(threads / _WARP), 1.0)
    registers = np.ceil(np.maximum(columns["registers"], 1) * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT * warps
    fitting = np.minimum.reduce(
        [
            np.floor(_SM_WARPS / warps),
            np.floor(_SM_REGISTERS / registers),
            np.floor(_SM_SHARED_BYTES / (columns["shared_bytes"].astype(np.float64) + _BLOCK_SHARED_BYTES)),
            np.full(len(warps), float(_SM_BLOCKS)),
        ]
    )
    return np.minimum(blocks / (sms * np.maximum(fitting, 1.0)), 1.0), np.minimum(blocks / sms, 1.0)


def _extract(store: Path, device: str, log: Log) -> Launches:
    place = find_device(device)
    traced = _traced_calls(store, place.sms)
    waiting = teaching_rows(store, device, traced)
    parts, done = [], 0
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key][:_PER_GRAPH]:
            try:
                workload = workload_of(row, graph, Target(place))
                features, sums = _units_held(workload, extract_units(workload), traced[row["workload_id"]])
            except ForetellError as error:
                log(f"left out {row['spec']}: {error}")
                continue
            parts.append((features, sums, np.full(len(sums), fold_of(row["spec"]), np.intp)))
        done += 1
        if done % 500 == 0:
            log(f"launches of {done} of {len(waiting)} models")
    if not parts:
        raise DataError(f"{store} has no traced workload of {device}; name another folder with --store.")
    features, sums, fold = (np.concatenate([part[number] for part in parts]) for number in range(3))
    time_us = sums[:, 0]
    return Launches(features, sums[:, 1] / time_us, sums[:, 2] / time_us, sums[:, 3] / time_us, time_us, fold)


def _traced_calls(store: Path, sms: int) -> dict[str, dict[tuple[str, int], Sums]]:
    """By workload, and by phase and node, the sums over kernels; of a workload traced twice, the first trace."""
    files, nodes = find_files(store), call_nodes(store)
    by_workload: dict[str, dict[tuple[str, int], Sums]] = {}
    for file in files:
        if file.table == "kernels":
            own: dict[tuple[str, str], dict[tuple[str, int], Sums]] = {}
            for workload_id, campaign, number, op, sums in _calls(read_columns(file, _COLUMNS), sms):
                node = nodes.get(workload_id, {}).get(number)
                if node is not None and (node >= 0 or node == OPTIMIZER):
                    phase = "optimizer" if node == OPTIMIZER else Call(number, op, "").phase
                    calls = own.setdefault((workload_id, campaign), {})
                    calls[phase, node] = _added(calls[phase, node], sums) if (phase, node) in calls else sums
            for (workload_id, _), calls in own.items():
                by_workload.setdefault(workload_id, calls)
    return by_workload


def _calls(table: Any, sms: int) -> Any:
    """The sums over the kernels of each call; kernels whose grid was not traced are left out."""
    table = table.filter(table["grid_x"].is_valid())
    numbers = {name: table[name].to_numpy() for name in (*_GRID, *_BLOCK, "registers", "shared_bytes", "duration_us")}
    fill, spread = held_by(numbers, sms)
    time_us = numbers["duration_us"].astype(np.float64)
    keys = [name for name in ("workload_id", "campaign_id", "op_index", "op") if name in table.column_names]
    table = table.select([*keys, "duration_us"])
    for name, values in (("fill", fill * time_us), ("spread", spread * time_us)):
        table = table.append_column(name, [values])
    wanted = [("duration_us", "sum"), ("fill", "sum"), ("spread", "sum"), ("duration_us", "max")]
    # one thread keeps the order of the groups, which decides which campaign comes first
    columns = table.group_by(keys, use_threads=False).aggregate(wanted).to_pydict()
    campaigns = columns.get("campaign_id") or [""] * len(columns["workload_id"])
    sums = np.array([columns["_".join(name)] for name in wanted]).T
    yield from zip(columns["workload_id"], campaigns, columns["op_index"], columns["op"], sums, strict=True)


def _added(one: Sums, other: Sums) -> Sums:
    return np.array([*(one[:3] + other[:3]), max(one[3], other[3])])


def _units_held(
    workload: Workload, units: Units, calls: Mapping[tuple[str, int], Sums]
) -> tuple[NDArray[np.float32], Values]:
    """Features and sums of the distinct units that ran kernels."""
    positions = {node.name: position for position, node in enumerate(workload.graph.nodes)}
    running = workload.running_graph.nodes
    rows: dict[bytes, Sums] = {}
    for number, (phase, members) in enumerate(zip(units.phases, units.nodes, strict=True)):
        # casts that autocast adds are not in the graph that was traced
        places = [OPTIMIZER] if phase == "optimizer" else [positions.get(running[one].name, -1) for one in members]
        found = [calls[phase, place] for place in places if (phase, place) in calls]
        key = units.features[number].tobytes()
        if found and key not in rows:
            total = np.sum(found, axis=0)
            total[3] = max(sums[3] for sums in found)
            if total[0] > 0:
                rows[key] = total
    features = np.frombuffer(b"".join(rows), np.float32).reshape(len(rows), units.features.shape[1])
    return features, np.array(list(rows.values())).reshape(len(rows), 4)
