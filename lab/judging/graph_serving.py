"""Lab: graph serving: the papers' graph networks, fitted to all measurements of a device and written as ONNX.

One architecture in seven is held out: it chooses the epoch, and sets the width of the intervals.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.devices import find_device
from foretell.errors import DataError, InputError
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import conformal_quantile
from foretell.predictors.unit.fit_network import default_device
from foretell.training.examples.samples import read_samples
from foretell.training.judging.protocol import sides
from lab.judging.graph_fits import MODES, captured_in, has_truth, progress_of
from lab.judging.graph_set import read_graph_set
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.network import GraphNetwork
from lab.papers.graph_networks.predictor import file_name
from lab.papers.graph_networks.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Encoder, Fitted

Log = Callable[[str], None]
Graphs = Mapping[str, GraphArrays]
_MISS = 0.10
_GENTLER = 0.1  # factor of the learning rate where a network starts from another


def train_graph_network(
    name: str,
    store: Path,
    device: str,
    cache: Path,
    out: Path,
    *,
    seed: int = 0,
    seconds: float | None = None,
    start: Path | None = None,
    log: Log,
) -> list[Path]:
    """Fit a network for each group of modes of the recipe; ``seconds`` limits each, and each encoder separately.

    ``start`` is a written network to start from, with its scales and its encoder: transfer to another device, which
    needs fewer measurements than a fit from random weights.
    """
    device = find_device(device).id
    samples = read_samples(store, device, cache, log)
    graphs = read_graph_set(samples, store, device, cache, log)
    parts = sides(samples, "architecture", seed)
    written, first = [], _read_start(start)
    if first is not None and len(MODES[name]) > 1:
        raise InputError(
            f"{name} has several networks, one for each group of modes; only a single network can be a start."
        )
    for modes in MODES[name]:
        # nothing is judged here: the test side is training data, too
        training, validation = captured_in([*parts[TRAIN], *parts[TEST]], modes), captured_in(parts[VALIDATION], modes)
        data = _fit(name, modes, graphs, training, validation, device, seed, seconds, first, log)
        stem = name if len(MODES[name]) == 1 else f"{name}-{modes[0]}"
        written.append(write_fitted(out, file_name(stem, device), data))
    return written


def _fit(
    name: str,
    modes: Sequence[str],
    graphs: Graphs,
    training: Sequence[Sample],
    validation: Sequence[Sample],
    device: str,
    seed: int,
    seconds: float | None,
    start: "Fitted | None",
    log: Log,
) -> bytes:
    from lab.papers.graph_networks.training import fit

    recipe = find_recipe(name)
    recipe = replace(recipe, targets=tuple(metric for metric in recipe.targets if has_truth(training, metric)))
    if start is not None:
        # the usual rate would destroy what the network has learned
        recipe = replace(recipe, rate=recipe.rate * _GENTLER)
    if not (recipe.targets and validation):
        raise DataError(
            f"{len(training) + len(validation)} workloads are too few to fit {name} to {' and '.join(modes)}."
        )
    torch_device, label = default_device(), f"{name}, {' and '.join(modes)}"
    encoder = None
    if recipe.embedding == "frozen" and start is None:
        encoder = _encoder(recipe, graphs, training, validation, seed, seconds, log)
    fitted = fit(
        [(graphs[sample.workload_id], sample.truth) for sample in training],
        [(graphs[sample.workload_id], sample.truth) for sample in validation],
        recipe,
        seed,
        progress_of(label, log),
        torch_device,
        encoder=encoder,
        start=start,
        seconds=seconds,
    )
    notes = {"device": device, "modes": ",".join(modes), "workloads": str(len(training))}
    # errors are those of the quantised file that is served, not of the weights in memory
    served = GraphNetwork.load(fitted.to_onnx(name, small=True, notes=notes))
    metrics, widths = held_out(served, validation, graphs)
    log(f"{label}: {len(fitted.history)} epochs, held out {', '.join(f'{k} {v:.1%}' for k, v in metrics.items())}")
    notes["widths"] = json.dumps(widths, sort_keys=True)
    return replace(fitted, metrics=metrics).to_onnx(name, small=True, notes=notes)


def _read_start(path: Path | None) -> "Fitted | None":
    """A written network as a start for another fit."""
    if path is None:
        return None
    from lab.papers.graph_networks.training import Fitted

    if not path.is_file():
        raise InputError(f"There is no file {path} to start from; give a network that foretell train wrote.")
    data = path.read_bytes()
    network = GraphNetwork.load(data)
    return Fitted(network.recipe, GraphNetwork.weights_of(data), int(network.notes.get("seed", 0)), network.metrics)


def held_out(
    network: GraphNetwork, samples: Sequence[Sample], graphs: Graphs
) -> tuple[dict[str, float], dict[str, float]]:
    """The mean error of every target, and the log ratio that nine in ten errors stay below."""
    predicted = network.predict([graphs[sample.workload_id] for sample in samples])
    metrics, widths = {}, {}
    for name, values in predicted.items():
        truth = np.array([sample.truth[name] for sample in samples])
        known = np.isfinite(truth)
        if not known.any():
            raise DataError(f"No held-out workload has a measured {name}; measure more.")
        metrics[name] = float(np.abs(values[known] / truth[known] - 1).mean())
        widths[name] = conformal_quantile(np.abs(np.log(values[known] / truth[known])), _MISS)
    return metrics, widths


def _encoder(
    recipe: Recipe,
    graphs: Graphs,
    training: Sequence[Sample],
    validation: Sequence[Sample],
    seed: int,
    seconds: float | None,
    log: Log,
) -> "Encoder":
    from lab.papers.trappm.pretraining import pretrain

    training_graphs, validation_graphs = (
        [graphs[sample.workload_id] for sample in side] for side in (training, validation)
    )
    return pretrain(
        training_graphs, validation_graphs, recipe, seed, progress_of("encoder", log), default_device(), seconds=seconds
    )
