"""workflows: fit predictors to measured workloads, and judge them on what they have not seen."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.datasets.splits import TRAIN, VALIDATION
from foretell.evaluation.protocol import (
    METRICS,
    MODES,
    Answerer,
    Fitter,
    Predicted,
    Run,
    compare,
    groups_of,
    is_known,
    run_once,
    sides,
)
from foretell.files import write_whole
from foretell.predictors.baselines import GradientBoosting, Linear
from foretell.predictors.sample import Sample
from foretell.predictors.unit_model import UnitModel
from foretell.predictors.unit_model_training import (
    CrossFit,
    Settings,
    cross_fit_networks,
    fit_unit_network,
    fit_unit_trees,
    folds_of,
    predict_samples,
)
from foretell.registry import did_you_mean
from foretell.units import seconds_from_ms
from foretell.workflows.cross_fits import cross_fits
from foretell.workflows.training_set import fingerprint, read_samples

Say = Callable[[str], None]
SPLITS = ("random", "architecture", "family")
NETWORK, TREES = "unit-network", "unit-trees"
_JUDGED_BY = ("predictors", "evaluation/protocol.py", "evaluation/metrics.py", "datasets/splits.py")
_NETWORKS_BY = ("predictors/unit_network_training.py", "predictors/unit_rows.py", "datasets/splits.py")


def _roofline(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    del train, validation, seed

    def answer(samples: Sequence[Sample]) -> Predicted:
        latency_ms = np.array([sample.roofline_ms for sample in samples])
        power_w = np.array([sample.roofline_w for sample in samples])
        memory_mib = np.array([sample.setting.memory_mib for sample in samples])
        energy_j = np.array([seconds_from_ms(time_ms) for time_ms in latency_ms]) * power_w
        return {"latency_ms": latency_ms, "memory_mib": memory_mib, "power_w": power_w, "energy_j": energy_j}

    return answer


def _linear(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    del seed
    return Linear.fit([*_whole(train), *validation]).predict


def _boosting(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    return GradientBoosting.fit([*_whole(train), *validation], seed).predict


def _unit_trees(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    samples = [*train, *validation]
    trees = UnitModel.load(fit_unit_trees(samples, groups_of(samples), Settings(seed=seed)))
    return lambda test: predict_samples(trees, test)


def _unit_network(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    samples, settings = [*train, *validation], Settings(seed=seed)
    groups = groups_of(samples)
    (fit,) = cross_fit_networks(samples, [folds_of(groups, settings)], settings)
    return _with_network(samples, fit, settings)


def _with_network(samples: Sequence[Sample], fit: CrossFit, settings: Settings) -> Answerer:
    model = UnitModel.load(fit_unit_network(samples, groups_of(samples), fit, settings))
    return lambda test: predict_samples(model, test)


def _whole(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.captured]


# those without early stopping learn from the validation side too: it would serve them for nothing else
FITTERS: Mapping[str, Fitter] = {
    "roofline": _roofline,
    "linear": _linear,
    "gradient-boosting": _boosting,
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
    say: Say,
) -> Path | None:
    """Fit a predictor to everything measured on a device; the file is written with its checksum beside it.

    Networks are kept in ``cache``; with ``only_networks`` nothing else is fitted: a machine with an accelerator does
    that, and another one the rest.
    """
    if predictor not in (NETWORK, TREES):
        raise InputError(f"{predictor!r} cannot be fitted and kept.{did_you_mean(predictor, (NETWORK, TREES))}")
    device = find_device(device).id
    samples = read_samples(store, device, cache, say)
    settings, groups = Settings(device=device, seed=seed, threads=threads), groups_of(samples)
    if predictor == TREES:
        data = fit_unit_trees(samples, groups, settings, say)
    else:
        folds = {f"all-{seed}": folds_of(groups, settings)}
        (fit,) = cross_fits(samples, folds, settings, _network_files(store, device, cache, folds), say).values()
        if only_networks:
            return None
        data = fit_unit_network(samples, groups, fit, settings, say)
    file = out / f"{predictor}-{device}.zip"
    write_whole(file, data)
    index_file = out / "index.json"
    index = json.loads(index_file.read_text(encoding="utf-8")) if index_file.exists() else {}
    card = UnitModel.load(data).card
    index.setdefault(device, {})[predictor] = {
        "file": file.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "workloads": card["workloads"],
        "held_out": card["held_out"],
        "held_out_by_family": card["held_out_by_family"],
    }
    write_whole(index_file, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
    return file


def _network_files(store: Path, device: str, cache: Path, names: Iterable[str]) -> dict[str, Path]:
    """Where networks are kept: by the data and the code that make them."""
    made_by = fingerprint(store, *_NETWORKS_BY)
    return {name: cache / f"networks-{device}-{made_by}" / f"{name}.npz" for name in names}


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
    say: Say,
) -> list[Run]:
    """Every predictor on every split with every seed; what is known from an earlier call is not repeated.

    Networks of all splits and seeds are fitted together and kept in ``cache``; with ``only_networks``, only that.
    """
    for name in names:
        if name not in FITTERS:
            raise InputError(f"Unknown predictor {name!r}.{did_you_mean(name, FITTERS)}")
    for split in splits:
        if split not in SPLITS:
            raise InputError(f"Unknown split {split!r}.{did_you_mean(split, SPLITS)}")
    device = find_device(device).id
    samples = read_samples(store, device, cache, say)
    folder = runs / f"{device}-{fingerprint(store, *_JUDGED_BY)}"
    fitters: dict[tuple[str, int], Fitter] = {}
    if NETWORK in names:
        asked = [(split, seed) for seed in seeds for split in splits if not is_known(NETWORK, split, seed, folder)]
        fitters = _network_fitters(samples, asked, store, device, cache, say)
    found = []
    for seed in seeds if not only_networks else ():
        for split in splits:
            for name in names:
                say(f"{name}, split by {split}, seed {seed}")
                fitter = fitters.get((split, seed), FITTERS[name]) if name == NETWORK else FITTERS[name]
                found.append(run_once(name, fitter, samples, split, seed, folder))
    return found


def _network_fitters(
    samples: Sequence[Sample], asked: Sequence[tuple[str, int]], store: Path, device: str, cache: Path, say: Say
) -> dict[tuple[str, int], Fitter]:
    """For each split and seed, what fits the rest beside a network that knows the training side alone."""
    folds = {f"{split}-{seed}": _folds_within(samples, split, seed) for split, seed in asked}
    kept = cross_fits(samples, folds, Settings(), _network_files(store, device, cache, folds), say)
    ends = np.cumsum([len(sample.units) for sample in samples])
    parts = {sample.workload_id: slice(end - len(sample.units), end) for sample, end in zip(samples, ends, strict=True)}

    def fitter(fit: CrossFit) -> Fitter:
        def fit_rest(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
            taught = [*train, *validation]
            log_ratio = np.concatenate([fit.log_ratio[parts[sample.workload_id]] for sample in taught])
            return _with_network(taught, CrossFit(log_ratio, fit.network), Settings(seed=seed))

        return fit_rest

    return {(split, seed): fitter(kept[f"{split}-{seed}"]) for split, seed in asked}


def _folds_within(samples: Sequence[Sample], split: str, seed: int) -> NDArray[np.intp]:
    """The fold of each sample of the training side, −1 for all others."""
    parts = sides(samples, split, seed)
    taught = [*parts[TRAIN], *parts[VALIDATION]]
    folds = folds_of(groups_of(taught), Settings(seed=seed))
    of_sample = {sample.workload_id: fold for sample, fold in zip(taught, folds, strict=True)}
    return np.array([of_sample.get(sample.workload_id, -1) for sample in samples], dtype=np.intp)


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """All tables as Markdown and as JSON."""
    tables = list(_tables(runs))
    text = "# Predictors compared\n\nRemade by `foretell evaluate --report`.\n\n"
    text += "\n\n".join(table.to_markdown() for table in tables) + "\n"
    write_whole(folder / "evaluation.md", text.encode())
    write_whole(
        folder / "evaluation.json", json.dumps([json.loads(table.to_json()) for table in tables], indent=1).encode()
    )
    return folder / "evaluation.md"


def _tables(runs: Sequence[Run]) -> Iterator[Any]:
    for split in dict.fromkeys(run.split for run in runs):
        for metric in METRICS:
            for mode in MODES:
                table = compare(runs, split, metric, mode)
                if table is not None:
                    yield table
