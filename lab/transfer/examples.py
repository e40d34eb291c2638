"""Lab: measurements of other GPUs as arrays: what each unit needs there, and what it takes on the measured device.

One row a distinct unit of a workload. Rows of one measurement lie together; ``first`` says where each begins.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.features import COLUMNS, extract_units
from foretell.features.versions import FEATURES_VERSION
from foretell.predictors.fitted_files import best_fitted
from foretell.predictors.roofline import CONSTANTS_FROM
from foretell.predictors.transfer.predictor import on_source
from foretell.predictors.unit.predictor import shipped
from foretell.records import Target, Workload
from foretell.workflows.workload import load_graph, read_configuration
from lab.transfer.tables import operators

RUNS = (  # device, file, run of timm's results, mode, channels last
    ("rtx-3090", "infer_rtx3090", "infer-amp-nchw-pt240-cu124-rtx3090", "inference", False),
    ("rtx-3090", "infer_rtx3090", "infer-amp-nhwc-pt240-cu124-rtx3090", "inference", True),
    ("rtx-4090", "infer_rtx4090", "infer-amp-nchw-pt291-cu128-4090", "inference", False),
    ("rtx-4090", "infer_rtx4090", "infer-amp-nhwc-pt240-cu124-rtx4090", "inference", True),
    ("rtx-3090", "train_rtx3090", "train-amp-nchw-pt112-cu113-rtx3090", "training", False),
    ("rtx-3090", "train_rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090", "training", True),
)
VERSION = 2  # raise it when examples of the same tables change
OWN = ("compute_us", "memory_us")  # at the peaks of the device
Log = Callable[[str], None]


@dataclass(frozen=True)
class Examples:
    """Measurements on many devices."""

    device: np.ndarray  # of each measurement, as text
    source: np.ndarray
    name: np.ndarray
    measured_us: np.ndarray
    first: np.ndarray  # the row where each measurement begins, and the number of rows
    count: np.ndarray  # of each row: how often the unit occurs
    features: np.ndarray  # COLUMNS on the measured device
    h200_us: np.ndarray  # the time that the fitted network tells
    own: np.ndarray  # OWN on the device itself
    doubt: np.ndarray  # of each measurement: half of the width of the measured device's interval, in log(ratio)

    def __len__(self) -> int:
        return len(self.measured_us)

    @property
    def member(self) -> np.ndarray:
        """The measurement of each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))

    def summed(self, unit_us: np.ndarray) -> np.ndarray:
        """The time of each measurement, from those of units."""
        return np.add.reduceat(unit_us * self.count, self.first[:-1])

    def at(self, keep: np.ndarray) -> "Examples":
        """Some of the measurements."""
        rows = keep[self.member]
        first = np.concatenate([[0], np.cumsum(np.diff(self.first)[keep])])
        return Examples(
            **{name: getattr(self, name)[keep] for name in ("device", "source", "name", "measured_us", "doubt")},
            **{name: getattr(self, name)[rows] for name in ("count", "features", "h200_us", "own")},
            first=first.astype(np.intp),
        )


def joined(first: Examples, second: Examples) -> Examples:
    """Two sets of measurements as one."""
    both = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in Examples.__dataclass_fields__
        if name != "first"
    }
    return Examples(**both, first=np.concatenate([first.first, second.first[1:] + first.first[-1]]))


def _rows(workload: Workload) -> tuple[tuple[np.ndarray, ...], float]:
    """What the units need and take, and how far off the measured device's predictor says it may be."""
    there, known = extract_units(workload), on_source(workload)
    distinct = known.distinct
    # the same unit of the source may differ on the device by the waves of its SMs only, which is not used
    own = np.stack([np.exp2(there.features[:, COLUMNS.index(f"log_{name}")].astype(float)) for name in OWN], axis=1)
    return (distinct.counts, distinct.features, known.prediction.unit_us, own[distinct.first]), known.half_width


def collected(found: Iterable[tuple[str, str, str, float, Workload]]) -> Examples:
    """Measurements as arrays: device, source, name, µs and workload of each."""
    heads: list[tuple[str, str, str, float]] = []
    parts: list[tuple[np.ndarray, ...]] = []
    doubts: list[float] = []
    for device, source, name, measured_us, workload in found:
        heads.append((device, source, name, measured_us))
        rows, doubt = _rows(workload)
        parts.append(rows)
        doubts.append(doubt)
    device_names, sources, names, measured = (np.array(column) for column in zip(*heads, strict=True))
    first = np.concatenate([[0], np.cumsum([len(part[0]) for part in parts])])
    return Examples(
        device_names, sources, names, measured, first,
        *(np.concatenate(column) for column in zip(*parts, strict=True)), doubt=np.array(doubts),
    )  # fmt: skip


def _operators(tables: Path) -> Iterator[tuple[str, str, str, float, Workload]]:
    for each in operators(tables):
        shapes = "-".join("x".join(map(str, each.graph.tensors[name].shape)) for name in each.graph.nodes[0].inputs)
        work = Workload(each.graph, Target(find_device(each.device)), each.dtype)
        yield each.device, each.source, f"{each.graph.nodes[0].op} {shapes}", each.measured_us, work


def _networks(tables: Path, models: int, log: Log) -> Iterator[tuple[str, str, str, float, Workload]]:
    runs = {}
    for device, file, run, mode, channels_last in RUNS:
        table = pd.read_parquet(tables / "timm" / f"{file}.parquet")
        table = table[table["run"] == run].drop_duplicates("model").set_index("model")
        runs[device, mode, channels_last] = table.rename(columns=lambda name: name.partition("_")[2] or name)
    common = sorted(set.intersection(*(set(table.index) for table in runs.values())))
    for model in np.random.default_rng(1).permutation(common)[:models]:
        for (device, mode, channels_last), table in runs.items():
            row = table.loc[model]
            size, batch = int(row["img_size"]), int(row["batch_size"])
            try:
                asked = read_configuration(
                    device=device, batch_size=batch, dtype="fp16", mode=mode, channels_last=channels_last
                )
                graph = load_graph(f"timm:{model}", mode=mode, input_shape=(3, size, size))
                work = asked.workload(graph)
            except (ForetellError, RuntimeError) as error:  # timm of today has not every model of then
                log(f"left out {model}: {str(error)[:100]}")
                break
            kind = f"timm {mode}{' channels-last' if channels_last else ''}"
            yield device, kind, str(model), 1e3 * float(row["step_time"]), work
        log(str(model))


def read_examples(tables: Path, cache: Path, *, models: int = 0, log: Log = print) -> Examples:
    """Operators of the public tables, or networks where ``models`` is their number; kept in the folder ``cache``."""
    fitted = shipped(CONSTANTS_FROM, best_fitted(CONSTANTS_FROM) or "").card
    state = json.dumps([VERSION, FEATURES_VERSION, models, fitted], sort_keys=True, default=str)
    file = (
        cache
        / f"transfer-{'networks' if models else 'operators'}-{hashlib.sha256(state.encode()).hexdigest()[:12]}.npz"
    )
    if not file.is_file():
        found = collected(_networks(tables, models, log) if models else _operators(tables))
        cache.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **{name: getattr(found, name) for name in Examples.__dataclass_fields__})
    with np.load(file, allow_pickle=False) as data:
        return Examples(**{name: data[name] for name in Examples.__dataclass_fields__})
