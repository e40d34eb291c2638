"""Training: unit models: fit them to measured workloads, and judge them on workloads that they have not seen."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TRAIN, VALIDATION
from foretell.devices import find_device
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.predictors.fitted_files import INDEX, write_fitted
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import (
    CrossFit,
    Settings,
    cross_fit_networks,
    fit_unit_network,
    fit_unit_trees,
    folds_of,
    predict_samples,
)
from foretell.predictors.unit.fit_network import FIT_VERSION
from foretell.predictors.unit.model import UnitModel
from foretell.registry import did_you_mean
from foretell.training.cross_fits import cross_fits
from foretell.training.examples.kernel_labels import LABELS_VERSION
from foretell.training.examples.samples import fingerprint, read_samples
from foretell.training.examples.unit_classes import read_unit_classes
from foretell.training.judging.protocol import (
    METRICS,
    MODES,
    Fitter,
    Predicted,
    Run,
    SamplePredictor,
    compare,
    groups_of,
    is_known,
    run_once,
    sides,
)
from foretell.training.judging.table import page
from foretell.units import seconds_from_ms

Log = Callable[[str], None]
# name of a predictor from outside this package → for a split and a seed, the function that fits it
OtherPredictors = Mapping[str, Callable[[str, int], Fitter]]
SPLITS = ("random", "architecture", "family")
NETWORK, TREES = "unit-network", "unit-trees"
# raise it when baselines, unit models, metrics or the protocol change: finished runs are then repeated
JUDGING_VERSION = 1


def _roofline(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
    # analytic: nothing is fitted
    del train, validation, seed

    def predict(samples: Sequence[Sample]) -> Predicted:
        latency_ms = np.array([sample.roofline_ms for sample in samples])
        power_w = np.array([sample.roofline_w for sample in samples])
        memory_mib = np.array([sample.setting.memory_mib for sample in samples])
        energy_j = np.array([seconds_from_ms(time_ms) for time_ms in latency_ms]) * power_w
        return {"latency_ms": latency_ms, "memory_mib": memory_mib, "power_w": power_w, "energy_j": energy_j}

    return predict


def _unit_trees(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
    # unit models hold out folds of their own, so the validation side is training data, too
    samples = [*train, *validation]
    trees = UnitModel.load(fit_unit_trees(samples, groups_of(samples), Settings(seed=seed)))
    return lambda test: predict_samples(trees, test)


def _unit_network(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
    samples, settings = [*train, *validation], Settings(seed=seed)
    groups = groups_of(samples)
    (fit,) = cross_fit_networks(samples, [folds_of(groups, settings)], settings)
    return _with_network(samples, fit, settings)


def _with_network(samples: Sequence[Sample], fit: CrossFit, settings: Settings) -> SamplePredictor:
    model = UnitModel.load(fit_unit_network(samples, groups_of(samples), fit, settings))
    return lambda test: predict_samples(model, test)


FITTERS: Mapping[str, Fitter] = {
    "roofline": _roofline,
    TREES: _unit_trees,
    NETWORK: _unit_network,
}


def train(
    store: Path,
    device: str,
    cache: Path,
    out: Path,
    *,
    predictor: str = NETWORK,
    seed: int = 0,
    threads: int = 1,
    only_networks: bool = False,
    log: Log,
) -> Path | None:
    """Fit a predictor to everything measured on a device; write the file and its entry in the index.

    Networks are cached in ``cache``. With ``only_networks`` nothing else is fitted: a machine with a GPU can fit them,
    and another one the rest.
    """
    if predictor not in (NETWORK, TREES):
        raise InputError(f"{predictor!r} cannot be fitted.{did_you_mean(predictor, (NETWORK, TREES))}")
    device = find_device(device).id
    samples = read_samples(store, device, cache, log)
    settings, groups = Settings(device=device, seed=seed, threads=threads), groups_of(samples)
    if predictor == TREES:
        data = fit_unit_trees(samples, groups, settings, log)
    else:
        # the name is that of the cache file, which other judgements look for
        folds = {f"all-{seed}": folds_of(groups, settings)}
        (fit,) = _cross_fits(samples, folds, settings, store, device, cache, log).values()
        if only_networks:
            return None
        data = fit_unit_network(samples, groups, fit, settings, log)
    return write_unit_model(out, predictor, device, data)


def write_unit_model(out: Path, predictor: str, device: str, data: bytes) -> Path:
    """Write a fitted predictor, and its entry in the index beside it."""
    file = out / f"{predictor}-{device}.zip"
    write_whole(file, data)
    index_file = out / INDEX
    # entries of other devices and predictors stay
    index = json.loads(index_file.read_text(encoding="utf-8")) if index_file.exists() else {}
    card = UnitModel.load(data).card
    index.setdefault(device, {})[predictor] = {
        "file": file.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "workloads": card["workloads"],
        "held_out": card["held_out"],
        "held_out_by_family": card["held_out_by_family"],
    }
    # the index has the checksum that `shipped` compares
    write_fitted(out, INDEX, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
    return file


def network_folder(store: Path, device: str, cache: Path, **versions: int) -> Path:
    """The folder of cached networks; its name depends on the data and on the versions of the code."""
    return cache / f"networks-{device}-{fingerprint(store, device, **versions)}"


def _cross_fits(
    samples: list[Sample], folds: Mapping[str, NDArray[np.intp]], settings: Settings, store: Path, device: str,
    cache: Path, log: Log,
) -> dict[str, CrossFit]:  # fmt: skip
    files = network_files(store, device, cache, folds)
    return cross_fits(
        samples, folds, settings, files, log, lambda: read_unit_classes(samples, store, device, cache, log)
    )


def network_files(store: Path, device: str, cache: Path, names: Iterable[str]) -> dict[str, Path]:
    """Where the networks of cross-fits are kept, by the names of these."""
    folder = network_folder(store, device, cache, labels=LABELS_VERSION, units=FIT_VERSION)
    return {name: folder / f"{name}.npz" for name in names}


def evaluate(
    names: Sequence[str],
    store: Path,
    device: str,
    cache: Path,
    runs: Path,
    *,
    splits: Sequence[str] = SPLITS,
    seeds: Sequence[int] = range(5),
    only_networks: bool = False,
    others: OtherPredictors | None = None,
    log: Log,
) -> list[Run]:
    """Run every predictor on every split with every seed; runs that were finished before are not repeated.

    The networks of all splits and seeds are fitted first and cached in ``cache``; with ``only_networks``, only that is
    done. ``others`` are predictors from outside, judged beside ours on the same workloads.
    """
    others = others or {}
    for name in names:
        if name not in (*FITTERS, *others):
            raise InputError(f"Unknown predictor {name!r}.{did_you_mean(name, (*FITTERS, *others))}")
    check_splits(splits)
    device = find_device(device).id
    samples = read_samples(store, device, cache, log)
    folder = run_folder(store, device, runs)
    fitters: dict[tuple[str, str, int], Fitter] = {}
    if NETWORK in names:
        missing = [(split, seed) for seed in seeds for split in splits if not is_known(NETWORK, split, seed, folder)]
        fitters |= _network_fitters(samples, missing, store, device, cache, log)
    finished_runs = []
    for seed in seeds if not only_networks else ():
        for split in splits:
            for name in names:
                log(f"{name}, split by {split}, seed {seed}")
                other = others[name](split, seed) if name in others else FITTERS[name]
                # networks were fitted together above; every other predictor is fitted within its run
                fitter = fitters.get((name, split, seed), other)
                finished_runs.append(run_once(name, fitter, samples, split, seed, folder))
    return finished_runs


def check_splits(splits: Sequence[str]) -> None:
    """Refuse the name of a split that does not exist."""
    for split in splits:
        if split not in SPLITS:
            raise InputError(f"Unknown split {split!r}.{did_you_mean(split, SPLITS)}")


def _network_fitters(
    samples: list[Sample], planned: Sequence[tuple[str, int]], store: Path, device: str, cache: Path, log: Log
) -> dict[tuple[str, str, int], Fitter]:
    """For each split and seed a function that fits the rest of the model beside its cached network."""
    folds = {f"{split}-{seed}": folds_within(samples, split, seed) for split, seed in planned}
    cross_fit_of = _cross_fits(samples, folds, Settings(), store, device, cache, log)
    ends = np.cumsum([len(sample.units) for sample in samples])
    rows_of = {one.workload_id: np.arange(end - len(one.units), end) for one, end in zip(samples, ends, strict=True)}

    def fitter(fit: CrossFit) -> Fitter:
        def fit_corrections(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
            samples_seen = [*train, *validation]
            rows = np.concatenate([rows_of[sample.workload_id] for sample in samples_seen])
            return _with_network(samples_seen, CrossFit(fit.predictions.of(rows), fit.network), Settings(seed=seed))

        return fit_corrections

    # `fitter` binds its cross-fit here; a closure in the loop would see only the last one
    return {(NETWORK, split, seed): fitter(cross_fit_of[f"{split}-{seed}"]) for split, seed in planned}


def folds_within(samples: Sequence[Sample], split: str, seed: int) -> NDArray[np.intp]:
    """The fold of each sample of the training and validation sides, −1 for all others."""
    parts = sides(samples, split, seed)
    samples_seen = [*parts[TRAIN], *parts[VALIDATION]]
    folds = folds_of(groups_of(samples_seen), Settings(seed=seed))
    fold_by_id = {sample.workload_id: fold for sample, fold in zip(samples_seen, folds, strict=True)}
    return np.array([fold_by_id.get(sample.workload_id, -1) for sample in samples], dtype=np.intp)


def run_folder(store: Path, device: str, runs: Path) -> Path:
    """The folder of finished runs; its name depends on the data, the device and the version of the judging."""
    return runs / f"{device}-{fingerprint(store, device, judging=JUDGING_VERSION)}"


def finished(store: Path, device: str, runs: Path) -> list[Run]:
    """All finished runs on today's data; predictors from outside come last."""
    folder = run_folder(store, find_device(device).id, runs)
    all_runs = [Run(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    own_predictors = list(FITTERS)

    def sort_key(run: Run) -> tuple[int, int, str, int]:
        name = run.predictor
        return (
            SPLITS.index(run.split),
            own_predictors.index(name) if name in own_predictors else len(own_predictors),
            name,
            run.seed,
        )

    return sorted(all_runs, key=sort_key)


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """Write all tables as Markdown and as JSON."""
    tables = list(_tables(runs))
    text = "# Predictors compared\n\nRemade by `foretell evaluate --report`."
    write_whole(folder / "evaluation.md", page(text, tables))
    rounded = [json.loads(table.to_json(), parse_float=_rounded) for table in tables]
    write_whole(folder / "evaluation.json", json.dumps(rounded, separators=(",", ":")).encode())
    return folder / "evaluation.md"


def _rounded(number: str) -> float:
    """Four digits: seeds differ in the second.

    >>> _rounded("0.3975284978169738")
    0.3975
    """
    return float(f"{float(number):.4g}")


def _tables(runs: Sequence[Run]) -> Iterator[Any]:
    for split in dict.fromkeys(run.split for run in runs):
        for metric in METRICS:
            for mode in MODES:
                table = compare(runs, split, metric, mode)
                if table is not None:
                    yield table
