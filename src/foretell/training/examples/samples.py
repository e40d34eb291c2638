"""Training: samples: all measured workloads that may teach, as arrays, extracted once and cached.

Fields of the wild zoo that only judge are left out here, so that no predictor can learn from them.

Extraction takes minutes, reading the cache seconds. The name of the cache file is a hash of the store's files, of the
facts of the device, and of the version of the features, so a stale cache is never read.
"""

import hashlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container
from pathlib import Path

import numpy as np

from foretell.datasets.parquet_files import find_files
from foretell.devices import find_device
from foretell.devices.cpu_runs import ONE_THREAD, CpuRun
from foretell.errors import DataError
from foretell.features.pooled import POOLED_SCHEMA, DistinctUnits, Setting
from foretell.features.versions import FEATURES_VERSION
from foretell.files import write_whole
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.sample import TRUTHS, Sample
from foretell.predictors.unit.pace import reference_ms
from foretell.profiling.zoos.wild.zoo import judges
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey
from foretell.training.examples.workloads import Example, Row, measured_rows, read_examples

_TABLES = ("measurements", "kernels", "kernel_nodes", "graphs")
BENCH = "synthetic-operators"
UNIT_TIMES_VERSION = 2  # raise it when units get other times from the same traces
_WHOLE = ("cuda-graph", "cpu-timer")  # sources of a latency that is one run of the whole model
Log = Callable[[str], None]


def read_samples(
    store: Path,
    device: str,
    cache: Path,
    log: Log = lambda _: None,
    run: CpuRun = ONE_THREAD,
    days: Collection[str] | None = None,
) -> list[Sample]:
    """The samples of a device, from the cache where there is one; it is written completely or not at all.

    On a CPU they are of one kind of ``run``, and measured on some ``days`` where any are given.
    """
    file = cache_file(store, device, cache, run, days)
    if file.exists():
        return load_samples(file)
    failures: Counter[str] = Counter()
    samples: list[Sample] = []
    total = sum(map(teaches, measured_rows(store, run, days).values()))
    for example in read_examples(store, Target(find_device(device)), failures, teaches, run, days):
        other = example.row["device_name"]
        # older measurements have no device name: they are taken to be of this device
        if other and find_device(other).id != device:
            failures[f"measured on {other}"] += 1
            continue
        if not len(example.units):
            failures["nothing of them runs on the device"] += 1
            continue
        samples.append(sample_of(example))
        if len(samples) % 100 == 0:
            log(f"{len(samples)} of {total} workloads read")
    for reason, number in failures.most_common(3):
        log(f"{number} workloads have no features: {reason}")
    if not samples:
        of_run = f" ({run})" if run != ONE_THREAD else ""
        raise DataError(
            f"{store} has no measured workload of {device}{of_run} whose graph is known; name another folder with "
            f"--store. For a few measurements there is foretell adapt --device {device} --from {store}."
        )
    _save(samples, file)
    return samples


def cache_file(
    store: Path, device: str, cache: Path, run: CpuRun = ONE_THREAD, days: Collection[str] | None = None
) -> Path:
    """The file that keeps the samples."""
    part = "" if run == ONE_THREAD else f"-{run.runtime}-{run.threads}"
    part += f"-{'-'.join(sorted(days))}" if days is not None else ""
    return cache / f"samples-{device}{part}-{fingerprint(store, device, unit_times=UNIT_TIMES_VERSION)}.npz"


def teaches(row: Row) -> bool:
    """Whether a predictor may learn from a measured workload."""
    return not judges(row["family"] or "")


def teaching_rows(store: Path, device: str, workload_ids: Container[str]) -> dict[GraphKey, list[Row]]:
    """By graph the measured workloads of a device that teach and are among ``workload_ids``."""
    rows: defaultdict[GraphKey, list[Row]] = defaultdict(list)
    for row in measured_rows(store).values():
        is_own = not row["device_name"] or find_device(row["device_name"]).id == device
        if row["workload_id"] in workload_ids and is_own and teaches(row):
            rows[GraphKey.of(row)].append(row)
    return dict(rows)


def sample_of(example: Example) -> Sample:
    """An example as arrays; equal units are merged and share their time."""
    base = RooflinePredictor().predict(example.workload)
    units = DistinctUnits.of(example.units)
    unit_us = None
    if example.unit_us is not None:
        spent, without = np.zeros(len(units)), np.zeros(len(units))
        # equal units may have different traced times: each gets their mean
        np.add.at(spent, units.member, example.unit_us)
        np.add.at(without, units.member, example.unit_us == 0)
        # where some of them have no kernel, those of the others may be theirs: the time is not known
        unit_us = np.where((without > 0) & (without < units.counts), np.nan, spent / units.counts)
    row = example.row
    pace = _pace(row)
    if unit_us is not None:
        unit_us = unit_us * pace
    return Sample(
        workload_id=row["workload_id"],
        spec=row["spec"],
        family=row["family"],
        setting=Setting.of(example.workload, base.memory_mib.value if base.memory_mib else np.nan),
        units=units,
        unit_us=unit_us,
        roofline_ms=base.latency_ms.value if base.latency_ms else np.nan,
        roofline_w=base.power_w.value if base.power_w else np.nan,
        truth={
            name: float("nan") if row[name] is None else float(row[name]) * (pace if name == "latency_ms" else 1.0)
            for name in TRUTHS
        },
        # sums of kernels (where capture failed) leave out gaps, and a bench is no model
        captured=row["latency_source"] in _WHOLE and row["family"] != BENCH,
    )


def _pace(row: Row) -> float:
    """By how much a time would differ on a processor whose reference product takes as long as usual; 1 on a GPU."""
    measured_ms = row.get("reference_ms")
    return reference_ms(CpuRun.of(row)) / measured_ms if measured_ms else 1.0


def fingerprint(store: Path, device: str, **versions: int) -> str:
    """A hash of the records, of the device's facts and of the features' version, and of further ``versions``.

    Bounds are features, and they follow from the facts of the catalogue: other facts give another fingerprint.
    """
    named = {"features": FEATURES_VERSION, **versions}
    digest = hashlib.sha256(f"{POOLED_SCHEMA} {find_device(device)!r} {sorted(named.items())}".encode())
    for file in sorted(find_files(store), key=lambda file: str(file.path)):
        if file.table in _TABLES:
            # name and size, not content: files of a store are never changed, only added
            digest.update(f"{file.path.relative_to(store)}:{file.path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _save(samples: list[Sample], file: Path) -> None:
    arrays = {
        "sizes": np.array([len(sample.units) for sample in samples]),
        "features": np.concatenate([sample.units.features for sample in samples]),
        "counts": np.concatenate([sample.units.counts for sample in samples]),
        "bound_us": np.concatenate([sample.units.bound_us for sample in samples]),
        "unit_us": np.concatenate([np.full(len(s.units), np.nan) if s.unit_us is None else s.unit_us for s in samples]),
        "facts": np.array([json.dumps(_facts(sample)) for sample in samples]),
    }
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(file, data.getvalue())


def _facts(sample: Sample) -> dict[str, object]:
    setting = sample.setting
    return {
        "id": sample.workload_id, "spec": sample.spec, "family": sample.family, "mode": setting.mode,
        "dtype": setting.dtype, "batch_size": setting.batch_size, "optimizer": setting.optimizer,
        "memory_mib": setting.memory_mib, "roofline_ms": sample.roofline_ms, "roofline_w": sample.roofline_w,
        "truth": sample.truth, "captured": sample.captured, "traced": sample.unit_us is not None,
        "options": setting.options,
    }  # fmt: skip


def load_samples(file: Path) -> list[Sample]:
    """Read the samples of a file that keeps them."""
    with np.load(file, allow_pickle=False) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    ends = np.cumsum(stored["sizes"])
    samples = []
    for start, end, text in zip(ends - stored["sizes"], ends, stored["facts"].tolist(), strict=True):
        facts, part = json.loads(text), slice(int(start), int(end))
        setting = Setting(
            facts["mode"], facts["dtype"], facts["batch_size"], facts["optimizer"], facts["memory_mib"],
            tuple(facts.get("options", ())),
        )  # fmt: skip
        # units in the cache are distinct already: each is a member of its own row
        number = np.arange(len(stored["counts"][part]))
        units = DistinctUnits(stored["features"][part], stored["counts"][part], stored["bound_us"][part], number)
        samples.append(
            Sample(
                facts["id"], facts["spec"], facts["family"], setting, units,
                stored["unit_us"][part] if facts["traced"] else None, facts["roofline_ms"], facts["roofline_w"],
                facts["truth"], facts["captured"],
            )
        )  # fmt: skip
    return samples
