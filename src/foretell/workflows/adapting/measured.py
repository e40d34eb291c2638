"""Workflows: measurements to adapt to: from a CSV file, from a store, or as records; each becomes a workload.

All that is cheap is checked before a model is read. A message names the file and the row.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.devices import Device
from foretell.devices.cpu_runs import ONE_THREAD, CpuRun
from foretell.devices.device_file import is_device
from foretell.errors import DataError, ForetellError, InputError
from foretell.graph import Graph
from foretell.records import Measurement, Workload
from foretell.registry import did_you_mean
from foretell.training.examples.graphs import GraphKey, make_graph, read_graphs
from foretell.workflows.workload import load_graph, read_configuration

NEEDED = ("model", "batch_size", "input", "dtype", "mode", "latency_ms")
FURTHER = ("memory_mib", "power_w", "optimizer", "channels_last", "device")
_METRICS = ("latency_ms", "memory_mib", "power_w")
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0", "")
_ROW = ("status", "spec", "input_shape", "mode", "batch_size", "dtype", "optimizer", "channels_last", "runtime",
        "threads", "device_name", "host_cpu", *_METRICS)  # fmt: skip
_LOCAL_ZOOS = ("synthetic:", "wild:", "llm:")
MAX_ROWS = 20_000
Log = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One measurement as a file states it; ``where`` names it in messages."""

    where: str
    model: str
    batch_size: int
    input: str
    dtype: str
    mode: str
    latency_ms: float
    memory_mib: float | None = None
    power_w: float | None = None
    optimizer: str | None = None
    channels_last: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two rows the same workload."""
        return self.model, self.batch_size, self.input, self.dtype, self.mode, self.optimizer, self.channels_last


@dataclass(frozen=True)
class Measured:
    """A measurement with its workload."""

    row: Row
    workload: Workload


def read_measured(
    source: str | Path | Sequence[Measurement],
    device: Device,
    *,
    trust: bool = False,
    log: Log = lambda _: None,
) -> tuple[list[Measured], list[str]]:
    """All measurements of a device in a source, and what was left out."""
    graphs: Mapping[tuple[object, ...], Graph] = {}
    notes: list[str] = []
    if not isinstance(source, str | Path):
        rows = [_of_measurement(number, one, device) for number, one in enumerate(source, 1)]
        where = "the list"
    elif Path(source).is_dir():
        where = str(source)
        rows, graphs, notes = _read_store(Path(source), device)
    else:
        where = str(source)
        rows = _read_csv(Path(source), device)
    if not rows:
        raise DataError(f"{where} has no measurement; a row needs {', '.join(NEEDED)}.")
    if len(rows) > MAX_ROWS:
        raise DataError(f"{where} has {len(rows)} measurements; give at most {MAX_ROWS}.")
    _refuse_repeated(rows)
    return _with_workloads(rows, graphs, device, trust=trust, is_store=bool(graphs) or _is_folder(source), log=log,
                           notes=notes), notes  # fmt: skip


def _is_folder(source: object) -> bool:
    return isinstance(source, str | Path) and Path(source).is_dir()


def _read_csv(path: Path, device: Device) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"Cannot read {path}: {error.strerror}. Give a CSV file, or a folder that foretell profile --store wrote."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a CSV file in UTF-8; its columns are {', '.join(NEEDED)}.") from error
    try:
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True)
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        _check_columns(path, names)
        rows = [_of_fields(f"{path}, row {number}", fields, device) for number, fields in enumerate(reader, 2)]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}.") from error
    return rows


def _check_columns(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if name not in (*NEEDED, *FURTHER):
            hint = did_you_mean(name, (*NEEDED, *FURTHER))
            raise DataError(f"{path}: unknown column {name!r}.{hint} Units are part of the names: ms, MiB, W.")
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise DataError(f"{path}: the column{'s' * (len(missing) > 1)} {', '.join(missing)} missing; a file begins: "
                        f"{','.join(NEEDED)}")  # fmt: skip
    if len(set(names)) < len(names):
        raise DataError(f"{path}: a column appears twice: {', '.join(names)}.")


def _of_fields(where: str, fields: Mapping[str | None, Any], device: Device) -> Row:
    if None in fields or None in fields.values():
        raise DataError(f"{where} has another number of fields than the header; quote a field that has a comma.")
    text = {str(name): str(value).strip() for name, value in fields.items()}
    if text.get("device") and not is_device(text["device"], device):
        raise DataError(f"{where} is of {text['device']}, not of {device.id}: adapt to one device at a time.")
    if not text["model"]:
        raise DataError(f"{where} has no model.")
    metrics = {name: _number(where, name, text[name]) for name in _METRICS if text.get(name)}
    if "latency_ms" not in metrics:
        raise DataError(f"{where} has no latency_ms.")
    flag = text.get("channels_last", "").lower()
    if flag not in (*_TRUE, *_FALSE):
        raise DataError(f"{where}: channels_last is {flag!r}; write true or false.")
    return Row(
        where,
        text["model"],
        _whole(where, text["batch_size"]),
        text["input"],
        text["dtype"] or "fp32",
        text["mode"] or "inference",
        metrics["latency_ms"],
        metrics.get("memory_mib"),
        metrics.get("power_w"),
        text.get("optimizer") or None,
        flag in _TRUE,
    )


def _number(where: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: {name} is {text!r}; write a number without its unit, such as 12.5.") from None
    if not 0 < value < math.inf:
        raise DataError(f"{where}: {name} is {text}; it must be above 0.")
    return value


def _whole(where: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{where}: batch_size is {text!r}; it must be a whole number.") from None


def _of_measurement(number: int, one: Measurement, device: Device) -> Row:
    where = f"measurement {number}"
    if not one.ok or one.latency_ms is None:
        raise InputError(f"{where} ({one.model}) has no latency: {one.error or one.status}.")
    if not is_device(one.device, device):
        raise InputError(f"{where} ({one.model}) is of {one.device}, not of {device.id}.")
    values = {name: estimate.value for name in _METRICS if (estimate := getattr(one, name)) is not None}
    return Row(
        where, one.model, one.batch_size, "x".join(map(str, one.input_shape)), one.dtype, one.mode,
        values["latency_ms"], values.get("memory_mib"), values.get("power_w"), one.optimizer, one.channels_last,
    )  # fmt: skip


def _read_store(folder: Path, device: Device) -> tuple[list[Row], dict[tuple[object, ...], Graph], list[str]]:
    """The measurements of a device in a store; workloads that were measured several times count by their median."""
    found: dict[tuple[object, ...], list[Row]] = {}
    others: dict[str, int] = {}
    hosts: set[str] = set()
    for file in find_files(folder):
        if file.table != "measurements":
            continue
        for place, values in enumerate(read_columns(file, _ROW).to_pylist(), 1):
            if values["status"] != "ok" or not values["latency_ms"]:
                continue
            name = str(values["device_name"] or "")
            if not name or not is_device(name, device):
                others[name or "unknown"] = others.get(name or "unknown", 0) + 1
                continue
            run = CpuRun.of(values)
            if run != ONE_THREAD:  # another program than the one that is predicted
                others[str(run)] = others.get(str(run), 0) + 1
                continue
            hosts.add(str(values["host_cpu"] or ""))
            row = _of_stored(f"{file.path.name}, row {place}", values)
            found.setdefault(row.key, []).append(row)
    if not found:
        has = ", ".join(f"{name} ({count})" for name, count in sorted(others.items())) or "no measurement"
        raise DataError(f"{folder} has no measurement of {device.id}; it has: {has}.")
    if device.is_cpu and len(hosts) > 1:
        raise DataError(
            f"{folder} has measurements of several CPUs ({', '.join(sorted(hosts))}): adapt to one at a time."
        )
    rows = [_median(rows) for rows in found.values()]
    graphs: dict[tuple[object, ...], Graph] = {
        (key.spec, key.input_shape, key.mode): graph for key, _, graph in read_graphs(folder, [_key(r) for r in rows])
    }
    repeated = sum(len(rows) - 1 for rows in found.values())
    notes = [f"{repeated} repeated measurements count by their median"] if repeated else []
    return rows, graphs, notes


def _of_stored(where: str, values: Mapping[str, Any]) -> Row:
    return Row(
        where, values["spec"], int(values["batch_size"]), values["input_shape"], values["dtype"], values["mode"],
        float(values["latency_ms"]), values["memory_mib"], values["power_w"], values["optimizer"] or None,
        bool(values["channels_last"]),
    )  # fmt: skip


def _median(rows: Sequence[Row]) -> Row:
    return sorted(rows, key=lambda row: row.latency_ms)[(len(rows) - 1) // 2]


def _key(row: Row) -> GraphKey:
    return GraphKey(row.model, tuple(int(size) for size in row.input.split("x") if size), row.mode)


def _refuse_repeated(rows: Iterable[Row]) -> None:
    seen: dict[tuple[object, ...], str] = {}
    for row in rows:
        if row.key in seen:
            raise DataError(
                f"{row.where} is the same workload as {seen[row.key].rpartition(', ')[2]} ({row.model}, batch "
                f"{row.batch_size}): give each workload once, with its median."
            )
        seen[row.key] = row.where


def _with_workloads(
    rows: Sequence[Row],
    graphs: Mapping[tuple[object, ...], Graph],
    device: Device,
    *,
    trust: bool,
    is_store: bool,
    log: Log,
    notes: list[str],
) -> list[Measured]:
    """Check every row, then read every model once."""
    configurations = []
    for row in rows:
        try:
            configurations.append(read_configuration(
                device=device, batch_size=row.batch_size, dtype=row.dtype, mode=row.mode, optimizer=row.optimizer,
                channels_last=row.channels_last,
            ))  # fmt: skip
        except ForetellError as error:
            raise DataError(f"{row.where}: {error}") from error
    known: dict[tuple[str, str, str], Graph | str] = {}
    measured = []
    for row, configuration in zip(rows, configurations, strict=True):
        asked = row.model, row.input, row.mode
        if asked not in known:
            log(f"reading {row.model}")
            known[asked] = _graph_or_reason(row, graphs, trust=trust)
        graph = known[asked]
        if isinstance(graph, str):
            # what a campaign measured may not be readable here; what a person wrote into a file should be
            if not is_store:
                raise DataError(f"{row.where}: {row.model} cannot be read: {graph}")
            continue
        try:
            measured.append(Measured(row, configuration.workload(graph.with_batch(row.batch_size))))
        except ForetellError as error:
            raise DataError(f"{row.where}: {row.model}: {error}") from error
    lost = [f"{model} ({graph})" for (model, _, _), graph in known.items() if isinstance(graph, str)]
    if lost:
        notes.append(f"{len(lost)} models could not be read and were left out, such as {lost[0]}")
    if not measured:
        raise DataError(f"None of the {len(rows)} measured models could be read: {lost[0]}")
    return measured


def _graph_or_reason(row: Row, graphs: Mapping[tuple[object, ...], Graph], *, trust: bool) -> Graph | str:
    try:
        stored = graphs.get((row.model, _key(row).input_shape, row.mode)) if graphs else None
        if stored is not None:
            from foretell.graph.ir.passes import normalise

            return normalise(stored)
        if row.model.startswith(_LOCAL_ZOOS) or (row.model.startswith("hf:") and "?" in row.model):
            return make_graph(_key(row))
        return load_graph(row.model, input_shape=row.input or None, mode=row.mode, trust=trust)
    except ForetellError as error:
        return str(error)
