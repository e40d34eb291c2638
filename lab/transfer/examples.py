"""Lab: measurements of other GPUs as arrays: what each unit needs there, and what it takes on the measured device.

One row a distinct unit of a workload. Rows of one measurement lie together; ``first`` says where each begins.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foretell.devices import find_device
from foretell.features import COLUMNS, extract_units
from foretell.features.versions import FEATURES_VERSION
from foretell.files import write_whole
from foretell.predictors.fitted_files import best_fitted
from foretell.predictors.roofline import CONSTANTS_FROM
from foretell.predictors.transfer.predictor import on_source
from foretell.predictors.unit.predictor import shipped
from foretell.records import Target, Workload
from foretell.units import seconds_from_ms, us
from lab.transfer.networks import Run, workloads
from lab.transfer.tables import operators

RUNS = (
    Run("rtx-3090", "infer_rtx3090", "infer-amp-nchw-pt240-cu124-rtx3090", as_it_ran=True),
    Run("rtx-3090", "infer_rtx3090", "infer-amp-nhwc-pt240-cu124-rtx3090", channels_last=True, as_it_ran=True),
    Run("rtx-4090", "infer_rtx4090", "infer-amp-nchw-pt240-cu124-rtx4090", as_it_ran=True),
    Run("rtx-4090", "infer_rtx4090", "infer-amp-nhwc-pt240-cu124-rtx4090", channels_last=True, as_it_ran=True),
    Run("rtx-3090", "train_rtx3090", "train-amp-nchw-pt112-cu113-rtx3090", "training"),
    Run("rtx-3090", "train_rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090", "training", channels_last=True),
)
VERSION = 5  # raise it when examples of the same tables change
OWN = ("compute_us", "memory_us")  # at the peaks of the device


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
    counts, features, times_us, own = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Examples(device_names, sources, names, measured, first, counts, features, times_us, own, np.array(doubts))


def _operators(tables: Path) -> Iterator[tuple[str, str, str, float, Workload]]:
    for each in operators(tables):
        shapes = "-".join("x".join(map(str, each.graph.tensors[name].shape)) for name in each.graph.nodes[0].inputs)
        work = Workload(each.graph, Target(find_device(each.device)), each.dtype)
        yield each.device, each.source, f"{each.graph.nodes[0].op} {shapes}", each.measured_us, work


def _networks(tables: Path, graphs: Path, models: int) -> Iterator[tuple[str, str, str, float, Workload]]:
    runs = [replace(run, models=models) for run in RUNS]
    for run, spec, work, measured_ms in workloads(tables / "timm", graphs, runs):
        kind = f"timm {run.mode}{' channels-last' if run.channels_last else ''}"
        yield run.device, kind, spec, us(seconds_from_ms(measured_ms)), work


def read_examples(tables: Path, cache: Path, *, graphs: Path | None = None, models: int = 0) -> Examples:
    """Operators of the public tables, or ``models`` networks of each run by their ``graphs``; kept in ``cache``."""
    fitted = shipped(CONSTANTS_FROM, best_fitted(CONSTANTS_FROM) or "").card
    state = json.dumps([VERSION, FEATURES_VERSION, models, fitted], sort_keys=True, default=str)
    file = (
        cache
        / f"transfer-{'networks' if graphs else 'operators'}-{hashlib.sha256(state.encode()).hexdigest()[:12]}.npz"
    )
    if not file.is_file():
        found = collected(_networks(tables, graphs, models) if graphs else _operators(tables))
        cache.mkdir(parents=True, exist_ok=True)
        written = io.BytesIO()
        np.savez_compressed(written, **{name: getattr(found, name) for name in Examples.__dataclass_fields__})
        write_whole(file, written.getvalue())
    with np.load(file, allow_pickle=False) as data:
        return Examples(**{name: data[name] for name in Examples.__dataclass_fields__})
