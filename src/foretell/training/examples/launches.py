"""Training: launches: every kernel that a unit of work launched, and what hardware counters showed of it.

A trace says how each kernel was launched (grid, block, registers, shared memory), how long it took, and which call
launched it. A counter says how full the SMs were. Both list the kernels of a run in order, so they are aligned by grid
and block. Equal launches of equal units are one row. Extraction takes minutes; the result is cached.

Limits: counted workloads without a trace have no rows here, because a counter does not show registers. Kernels that
belong to no unit (the loss function, and calls without a node) are left out.
"""

import difflib
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import TableFile, find_files, read_columns
from foretell.devices import find_device
from foretell.errors import DataError, ForetellError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.files import write_whole
from foretell.predictors.kernels.classes import kernel_class
from foretell.predictors.occupancy.launches import WARP, Launches
from foretell.records import Target, Workload
from foretell.training.examples.calls import OPTIMIZER, Call
from foretell.training.examples.graphs import read_graphs
from foretell.training.examples.kernel_labels import kernel_names
from foretell.training.examples.samples import fingerprint, teaching_rows
from foretell.training.examples.workloads import Row, call_nodes, running_positions, workload_of

LAUNCHES_VERSION = 1  # raise it when a kernel gets another unit, class or counter than before
_GRID = ("grid_x", "grid_y", "grid_z")
_BLOCK = ("block_x", "block_y", "block_z")
_TRACE = (
    "workload_id", "campaign_id", "sequence", "op_index", "op", "name_id", "duration_us", *_GRID, *_BLOCK, "registers",
    "shared_bytes",
)  # fmt: skip
_COUNTED = ("workload_id", "campaign_id", "sequence", "duration_us", "occupancy_pct", *_GRID, *_BLOCK)

Log = Callable[[str], None]
Values = NDArray[np.float64]
Key = tuple[str, float, float, float, float]  # class, blocks, warps, registers, shared bytes
Sums = NDArray[np.float64]  # kernels, time, time under the counter, occupancy times that time
Calls = dict[tuple[str, int], dict[Key, Sums]]  # by phase and node


@dataclass(frozen=True)
class UnitLaunches:
    """Kernels of units: row by row the workload, its distinct unit, the launch, and how many there were.

    ``counted_us`` and ``occupancy_pct`` are NaN where no counter ran. ``time_us`` is the mean of one kernel.
    """

    workload_ids: tuple[str, ...]
    workload: NDArray[np.intp]
    unit: NDArray[np.intp]
    kernels: Values
    counted_us: Values
    occupancy_pct: Values
    launches: Launches
    algorithms: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.workload)


def read_launches(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> UnitLaunches:
    """The kernels of all traced units, from the cache where there is one; it is written completely or not at all."""
    device = find_device(device).id
    file = cache / f"launches-{device}-{_fingerprint(store, device)}.npz"
    if not file.exists():
        _save(_extract(store, device, log), file)
    return _load(file)


def _fingerprint(store: Path, device: str) -> str:
    counted = sum(file.rows for file in find_files(store) if file.table == "occupancy_kernels")
    return fingerprint(store, device, launches=LAUNCHES_VERSION, counted=counted)


def read_counted(store: Path) -> dict[str, Row]:
    """The first successful count of every workload."""
    columns = (
        "workload_id", "spec", "family", "mode", "dtype", "batch_size", "kernels", "occupancy_mean",
        "occupancy_weighted", "status",
    )  # fmt: skip
    rows: dict[str, Row] = {}
    for file in find_files(store):
        if file.table == "occupancy":
            for row in read_columns(file, columns).to_pylist():
                if row["status"] == "ok" and row["occupancy_weighted"]:
                    rows.setdefault(row["workload_id"], row)
    return rows


def _extract(store: Path, device: str, log: Log) -> UnitLaunches:
    traced = _traced(store, log)
    waiting = teaching_rows(store, device, traced)
    total, done, target = sum(map(len, waiting.values())), 0, Target(find_device(device))
    ids, parts = list[str](), list[tuple[int, int, Key, Sums]]()
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting.pop(key):
            done += 1
            try:
                # `pop`: the traces of all workloads fill the memory, and each is needed once
                rows = unit_launches(workload_of(row, graph, target), traced.pop(row["workload_id"]))
            except ForetellError as error:
                log(f"left out {row['spec']}: {error}")
                continue
            if rows:
                parts += [(len(ids), unit, launch, sums) for (unit, launch), sums in rows.items()]
                ids.append(row["workload_id"])
            if done % 500 == 0:
                log(f"{done} of {total} traced workloads read")
    if not parts:
        raise DataError(f"{store} has no traced workload of {device}; name another folder with --store.")
    names, algorithm = np.unique([key[0] for _, _, key, _ in parts], return_inverse=True)
    blocks, warps, registers, shared_bytes = np.array([key[1:] for _, _, key, _ in parts], np.float64).T
    kernels, time_us, counted_us, weighted = np.array([sums for *_, sums in parts]).T
    return UnitLaunches(
        tuple(ids),
        np.array([number for number, *_ in parts], np.intp),
        np.array([unit for _, unit, *_ in parts], np.intp),
        kernels,
        counted_us / kernels,
        weighted / counted_us,
        Launches(blocks, warps, registers, shared_bytes, time_us / kernels, algorithm.astype(np.intp)),
        tuple(names.tolist()),
    )


def unit_launches(workload: Workload, calls: Calls) -> dict[tuple[int, Key], Sums]:
    """The kernels of a workload by distinct unit and launch."""
    units = extract_units(workload)
    if not len(units):
        return {}
    positions, member = running_positions(workload), DistinctUnits.of(units).member.tolist()
    rows: dict[tuple[int, Key], Sums] = {}
    for number, (phase, members) in enumerate(zip(units.phases, units.nodes, strict=True)):
        places = [OPTIMIZER] if phase == "optimizer" else [positions[node] for node in members]
        for place in places:
            for launch, sums in calls.get((phase, place), {}).items():
                key = (member[number], launch)
                rows[key] = rows[key] + sums if key in rows else sums
    return rows


def _traced(store: Path, log: Log) -> dict[str, Calls]:
    """By workload and call the kernels of its first trace, with their counters."""
    files, nodes, counted = find_files(store), call_nodes(store), _counted(store)
    by_workload: dict[str, Calls] = {}
    matched = known = 0
    for file in files:
        if file.table != "kernels":
            continue
        names = {number: _algorithm(name) for number, name in kernel_names(files, file.path.parent).items()}
        for workload_id, trace in _traces(file):
            if workload_id in by_workload or workload_id not in nodes:
                continue
            counters = counted.get(workload_id)
            readings = align(trace, counters) if counters is not None else {}
            matched, known = matched + len(readings), known + (0 if counters is None else len(counters["sequence"]))
            # old traces have no grids: then a later one tells how kernels were launched
            if calls := _calls(trace, names, nodes[workload_id], readings):
                by_workload[workload_id] = calls
    if known:
        log(f"{matched} of {known} counted kernels were found in the traces")
    return by_workload


def _algorithm(name: str) -> str:
    kind = kernel_class(name)
    return f"{kind.library} {kind.algorithm}"


def _traces(file: TableFile) -> Iterator[tuple[str, Mapping[str, Sequence[Any]]]]:
    """The traces of a file, column by column, in the order of the campaigns."""
    table = read_columns(file, _TRACE)
    for rows in _runs(table):
        yield rows["workload_id"][0], rows


def _counted(store: Path) -> dict[str, Mapping[str, Sequence[Any]]]:
    """The counters of each workload, of the first campaign that counted it."""
    counted: dict[str, Mapping[str, Sequence[Any]]] = {}
    for file in find_files(store):
        if file.table == "occupancy_kernels":
            for rows in _runs(read_columns(file, _COUNTED)):
                counted.setdefault(rows["workload_id"][0], rows)
    return counted


def _runs(table: Any) -> Iterator[Mapping[str, Sequence[Any]]]:
    """The rows of each run, sorted by sequence; a file may hold several campaigns."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    campaigns = columns.get("campaign_id") or [""] * table.num_rows
    places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(columns["workload_id"], campaigns, strict=True)):
        places[key].append(place)
    for own in places.values():
        own.sort(key=columns["sequence"].__getitem__)
        yield {name: [values[place] for place in own] for name, values in columns.items()}


def align(trace: Mapping[str, Sequence[Any]], counters: Mapping[str, Sequence[Any]]) -> dict[int, tuple[float, float]]:
    """For places of a trace the duration and the occupancy that a counter showed, by the order of grids and blocks."""
    shapes = [list(zip(*(rows[name] for name in (*_GRID, *_BLOCK)), strict=True)) for rows in (counters, trace)]
    # copies and fills have no grid, and a counter does not see them
    kernels = [place for place, shape in enumerate(shapes[1]) if shape[0]]
    matcher = difflib.SequenceMatcher(None, shapes[0], [shapes[1][place] for place in kernels], autojunk=False)
    return {
        kernels[match.b + offset]: (
            counters["duration_us"][match.a + offset],
            counters["occupancy_pct"][match.a + offset],
        )
        for match in matcher.get_matching_blocks()
        for offset in range(match.size)
    }


def _calls(
    trace: Mapping[str, Sequence[Any]],
    names: Mapping[int, str],
    nodes: Mapping[int, int],
    readings: Mapping[int, tuple[float, float]],
) -> Calls:
    calls: Calls = defaultdict(dict)
    grids = zip(*(trace[name] for name in _GRID), strict=True)
    blocks = zip(*(trace[name] for name in _BLOCK), strict=True)
    rows = zip(trace["op_index"], trace["op"], trace["name_id"], trace["duration_us"], grids, blocks, strict=True)
    for place, (number, op, name, time_us, grid, block) in enumerate(rows):
        node = nodes.get(number, -1)
        if not grid[0] or not (node >= 0 or node == OPTIMIZER):
            continue
        if name not in names:
            raise DataError("A trace has kernels without a name; restore kernel_names.parquet beside it.")
        phase = "optimizer" if node == OPTIMIZER else Call(number, op, "").phase
        counted_us, occupancy_pct = readings.get(place, (np.nan, np.nan))
        launch = (
            names[name],
            float(np.prod(grid, dtype=np.float64)),
            float(-(-int(np.prod(block)) // WARP)),
            float(trace["registers"][place]),
            float(trace["shared_bytes"][place]),
        )
        sums = np.array([1.0, time_us, counted_us, counted_us * occupancy_pct])
        of_call = calls[phase, node]
        of_call[launch] = of_call[launch] + sums if launch in of_call else sums
    return calls


def _save(rows: UnitLaunches, file: Path) -> None:
    data = io.BytesIO()
    flat = vars(rows) | {f"launch_{name}": values for name, values in vars(rows.launches).items()}
    arrays = {name: np.asarray(value) for name, value in flat.items() if name != "launches"}
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(file, data.getvalue())


def _load(file: Path) -> UnitLaunches:
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    names = [name for name in arrays if name.startswith("launch_")]
    launches = Launches(**{name.removeprefix("launch_"): arrays.pop(name) for name in names})
    ids, algorithms = (tuple(arrays.pop(name).tolist()) for name in ("workload_ids", "algorithms"))
    return UnitLaunches(workload_ids=ids, algorithms=algorithms, launches=launches, **arrays)
