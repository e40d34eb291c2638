"""workflows: fit predictors to measured workloads, and judge them on what they have not seen."""

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
from foretell.evaluation.table import page
from foretell.features.graph_arrays import GraphArrays
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
from foretell.predictors.unit_network_training import FIT_VERSION
from foretell.registry import did_you_mean
from foretell.units import seconds_from_ms
from foretell.workflows import graph_fits
from foretell.workflows.cross_fits import cross_fits
from foretell.workflows.graph_crew import Bench, fit_side_by_side
from foretell.workflows.graph_fits import Arm, Asked, arms_of, fit_graph_networks, kept_fitter
from foretell.workflows.graph_set import read_graph_set
from foretell.workflows.kernel_labels import LABELS_VERSION
from foretell.workflows.training_set import fingerprint, read_samples
from foretell.workflows.unit_classes import read_unit_classes

Say = Callable[[str], None]
SPLITS = ("random", "architecture", "family")
NETWORK, TREES = "unit-network", "unit-trees"
GRAPH_NETWORKS = tuple(graph_fits.MODES)
# raise it when baselines, unit models, metrics or the protocol change: finished runs are made again
JUDGING_VERSION = 1


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


# those without early stopping learn from the validation side too: it would serve them for nothing else;
# graph networks are not among them: they need graphs, and hours where there is no accelerator
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
        (fit,) = _cross_fits(samples, folds, settings, store, device, cache, say).values()
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


def _network_folder(store: Path, device: str, cache: Path, **versions: int) -> Path:
    """Where networks are kept: by the data and the versions of what they are made by."""
    return cache / f"networks-{device}-{fingerprint(store, device, **versions)}"


def _cross_fits(
    samples: list[Sample], folds: Mapping[str, NDArray[np.intp]], settings: Settings, store: Path, device: str,
    cache: Path, say: Say,
) -> dict[str, CrossFit]:  # fmt: skip
    files = _network_files(store, device, cache, folds)
    return cross_fits(
        samples, folds, settings, files, say, lambda: read_unit_classes(samples, store, device, cache, say)
    )


def _network_files(store: Path, device: str, cache: Path, names: Iterable[str]) -> dict[str, Path]:
    folder = _network_folder(store, device, cache, labels=LABELS_VERSION, units=FIT_VERSION)
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
    fit_seconds: float | None = None,
    label_shares: Sequence[float] = (),
    processes: int = 1,
    say: Say,
) -> list[Run]:
    """Every predictor on every split with every seed; what is known from an earlier call is not repeated.

    Networks of all splits and seeds are fitted first and kept in ``cache``; with ``only_networks``, only that. Each
    graph network is fitted for ``fit_seconds`` at most, in one of some ``processes`` side by side. With
    ``label_shares`` TraPPM has a row for each share of the training side, with and without pre-training.
    """
    for name in names:
        if name not in (*FITTERS, *GRAPH_NETWORKS):
            raise InputError(f"Unknown predictor {name!r}.{did_you_mean(name, (*FITTERS, *GRAPH_NETWORKS))}")
    if label_shares and graph_fits.PRETRAINED not in names:
        raise InputError(f"Shares of labels are for {graph_fits.PRETRAINED}: name it, or leave them out.")
    if fit_seconds is not None and not fit_seconds > 0:
        raise InputError(f"Got a limit of {fit_seconds:g} seconds for a fit; give more than 0, or none.")
    for split in splits:
        if split not in SPLITS:
            raise InputError(f"Unknown split {split!r}.{did_you_mean(split, SPLITS)}")
    arms = _arms(names, label_shares)
    device = find_device(device).id
    samples = read_samples(store, device, cache, say)
    folder = _run_folder(store, device, runs)
    fitters: dict[tuple[str, str, int], Fitter] = {}
    if NETWORK in names:
        asked = [(split, seed) for seed in seeds for split in splits if not is_known(NETWORK, split, seed, folder)]
        fitters |= _network_fitters(samples, asked, store, device, cache, say)
    if arms:
        kept = _network_folder(store, device, cache, graphs=graph_fits.FIT_VERSION)
        wanted = [Asked(arm, split, seed) for seed in seeds for split in splits for arm in arms.values()]
        new = [each for each in wanted if not is_known(each.arm.title, each.split, each.seed, folder)]

        def read_graphs() -> dict[str, GraphArrays]:
            return read_graph_set(samples, store, device, cache, say)

        if processes > 1:
            read_graphs()  # makes the file that all processes read
            fit_side_by_side(new, Bench(store, device, cache, kept, fit_seconds), processes, say)
        else:
            fit_graph_networks(samples, new, read_graphs, kept, fit_seconds, say)
        fitters |= {(each.arm.title, each.split, each.seed): kept_fitter(each.file(kept)) for each in wanted}
    titles = [name for name in names if name in FITTERS] + list(arms)
    found = []
    for seed in seeds if not only_networks else ():
        for split in splits:
            for title in titles:
                say(f"{title}, split by {split}, seed {seed}")
                fitter = fitters.get((title, split, seed)) or FITTERS[title]
                found.append(run_once(title, fitter, samples, split, seed, folder))
    return found


def _arms(names: Sequence[str], label_shares: Sequence[float]) -> dict[str, Arm]:
    """The graph networks among some names, by the titles of their rows."""
    found = (
        arm
        for name in names
        if name in GRAPH_NETWORKS
        for arm in arms_of(name, label_shares if name == graph_fits.PRETRAINED else ())
    )
    return {arm.title: arm for arm in found}


def _network_fitters(
    samples: list[Sample], asked: Sequence[tuple[str, int]], store: Path, device: str, cache: Path, say: Say
) -> dict[tuple[str, str, int], Fitter]:
    """For each split and seed, what fits the rest beside a network that knows the training side alone."""
    folds = {f"{split}-{seed}": _folds_within(samples, split, seed) for split, seed in asked}
    kept = _cross_fits(samples, folds, Settings(), store, device, cache, say)
    ends = np.cumsum([len(sample.units) for sample in samples])
    parts = {each.workload_id: np.arange(end - len(each.units), end) for each, end in zip(samples, ends, strict=True)}

    def fitter(fit: CrossFit) -> Fitter:
        def fit_rest(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
            taught = [*train, *validation]
            rows = np.concatenate([parts[sample.workload_id] for sample in taught])
            return _with_network(taught, CrossFit(fit.told.of(rows), fit.network), Settings(seed=seed))

        return fit_rest

    return {(NETWORK, split, seed): fitter(kept[f"{split}-{seed}"]) for split, seed in asked}


def _folds_within(samples: Sequence[Sample], split: str, seed: int) -> NDArray[np.intp]:
    """The fold of each sample of the training side, −1 for all others."""
    parts = sides(samples, split, seed)
    taught = [*parts[TRAIN], *parts[VALIDATION]]
    folds = folds_of(groups_of(taught), Settings(seed=seed))
    of_sample = {sample.workload_id: fold for sample, fold in zip(taught, folds, strict=True)}
    return np.array([of_sample.get(sample.workload_id, -1) for sample in samples], dtype=np.intp)


def _run_folder(store: Path, device: str, runs: Path) -> Path:
    return runs / f"{device}-{fingerprint(store, device, judging=JUDGING_VERSION)}"


def finished(store: Path, device: str, runs: Path) -> list[Run]:
    """All runs on the data as it is, whichever call made them: graph networks take many."""
    folder = _run_folder(store, find_device(device).id, runs)
    found = [Run(**json.loads(file.read_text(encoding="utf-8"))) for file in folder.glob("*.json")]
    names = [*FITTERS, *GRAPH_NETWORKS]

    def place(run: Run) -> tuple[int, int, str, int]:
        name = run.predictor.split(" ")[0]  # the share of the labels follows
        return SPLITS.index(run.split), names.index(name) if name in names else len(names), run.predictor, run.seed

    return sorted(found, key=place)


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """All tables as Markdown and as JSON."""
    tables = list(_tables(runs))
    text = "# Predictors compared\n\nRemade by `foretell evaluate --report`."
    write_whole(folder / "evaluation.md", page(text, tables))
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
