"""Lab: comparison: the papers' predictors beside the product's, on the same splits, seeds and workloads."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.predictors.sample import Sample
from foretell.registry import did_you_mean
from foretell.training import unit_models
from foretell.training.examples.samples import read_samples
from foretell.training.judging.protocol import Fitter, Run, SamplePredictor, is_known
from lab.judging import graph_fits
from lab.judging.graph_fits import Arm, PlannedFit, arms_of, cached_fitter, fit_graph_networks
from lab.judging.graph_processes import Workspace, fit_side_by_side
from lab.judging.graph_set import read_graph_set
from lab.papers.baselines import GradientBoosting, Linear
from lab.papers.graph_networks.arrays import GraphArrays

Log = Callable[[str], None]
GRAPH_NETWORKS = tuple(graph_fits.MODES)


def _linear(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
    del seed
    # least squares has no randomness
    return Linear.fit([*_captured(train), *validation]).predict


def _boosting(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
    return GradientBoosting.fit([*_captured(train), *validation], seed).predict


def _captured(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.captured]


# neither stops early, so the validation side is training data for both
BASELINES: dict[str, Fitter] = {"linear": _linear, "gradient-boosting": _boosting}


def evaluate(
    names: Sequence[str],
    store: Path,
    device: str,
    cache: Path,
    runs: Path,
    *,
    splits: Sequence[str] = unit_models.SPLITS,
    seeds: Sequence[int] = range(5),
    only_networks: bool = False,
    fit_seconds: float | None = None,
    label_shares: Sequence[float] = (),
    processes: int = 1,
    log: Log,
) -> list[Run]:
    """Every predictor on every split with every seed, the product's among them; finished runs are not repeated.

    Each graph network is fitted for at most ``fit_seconds``; ``processes`` are fitted at the same time. With
    ``label_shares``, TraPPM has a row for each share of the training side, with and without pre-training.
    """
    known = (*unit_models.FITTERS, *BASELINES, *GRAPH_NETWORKS)
    for name in names:
        if name not in known:
            raise InputError(f"Unknown predictor {name!r}.{did_you_mean(name, known)}")
    if label_shares and graph_fits.PRETRAINED not in names:
        raise InputError(f"Shares of labels are for {graph_fits.PRETRAINED}: name it, or leave them out.")
    if fit_seconds is not None and not fit_seconds > 0:
        raise InputError(f"Got a limit of {fit_seconds:g} seconds for a fit; give more than 0, or none.")
    unit_models.check_splits(splits)
    device = find_device(device).id
    others: dict[str, Callable[[str, int], Fitter]]
    others = {name: partial(_baseline, fitter) for name, fitter in BASELINES.items()}
    arms = _arms(names, label_shares)
    if arms:
        samples = read_samples(store, device, cache, log)
        network_folder = unit_models.network_folder(store, device, cache, graphs=graph_fits.FIT_VERSION)
        folder = unit_models.run_folder(store, device, runs)
        planned = [PlannedFit(arm, split, seed) for seed in seeds for split in splits for arm in arms.values()]
        missing = [fit for fit in planned if not is_known(fit.arm.title, fit.split, fit.seed, folder)]

        def read_graphs() -> dict[str, GraphArrays]:
            return read_graph_set(samples, store, device, cache, log)

        if processes > 1:
            read_graphs()  # writes the file that all processes read
            fit_side_by_side(missing, Workspace(store, device, cache, network_folder, fit_seconds), processes, log)
        else:
            fit_graph_networks(samples, missing, read_graphs, network_folder, fit_seconds, log)
        for arm in arms.values():
            others[arm.title] = partial(_cached, arm, network_folder)
    # graph networks go by the titles of their arms, such as 'trappm 25%'
    titles = [name for name in names if name not in GRAPH_NETWORKS] + list(arms)
    return unit_models.evaluate(
        titles, store, device, cache, runs, splits=splits, seeds=seeds, only_networks=only_networks, others=others,
        log=log,
    )  # fmt: skip


def _baseline(fitter: Fitter, split: str, seed: int) -> Fitter:
    del split, seed  # a baseline is fitted again within each run
    return fitter


def _cached(arm: Arm, folder: Path, split: str, seed: int) -> Fitter:
    return cached_fitter(PlannedFit(arm, split, seed).file(folder))


def _arms(names: Sequence[str], label_shares: Sequence[float]) -> dict[str, Arm]:
    """The graph networks among some names, by the titles of their rows."""
    arms = (
        arm
        for name in names
        if name in GRAPH_NETWORKS
        for arm in arms_of(name, label_shares if name == graph_fits.PRETRAINED else ())
    )
    return {arm.title: arm for arm in arms}
