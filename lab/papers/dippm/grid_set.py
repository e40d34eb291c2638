"""Lab: the sets of the papers' data in kind: the graphs of a grid's settings, joined with what was measured.

``python -m lab.papers.dippm.grid_set graphs`` makes the graphs of all settings that `lab.papers.dippm.grid` plans; that
takes half an hour of a core, may be stopped, and goes on where it was. ``grid_set pack LINES.jsonl FILE`` writes what
the repository does not have yet into a Parquet file, and ``grid_set join SET`` makes the set: seconds each. With
``--plan steps`` all of them are about the training steps of `lab.papers.trappm.step_grid`.
"""

import argparse
import io
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.datasets.parquet_files import pyarrow
from foretell.devices import find_device
from foretell.errors import DataError, ForetellError
from foretell.files import write_whole
from foretell.optional import require
from foretell.predictors.sample import TRUTHS
from foretell.profiling.workload import Workload
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey, make_graph, without_origins
from foretell.training.examples.workloads import workload_of
from lab.judging.graph_set import Log, pack, unpack
from lab.papers.dippm.grid import INFERENCE, Plan, Row, append_row, read_rows, say, workload_of_row
from lab.papers.dippm.sets import Labelled, family_of, read_set, write_labelled
from lab.papers.dippm.sittings import factors
from lab.papers.graph_networks.arrays import GraphArrays, extract_graph_arrays
from lab.papers.trappm import step_grid

# no table of a store has these names: its readers, and the caches named by its files, do not see them
ROWS, STEP_ROWS = "families.parquet", "steps.parquet"
STORE = Path("data/h200")
_PART_S = 30.0  # a part of the graphs is written after this time
_MOST_ERROR = 60  # characters; the rest of an error is often a dump
_COLUMNS: Mapping[str, str] = {
    "spec": "string", "dtype": "string", "batch_size": "uint16", "side": "uint16", "latency_ms": "float32",
    "latency_cv": "float32", "memory_mib": "float32", "reserved_mib": "float32", "power_w": "float32",
    "energy_j": "float32", "clock_mhz": "uint16", "error": "string", "mode": "string", "optimizer": "string",
}  # fmt: skip
_SPLIT_BYTES = [name for name, kind in _COLUMNS.items() if kind == "float32"]
Planned = Mapping[GraphKey, Sequence[Workload]]


@dataclass(frozen=True)
class Grid:
    """A plan, the name of its files of rows, and the folder of its graphs."""

    plan: Plan
    rows: str
    graphs: Path

    @property
    def measured(self) -> list[Path]:
        """The files of all sittings, the oldest first."""
        return sorted(STORE.glob(f"*/{self.rows}"))


GRIDS: Mapping[str, Grid] = {
    "inference": Grid(INFERENCE, ROWS, Path("out/o/grid-graphs")),
    "steps": Grid(step_grid.PLAN, STEP_ROWS, Path("out/o/step-graphs")),
}


def planned(plan: Plan, names: Sequence[str]) -> Planned:
    """The settings of some models by graph, in rounds: whenever one stops, every model has as many resolutions."""
    rounds: list[tuple[int, float, GraphKey, list[Workload]]] = []
    for name in names:
        own = sorted((w for _, group in plan.groups(name) for w in group), key=lambda w: (w.spec, w.input_shape))
        groups = [list(group) for _, group in itertools.groupby(own, lambda w: (w.spec, w.input_shape))]
        draw = random.Random(name)
        draw.shuffle(groups)
        for number, group in enumerate(groups):
            key = GraphKey(group[0].spec, group[0].input_shape, group[0].mode)
            rounds.append((number, draw.random(), key, group))
    return {key: group for _, _, key, group in sorted(rounds, key=lambda entry: entry[:2])}


def make_graphs(wanted: Planned, folder: Path, device: str, log: Log) -> None:
    """Make the graphs that a folder of parts lacks; they are as those of the store (`lab.judging.graph_set`)."""
    known, made, began = set(read_parts(folder)), dict[str, GraphArrays](), time.monotonic()
    target = Target(find_device(device))
    missing = {key: group for key, group in wanted.items() if not known.issuperset(item.id for item in group)}
    log(f"{len(missing)} of {len(wanted)} graphs are to be made")
    for number, (key, group) in enumerate(missing.items(), 1):
        try:
            graph = without_origins(make_graph(key))
            for item in group:
                row = {"batch_size": item.batch_size, "mode": item.mode, "dtype": item.dtype,
                       "optimizer": item.optimizer}  # fmt: skip
                made[item.id] = extract_graph_arrays(workload_of(row, graph, target))
        except ForetellError as error:
            log(f"{key.spec} {key.input_shape} has no graph: {error}")
        if made and (time.monotonic() - began > _PART_S or number == len(missing)):
            _write_part(folder, made)
            made, began = {}, time.monotonic()
            log(f"{number} of {len(missing)} graphs made")


def _write_part(folder: Path, graphs: Mapping[str, GraphArrays]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **pack(graphs))
    write_whole(folder / f"part-{len(list(folder.glob('part-*.npz'))):04}.npz", data.getvalue())


def read_parts(folder: Path) -> dict[str, GraphArrays]:
    """The graphs in a folder of parts, by workload."""
    graphs: dict[str, GraphArrays] = {}
    for file in sorted(folder.glob("part-*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            graphs |= unpack(stored)
    return graphs


def pack_rows(rows: Sequence[Row], file: Path) -> None:
    """Write the rows of a grid as Parquet, of each setting the one that tells most."""
    ordered = sorted(best_rows(rows).values(), key=lambda row: (row["spec"], row["input_shape"], row["batch_size"]))
    arrow, parquet = pyarrow(), require("pyarrow.parquet", extra="data", purpose="Reading and writing Parquet")
    flat = [row | {"side": row["input_shape"][-1], "error": row.get("error", "")[:_MOST_ERROR] or None}
            for row in ordered]  # fmt: skip
    arrays = [
        arrow.array([row.get(name) for row in flat], type=arrow.type_for_alias(kind)) for name, kind in _COLUMNS.items()
    ]
    data = io.BytesIO()
    parquet.write_table(
        arrow.Table.from_arrays(arrays, names=list(_COLUMNS)), data, compression="zstd", compression_level=19,
        use_dictionary=[name for name in _COLUMNS if name not in _SPLIT_BYTES],
        column_encoding=dict.fromkeys(_SPLIT_BYTES, "BYTE_STREAM_SPLIT"),
    )  # fmt: skip
    write_whole(file, data.getvalue())


def unpack_rows(file: Path) -> list[Row]:
    """The rows that `pack_rows` wrote."""
    parquet = require("pyarrow.parquet", extra="data", purpose="Reading and writing Parquet")
    rows = []
    for stored in parquet.read_table(file).to_pylist():
        side = stored.pop("side")
        rows.append({"input_shape": [3, side, side]} | {name: v for name, v in stored.items() if v is not None})
    return rows


def measured_rows(files: Sequence[Path]) -> list[Row]:
    """The rows of a grid, from the lines of measurements or from Parquet."""
    missing = [str(file) for file in files if not file.exists()]
    if missing or not files:
        raise DataError(
            f"There is no {', '.join(missing) or f'{ROWS} in {STORE}'}. Measure it with python -m "
            "lab.papers.dippm.grid, or name another file."
        )
    return [row for file in files for row in (unpack_rows if file.suffix == ".parquet" else read_rows)(file)]


def of_one_card(files: Sequence[Path], log: Log) -> list[Row]:
    """The rows of a grid's files, with power and energy as the card of the newest sitting would show them."""
    powers: dict[str, dict[str, float]] = {}
    for grid in GRIDS.values():
        for file in grid.measured:
            own = powers.setdefault(file.parent.name, {})
            own |= {workload_of_row(row).id: row["power_w"] for row in unpack_rows(file) if "power_w" in row}
    by_sitting, rows = factors({name: own for name, own in powers.items() if own}), []
    for file in files:
        factor, both = by_sitting.get(file.parent.name, (1.0, 0))
        if factor != 1:
            log(f"power of {file.parent} × {factor:.3f}, by {both} settings that were measured again")
        elif file.parent.name in by_sitting and file.parent.name != max(by_sitting):
            log(f"power of {file.parent} is left as it is: only {both} settings were measured again")
        for row in measured_rows([file]):
            scaled = {name: factor * row[name] for name in ("power_w", "energy_j") if name in row}
            rows.append(row | scaled)
    return rows


def _worth(row: Row) -> int:
    """What a row tells: nothing but that it failed, a time, or a time and energy."""
    return ("latency_ms" in row) + ("energy_j" in row)


def best_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """By workload the first of the rows that tell most."""
    best: dict[str, Row] = {}
    for row in rows:
        if "batch_size" not in row:  # a process that ended
            continue
        key = workload_of_row(row).id
        if key not in best or _worth(row) > _worth(best[key]):
            best[key] = row
    return best


def new_rows(rows: Sequence[Row], known: Sequence[Row]) -> list[Row]:
    """The rows that tell more than others do of their settings, or their power another time."""
    best = best_rows(known)
    return [
        row for key, row in best_rows(rows).items()
        if key not in best or _worth(row) > _worth(best[key]) or _is_another(row, best[key])
    ]  # fmt: skip


def _is_another(row: Row, known: Row) -> bool:
    """Whether power was measured again; stored numbers have seven digits."""
    return "power_w" in row and "power_w" in known and not math.isclose(row["power_w"], known["power_w"], rel_tol=1e-5)


def join(rows: Sequence[Row], graphs: Mapping[str, GraphArrays]) -> list[Labelled]:
    """What was measured and has a graph, each setting once; what was not measured of it is NaN."""
    found: list[Labelled] = []
    for key, row in best_rows(rows).items():
        if "latency_ms" in row and key in graphs:
            spec, truth = row["spec"], {name: float(row.get(name, math.nan)) for name in TRUTHS}
            mode = workload_of_row(row).mode
            found.append(Labelled(key, spec, family_of(spec) or "others", mode, graphs[key], truth))
    return found


def united(first: Sequence[Labelled], second: Sequence[Labelled]) -> list[Labelled]:
    """The rows of two sets; a workload of both is that of the first."""
    known = {row.workload_id for row in first}
    return [*first, *(row for row in second if row.workload_id not in known)]


def main() -> None:
    """Make the graphs, pack what was measured, or join both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    graphs = commands.add_parser("graphs", help="Make the graphs that the folder lacks.")
    packing = commands.add_parser("pack", help="Write lines that the store has not as Parquet.")
    lining = commands.add_parser("lines", help="Write what the store has as lines: a measurement leaves it out.")
    joining = commands.add_parser("join", help="Write the set that the arms are fitted to.")
    packing.add_argument("lines", type=Path, help="The file of python -m lab.papers.dippm.grid.")
    packing.add_argument("file", type=Path, help="The Parquet file.")
    lining.add_argument("lines", type=Path)
    lining.add_argument("--energy", action="store_true", help="Settings with energy, and those that failed, alone.")
    joining.add_argument("set", type=Path)
    joining.add_argument("--also", type=Path, help="A set of lab.papers.dippm.prepare, which comes first.")
    joining.add_argument("--rows", type=Path, nargs="+", help="Lines or Parquet, instead of the rows of the store.")
    for command in (graphs, packing, lining, joining):
        command.add_argument("--plan", choices=list(GRIDS), default="inference", help="Which grid [inference].")
    options = parser.parse_args()
    grid = GRIDS[options.plan]
    if options.command == "graphs":
        make_graphs(planned(grid.plan, grid.plan.names()), grid.graphs, "h200", say)
    elif options.command == "lines":
        options.lines.unlink(missing_ok=True)
        for row in best_rows(measured_rows(grid.measured)).values():
            if not options.energy or "energy_j" in row or "latency_ms" not in row:
                append_row(options.lines, row)
    elif options.command == "pack":
        known = measured_rows(grid.measured) if grid.measured else []
        options.file.parent.mkdir(parents=True, exist_ok=True)
        pack_rows(new_rows(read_rows(options.lines), known), options.file)
        say(f"{len(unpack_rows(options.file))} settings in {options.file.stat().st_size:,} bytes")
    else:
        _join(grid, options)


def _join(grid: Grid, options: argparse.Namespace) -> None:
    rows = measured_rows(options.rows) if options.rows else of_one_card(grid.measured, say)
    labelled = join(rows, read_parts(grid.graphs))
    if not labelled:
        raise DataError(
            f"None of {len(rows)} settings has a graph in {grid.graphs}: make them with python -m "
            f"lab.papers.dippm.grid_set graphs --plan {options.plan}."
        )
    if options.also:
        labelled = united(read_set(options.also), labelled)
    write_labelled(labelled, options.set)
    timed = {workload_of_row(row).id for row in rows if "latency_ms" in row}
    say(f"{len(labelled)} workloads; {sum(row.workload_id in timed for row in labelled)} of {len(timed)} measured "
        "settings have a graph")  # fmt: skip
    families = Counter(family_of(row.spec) or "others" for row in labelled)
    say(", ".join(f"{family} {number}" for family, number in families.most_common()))


if __name__ == "__main__":
    main()
