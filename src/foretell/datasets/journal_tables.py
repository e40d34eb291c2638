"""Datasets: journal tables: the lines of a campaign's journal become Parquet files, one a table. Needs only pyarrow."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from foretell.datasets.old_rows import OldTable, Records, count_records, record_key
from foretell.datasets.parquet_files import TableWriter, arrow_table, rename
from foretell.datasets.schema import BOOL, FLOAT32, FLOAT64, STRING, TABLES, Table, name_number
from foretell.errors import DataError

log = logging.getLogger("foretell.datasets")

Line = Mapping[str, object]
# if a table that exists has records that the journal lacks: refuse, keep them, or allow that they are lost
Fewer = Literal["refuse", "keep", "allow"]

ROWS_AT_ONCE = 200_000
# table of traces → table of the records that they belong to
_RECORDS_OF = {"occupancy_kernels": "occupancy", "compiled_kernels": "compiled"}
_ALIASES = {"campaign": "campaigns", "measurement": "measurements"}


class _TableFile:
    """The rows of one table on their way into its file; a bounded number is in memory."""

    def __init__(self, folder: Path, table: Table) -> None:
        self.table = table
        self.path = folder / f"{table.name}.parquet"
        self.rows = 0
        self._records: Records = Counter()
        self._record_key = record_key(table)
        self._seen: set[object] = set()
        self._columns: dict[str, list[object]] = {name: [] for name in table.columns}
        self._writer: TableWriter | None = None

    def is_new(self, key: object) -> bool:
        """Whether ``key`` was not seen before; the first record of a key wins."""
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def add(self, row: Line, stack: ExitStack) -> None:
        """Add one row, with its values converted to the types of the columns."""
        values = {name: _typed(row.get(name), kind, name) for name, kind in self.table.columns.items()}
        missing = [name for name in self.table.key if values[name] is None]
        if missing:
            raise DataError(f"A record of {self.table.name} lacks {', '.join(missing)}: {str(dict(row))[:120]}")
        if self.is_new(tuple(values[name] for name in self.table.key)):
            self.extend({name: [value] for name, value in values.items()}, 1, stack)

    def extend(self, columns: Mapping[str, list[object]], count: int, stack: ExitStack) -> None:
        """Add many rows at once."""
        for name, values in self._columns.items():
            new_values = columns.get(name, [None] * count)
            if len(new_values) != count:
                raise DataError(
                    f"A trace of {self.table.name} has {len(new_values)} values of {name} for {count} rows."
                )
            values.extend(new_values)
        # the rows that were just added
        added = {name: self._columns[name][-count:] if count else [] for name in self._record_key}
        self._records += count_records(self._record_key, added)
        self.rows += count
        if len(self._columns[self.table.key[0]]) >= ROWS_AT_ONCE:
            self.flush(stack)

    def flush(self, stack: ExitStack) -> None:
        """Write the rows in memory."""
        if self._writer is None:
            self._writer = stack.enter_context(TableWriter(self.path.with_name(self.path.name + ".part"), self.table))
        self._writer.write(arrow_table(self.table, self._columns))
        for values in self._columns.values():
            values.clear()

    def compare(self, old: OldTable, fewer: Fewer, stack: ExitStack) -> None:
        """Refuse to replace a table by one that lacks some of its records, or add them."""
        lost = old.rows_lost(self._records)
        if not lost:
            return
        missing = old.missing(self._records) if fewer == "keep" else None
        if missing is None:
            raise DataError(
                f"{self.path} has {lost:,} rows that the journal lacks: the journal is damaged or cut. Nothing was "
                "changed. foretell data tables --keep-old keeps the rows of both, --allow-fewer gives these rows up."
            )
        log.warning("%s: %d rows that the journal lacks are kept", self.path, lost)
        self.extend(missing, len(missing[self.table.key[0]]), stack)

    def finish(self, stack: ExitStack) -> tuple[Path, Path]:
        """Write the remaining rows; return the partial file and its final path."""
        self.flush(stack)
        assert self._writer is not None
        return self._writer.finish(), self.path


class _Tables:
    """All tables of one journal."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._files: dict[str, _TableFile] = {}
        self._campaigns: dict[str, dict[str, object]] = {}
        # a record that lost its trace is measured again, in another campaign: both are here
        self._fusions: dict[object, list[Line]] = {}
        self._recorded: dict[tuple[str, object], list[Line]] = {}
        self.unknown: Counter[str] = Counter()

    def __getitem__(self, name: str) -> _TableFile:
        if name not in self._files:
            self._files[name] = _TableFile(self._folder, TABLES[name])
        return self._files[name]

    def add(self, line: Line) -> None:
        """Add one line of the journal, from whichever of its files."""
        kind = str(line.get("kind", "kernels"))
        kind = _ALIASES.get(kind, kind)
        # a method _add_<kind> where the lines are not simply rows of a table
        special: Callable[[Line], None] | None = getattr(self, f"_add_{kind}", None)
        if special is not None:
            special(line)
        elif kind in TABLES:
            self._add_rows(kind, self._with_campaign(line))
        else:
            self.unknown[kind] += 1

    def _with_campaign(self, line: Line) -> dict[str, object]:
        """The line with a campaign: its own, or the first of the journal, which resuming does not change."""
        return {"campaign_id": next(iter(self._campaigns), "unknown")} | dict(line)

    def _add_rows(self, name: str, line: Line) -> None:
        """Add one row, or as many rows as its columns have values."""
        file = self[name]
        values = line.get(file.table.key[-1])
        if not isinstance(values, list):
            file.add(line, self._stack)
        # a line with lists stands for many rows: the key without its last part identifies the line
        elif file.is_new(tuple(line.get(column) for column in file.table.key[:-1])):
            count = len(values)
            columns = {k: v if isinstance(v, list) else [v] * count for k, v in line.items()}
            file.extend(columns, count, self._stack)

    def _add_campaigns(self, line: Line) -> None:
        self._campaigns[str(line["campaign_id"])] = dict(line)
        self["campaigns"].add(line, self._stack)

    def _add_measurements(self, line: Line) -> None:
        line = self._with_campaign(line)
        zoo, _, rest = str(line.get("spec", "")).partition(":")
        facts = self._campaigns.get(str(line["campaign_id"]), {})
        row = facts | {"zoo": zoo, "name": rest.partition("?")[0]} | line
        self["measurements"].add(row, self._stack)

    def _add_kernels(self, line: Line) -> None:
        self._add_launches("kernels", line)

    def _add_occupancy_kernels(self, line: Line) -> None:
        self._add_launches("occupancy_kernels", line)

    def _add_compiled_kernels(self, line: Line) -> None:
        self._add_launches("compiled_kernels", line)

    def _add_launches(self, name: str, line: Line) -> None:
        file, workload_id, kernels = self[name], line["workload_id"], line["kernels"]
        if not isinstance(kernels, dict):
            raise DataError(f"A trace of {workload_id} has no kernels: {str(kernels)[:80]}")
        records = self._recorded.get((_RECORDS_OF.get(name, ""), workload_id), [])
        if _record_of(line, records) is None or not file.is_new(workload_id):
            return
        columns: dict[str, list[object]] = dict(kernels)
        names = columns["name"]
        count = len(names)
        columns["campaign_id"] = [self._with_campaign(line)["campaign_id"]] * count
        columns["workload_id"] = [workload_id] * count
        columns["sequence"] = list(range(count))
        for shape in ("grid", "block"):
            for axis, letter in enumerate("xyz"):
                columns[f"{shape}_{letter}"] = [_size(dims, axis) for dims in columns[shape]]
        if name == "kernels":
            for kernel in dict.fromkeys(names):
                self["kernel_names"].add({"name_id": name_number(str(kernel)), "name": kernel}, self._stack)
            columns["name_id"] = [name_number(str(kernel)) for kernel in names]
        file.extend(columns, count, self._stack)

    def _add_occupancy(self, line: Line) -> None:
        self._add_recorded("occupancy", line)

    def _add_compiled(self, line: Line) -> None:
        self._add_recorded("compiled", line)

    def _add_recorded(self, name: str, line: Line) -> None:
        row = self._with_campaign(line)
        self._recorded.setdefault((name, row["workload_id"]), []).append(row)
        self[name].add(row, self._stack)

    def _add_fusion_graphs(self, line: Line) -> None:
        row = self._with_campaign(line)
        row.setdefault("host", self._campaigns.get(str(row["campaign_id"]), {}).get("host"))
        self._fusions.setdefault(row["fusion_id"], []).append(row)
        self["fusion_graphs"].add(row, self._stack)

    def _add_fusion_nodes(self, line: Line) -> None:
        fusion = _record_of(line, self._fusions.get(line["fusion_id"], []))
        if fusion is None:
            return
        ends = {name: self._with_campaign(line)[name] for name in ("fusion_id", "campaign_id")}
        ends["campaign_id"] = fusion.get("campaign_id") or ends["campaign_id"]
        if self["fusion_nodes"].is_new(line["fusion_id"]):
            for name, part, first in (("fusion_nodes", "nodes", "name"), ("fusion_edges", "edges", "source")):
                columns: Any = dict(line.get(part) or {first: []})  # type: ignore[call-overload]
                count = len(columns[first])
                columns |= {key: [value] * count for key, value in ends.items()}
                if name == "fusion_nodes":
                    columns["node"] = list(range(count))
                self[name].extend(columns, count, self._stack)
        if line.get("graph") is not None:
            document = _text(line["graph"])
            facts = dict(fusion) | dict(line) | {"document": document, "campaign_id": ends["campaign_id"]}
            self._add_graphs(facts | {"nodes": facts.get("nodes") if isinstance(facts.get("nodes"), int) else None})

    def _add_graphs(self, line: Line) -> None:
        row = self._with_campaign(line)
        document = row["document"] = _text(row["document"])
        row |= {"spec": row.get("spec") or "", "mode": row.get("mode") or "inference"}
        row["graph_hash"] = row.get("graph_hash") or hashlib.sha256(document.encode()).hexdigest()
        if row.get("nodes") is None:
            nodes = json.loads(document).get("nodes")
            row["nodes"] = len(nodes) if isinstance(nodes, list) else None
        self["graphs"].add(row, self._stack)

    def finish(self, fewer: Fewer) -> dict[str, int]:
        """Write everything, and only then give the files their names."""
        if fewer != "allow":
            for file in self._files.values():
                if file.rows and file.path.exists():
                    file.compare(OldTable(file.path), fewer, self._stack)
        # all files are complete before the first one gets its name
        written = [file.finish(self._stack) for file in self._files.values() if file.rows]
        for partial, path in written:
            rename(partial, path)
        rows = {name: file.rows for name, file in self._files.items() if file.rows}
        return rows | {f"not written: {kind}": count for kind, count in self.unknown.items()}


def write_tables(
    folder: Path, records: Iterable[Line], traces: Iterable[Line], *, fewer: Fewer = "refuse"
) -> dict[str, int]:
    """Write the tables of a journal's lines into ``folder``; return the number of rows of each.

    A line of an unknown kind is counted under ``not written: KIND``; the journal still has it. ``fewer`` says what
    happens if a table that exists has records that the journal lacks.
    """
    with ExitStack() as stack:
        tables = _Tables(folder, stack)
        for lines in (records, traces):
            for line in lines:
                tables.add(line)
        return tables.finish(fewer)


def _record_of(trace: Line, records: Sequence[Line]) -> Line | None:
    """The record that a trace belongs to: empty where there is none; None where all come from other campaigns.

    A campaign that was killed may have written the trace but not the record, which a later campaign then wrote.
    """
    own = (record for record in records if trace.get("campaign_id") in (None, record.get("campaign_id")))
    return next(own, None if records else {})


def _typed(value: object, kind: str, name: str) -> object:
    if value is None:
        return None
    try:
        if kind == STRING:
            return "x".join(map(str, value)) if isinstance(value, list | tuple) else _text(value)
        if kind == BOOL:
            return bool(value)
        return float(str(value)) if kind in (FLOAT32, FLOAT64) else _integer(value)
    except (ValueError, OverflowError) as error:
        raise DataError(f"A record has {name} {value!r}: it must be a value of type {kind}.") from error


def _integer(value: object) -> int:
    return value if isinstance(value, int) else int(float(str(value)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=isinstance(value, dict), default=str)


def _size(dims: object, axis: int) -> int:
    return int(dims[axis]) if isinstance(dims, list | tuple) and axis < len(dims) else 0
