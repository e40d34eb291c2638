"""Lab: devices to judge ``foretell adapt`` on: measured workloads, and what the base says about their units.

Three kinds. GeForce cards by timm's published results: whole models, whose graphs are those of our own measurements
where image size and mode are the same, described as they ran, under autocast. NeuSight's GPUs: single operators in
fp32, described as for `lab.transfer`. Slices of the H200 as devices of their own, by the `transfer` predictor and the
model of slices.

Describing thousands of units takes minutes, so it is done once; files are named by the versions of what they hold.
"""

import functools
import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.datasets.splits import architecture_of
from foretell.devices import Device, find_device, parse_slice
from foretell.errors import ForetellError
from foretell.features.pooled import POOLED_SCHEMA, Setting, pool
from foretell.features.versions import FEATURES_VERSION
from foretell.files import write_whole
from foretell.optional import require
from foretell.predictors.adapted.base import base_of
from foretell.predictors.adapted.units import Values, Work, described
from foretell.predictors.fitted_files import read_shipped, shipped_index
from foretell.predictors.protocol import Predictor
from foretell.predictors.roofline import CONSTANTS_FROM
from foretell.predictors.slices.model import on_slices
from foretell.predictors.transfer import TransferPredictor
from foretell.predictors.transfer.model import TransferModel, shipped_numbers
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import workload_of
from lab.transfer.examples import Examples
from lab.transfer.fit import fit, read
from lab.transfer.judge import A100S
from lab.transfer.networks import MODELS, Run, workloads
from lab.transfer.tables import NEUSIGHT_SIZES, neusight_graph

VERSION = 6
OPERATORS = 700  # of each of NeuSight's devices
Log = Callable[[str], None]


# of the same software; in the newer run of the 4090 models were re-parameterised before they were measured
_3090, _4090 = "infer-amp-{}-pt240-cu124-rtx3090", "infer-amp-{}-pt240-cu124-rtx4090"
_TRAINED = "train-amp-{}-pt112-cu113-rtx3090"
RUNS: Mapping[str, Run] = {
    "RTX 3090, inference": Run("rtx-3090", "infer_rtx3090", _3090.format("nchw"), as_it_ran=True),
    "RTX 4090, inference": Run("rtx-4090", "infer_rtx4090", _4090.format("nchw"), as_it_ran=True),
    "RTX 3090, channels-last": Run(
        "rtx-3090", "infer_rtx3090", _3090.format("nhwc"), channels_last=True, as_it_ran=True, models=150
    ),
    "RTX 4090, channels-last": Run(
        "rtx-4090", "infer_rtx4090", _4090.format("nhwc"), channels_last=True, as_it_ran=True, models=150
    ),
    "RTX 3090, training": Run("rtx-3090", "train_rtx3090", _TRAINED.format("nchw"), "training"),
    "RTX 3090, training, channels-last": Run(
        "rtx-3090", "train_rtx3090", _TRAINED.format("nhwc"), "training", channels_last=True
    ),
}
NEUSIGHT = {
    "A100-PCIE-40GB": "NVIDIA A100-PCIE-40GB", "V100-PCIE-32GB": "Tesla V100-PCIE-32GB", "T4": "Tesla T4",
    "P100": "Tesla P100-PCIE-16GB", "P4": "Tesla P4",
}  # fmt: skip
SLICES = ("mps:10", "mps:20", "mps:70")
_OVER_LAUNCH = 5.0


@dataclass(frozen=True)
class Judged:
    """The measured workloads of one device: groups that stay together, units, pooled features, logarithms of time.

    ``ratios`` are logarithms of measured over predicted by the base; ``deviation`` is how far off it says it may be.
    """

    name: str
    groups: tuple[str, ...]
    works: tuple[Work, ...]
    pooled: Values
    ratios: Values
    measured_ms: Values
    deviation: float


Case = tuple[str, Workload, float]  # the group, the workload, and its measured milliseconds
BaseOf = Callable[[Workload], Predictor]


def judged_sets(tables: Path, store: Path, cache: Path, log: Log) -> Iterator[Judged]:
    """Every device, from the cache where there is one."""
    base = left_out_base(tables, store, cache)
    for name, cases in measured_cases(tables, store).items():
        yield judged_set(name, cases, cache, log, base)


def left_out_base(tables: Path, store: Path, cache: Path) -> BaseOf:
    """What is adapted: `transfer`, fitted without the device of a workload."""
    return partial(_base, tables, store, cache)


def measured_cases(tables: Path, store: Path) -> dict[str, Callable[[], Iterator[Case]]]:
    """What was measured on every device, by its name."""
    return {
        **{name: partial(_timm, tables / "timm", run, store / "graphs") for name, run in RUNS.items()},
        **{f"{name}, operators": partial(_neusight, tables / "neusight", name_there)
           for name, name_there in NEUSIGHT.items()},
        **{f"H200 {part}": partial(_slices, store, part) for part in SLICES},
    }  # fmt: skip


def judged_set(name: str, cases: Callable[[], Iterator[Case]], cache: Path, log: Log, base: BaseOf) -> Judged:
    """One device, from the cache where there is one; ``base`` gives the predictor that is adapted."""
    # another fit of the base gives other figures
    fits = [read_shipped(file) for file in ("transfer.json", f"slices-{CONSTANTS_FROM}.json")]
    state = (name, VERSION, FEATURES_VERSION, POOLED_SCHEMA, MODELS, OPERATORS, shipped_index()[CONSTANTS_FROM], fits)
    key = hashlib.sha256(repr(state).encode()).hexdigest()
    file = cache / "adapt" / f"{key[:16]}.npz"
    if not file.exists():
        log(f"describing {name}")
        columns = _described(cases(), base, log)
        written = io.BytesIO()
        np.savez_compressed(written, **columns)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, written.getvalue())
    return _judged(name, np.load(file, allow_pickle=False))


def _described(cases: Iterator[Case], base_for: BaseOf, log: Log) -> dict[str, Any]:
    groups, features, sizes, unit_us, counts, bounds, pooled, measured, predicted = ([] for _ in range(9))
    deviation = 0.0
    for group, workload, measured_ms in cases:
        try:
            base = base_of(workload, base_for(workload))
        except ForetellError as error:
            log(f"left out {group}: {str(error)[:80]}")
            continue
        if base is None or base.prediction.latency_ms is None or base.prediction.memory_mib is None:
            continue
        latency = base.prediction.latency_ms
        deviation = stated_deviation(latency.low, latency.value, latency.high)
        groups.append(group)
        features.append(base.distinct.features)
        sizes.append(len(base.distinct))
        unit_us.append(base.unit_us)
        counts.append(base.distinct.counts)
        bounds.append(base.distinct.bound_us)
        pooled.append(pool(base.distinct, base.unit_us, Setting.of(workload, base.prediction.memory_mib.value)))
        measured.append(measured_ms)
        predicted.append(latency.value)
        if len(groups) % 50 == 0:
            log(f"  {len(groups)} workloads")
    return {
        "groups": np.array(groups), "features": np.concatenate(features), "sizes": np.array(sizes),
        "unit_us": np.concatenate(unit_us), "counts": np.concatenate(counts), "bounds": np.concatenate(bounds),
        "pooled": np.array(pooled), "measured": np.array(measured), "predicted": np.array(predicted),
        "deviation": np.array(deviation),
    }  # fmt: skip


def _judged(name: str, stored: Mapping[str, Any]) -> Judged:
    from foretell.features.pooled import DistinctUnits

    ends = np.cumsum(stored["sizes"])
    columns = {column: stored[column] for column in ("features", "counts", "bounds", "unit_us")}
    works = []
    for begin, end in zip(ends - stored["sizes"], ends, strict=True):
        features, counts, bounds, unit_us = (columns[column][begin:end] for column in columns)
        units = DistinctUnits(features, counts, bounds, np.arange(len(counts)))
        works.append(Work(described(units, unit_us), unit_us * counts))
    measured = stored["measured"]
    return Judged(
        name, tuple(map(str, stored["groups"])), tuple(works), stored["pooled"].astype(np.float64),
        np.log(measured / stored["predicted"]), measured, float(stored["deviation"]),
    )  # fmt: skip


def stated_deviation(low: float, value: float, high: float) -> float:
    """The standard deviation, in logarithms, of a base whose interval holds nine in ten."""
    return max(math.log(value / low), math.log(high / value)) / 1.645


def _base(tables: Path, store: Path, cache: Path, workload: Workload) -> Predictor:
    """`transfer`, fitted without the device: the shipped numbers have seen all of these."""
    target = workload.target
    if target.device.id == CONSTANTS_FROM:
        return on_slices(TransferPredictor(), target.device)
    return TransferPredictor(_fitted_without(tables, store, cache, target.device.id))


@functools.cache
def _fitted_without(tables: Path, store: Path, cache: Path, device: str) -> TransferModel:
    shipped = shipped_numbers()
    left_out = A100S if device in A100S else (device,)
    widths = {name: getattr(shipped, name) for name in ("device_width", "unit_width", "far_width", "architectures")}
    return replace(fit(_measured_elsewhere(tables, store, cache), left_out), **widths)


@functools.cache
def _measured_elsewhere(tables: Path, store: Path, cache: Path) -> Examples:
    return read(tables, store, cache)[1]


def _timm(tables: Path, run: Run, graphs: Path) -> Iterator[Case]:
    for _, spec, workload, measured_ms in workloads(tables, graphs, (run,)):
        yield architecture_of(spec), workload, measured_ms


def _neusight(tables: Path, name: str) -> Iterator[Case]:
    table = require("pandas", extra="pandas", purpose="Reading tables").read_parquet(tables / "ops.parquet")
    table = table[(table["Device"] == name) & (table["Latency"] > 0)]
    # the shortest times, 26 µs on an A100, are those of an empty launch: where they are large, little else is measured
    table = table[table["Latency"] >= _OVER_LAUNCH * table["Latency"].quantile(0.01)]
    target = Target(find_device(name))
    # as many of each operator, so that elementwise ones do not crowd out products
    each = OPERATORS // table["OPName"].nunique()
    for operator, rows in table.groupby("OPName"):
        sizes = NEUSIGHT_SIZES.get(str(operator), ("B", "H"))
        for row in rows.sample(min(each, len(rows)), random_state=1).to_dict("records"):
            graph = neusight_graph(str(operator), {size: row[size] for size in sizes})
            shape = "-".join(map(str, graph.tensors["y"].shape))
            yield f"{operator} {shape}", Workload(graph, target, "fp32"), float(row["Latency"])


def _slices(store: Path, text: str) -> Iterator[Case]:
    device: Device = find_device("h200")
    part = parse_slice(text, device)
    percent = float(text.partition(":")[2])
    columns = ("workload_id", "spec", "mode", "optimizer", "dtype", "batch_size", "input_shape", "status", "method",
               "percent", "latency_ms")  # fmt: skip
    rows: dict[str, dict[str, Any]] = {}
    for file in find_files(store):
        if file.table == "slices":
            for row in read_columns(file, columns).to_pylist():
                if row["status"] == "ok" and row["method"] == "mps" and abs(row["percent"] - percent) < 0.5:
                    rows.setdefault(row["workload_id"], row)
    waiting: dict[GraphKey, list[dict[str, Any]]] = {}
    for row in rows.values():
        waiting.setdefault(GraphKey.of(row), []).append(row)
    target = Target(device, part)
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key]:
            yield architecture_of(row["spec"]), workload_of(row, graph, target), float(row["latency_ms"])
