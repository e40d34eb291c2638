"""Lab: the study of flattened graphs, on our measurements: latency of random networks (figures 3 to 8), by linear
regression, the paper's network with its search over depths, and ours. `slowdowns` has figure 9.

Latency: random plain networks and random CNNs, each alone and both together, split 80-10-10 at random, as in the paper:
every random network is an architecture of its own. Ours is the product's fit of units (trees) to the same training
side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, fit_unit_trees, predict_samples
from foretell.predictors.unit.model import UnitModel
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows
from foretell.training.judging.protocol import groups_of
from foretell.training.judging.table import PERCENT, Cell, Comparison, page
from foretell.units import ms, seconds_from_ms
from lab.papers.flattened.features import Flattening, Layers, layers_of
from lab.papers.flattened.regressors import DEPTHS, Examples, fit_linear, search_depth

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "plain networks": ("synthetic-mlp",),
    "CNNs": ("synthetic-cnn",),
    "both": ("synthetic-mlp", "synthetic-cnn"),
}
LINEAR, NETWORK, OURS, MEDIAN = "linear regression", "flattened network", "foretell", "median of the training side"
_LEAST = 40  # examples of a family: fewer show nothing

Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Random:
    """A measured random network."""

    sample: Sample
    layers: Layers

    @property
    def seconds(self) -> float:
        """Its latency."""
        return seconds_from_ms(self.sample.truth["latency_ms"])


def read_random(store: Path, device: str, cache: Path, log: Log) -> list[Random]:
    """The random networks that were measured in fp32 inference."""
    families = {family for names in FAMILIES.values() for family in names}
    samples = {
        sample.workload_id: sample
        for sample in read_samples(store, device, cache, log)
        if sample.family in families and sample.captured and sample.setting.dtype == "fp32"
        and sample.setting.mode == "inference" and np.isfinite(sample.truth["latency_ms"])
    }  # fmt: skip
    layers = read_layers(store, list(samples))
    return [Random(sample, layers[key]) for key, sample in samples.items() if key in layers]


def read_layers(store: Path, workload_ids: Sequence[str]) -> dict[str, Layers]:
    """The layers of measured workloads whose graph is known."""
    wanted = set(workload_ids)
    rows = {key: row for key, row in measured_rows(store).items() if key in wanted}
    waiting: dict[GraphKey, list[str]] = {}
    for key, row in rows.items():
        waiting.setdefault(GraphKey.of(row), []).append(key)
    found: dict[str, Layers] = {}
    graph: Graph
    for graph_key, _, graph in read_graphs(store, list(waiting)):
        layers = layers_of(graph)
        found |= dict.fromkeys(waiting.pop(graph_key, []), layers)
    return found


def compare_latency(networks: Sequence[Random], depths: Sequence[int], log: Log, seed: int = 0) -> dict[str, Any]:
    """The errors of all predictors on one kind of random networks."""
    order = np.random.default_rng(seed).permutation(len(networks))
    dev_at, test_at = int(0.8 * len(order)), int(0.9 * len(order))
    train, dev, test = order[:dev_at], order[dev_at:test_at], order[test_at:]
    flattening = Flattening.of([networks[place].layers for place in train])
    truth = np.array([network.seconds for network in networks])
    examples = Examples(
        [flattening.vector([(network.layers, network.sample.setting.batch_size)]) for network in networks], truth
    )
    linear = fit_linear(examples.part(train))
    network = search_depth(examples.part(train), examples.part(dev), flattening.width, depths, log)
    asked = examples.part(test)
    teaching = [networks[place].sample for place in np.concatenate([train, dev])]
    trees = UnitModel.load(fit_unit_trees(teaching, groups_of(teaching), Settings()))
    ours = predict_samples(trees, [networks[place].sample for place in test])["latency_ms"]
    predictions = {
        LINEAR: linear(asked.vectors),
        f"{NETWORK}, {network.depth} hidden layers": network.predict(asked.vectors),
        OURS: np.array([seconds_from_ms(time_ms) for time_ms in ours]),
        MEDIAN: np.full(len(test), np.median(truth[train])),
    }
    facts = {"test": len(test), "mean": float(asked.truth.mean()), "deviation": float(asked.truth.std())}
    return {"rows": {name: _errors(values, asked.truth) for name, values in predictions.items()}, **facts,
            "converged": network.converged}  # fmt: skip


def _errors(predicted: Values, truth: Values) -> dict[str, Cell]:
    relative = np.abs(predicted / truth - 1)
    return {
        "mean absolute error, ms": ms(float(np.abs(predicted - truth).mean())),
        "mape": float(relative.mean()),
        "median error": float(np.median(relative)),
    }


def evaluate(
    store: Path, device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, log: Log = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """All tables of a device that its store allows."""
    del only_networks, fit_seconds, processes
    device = find_device(device).id
    networks = read_random(store, device, cache, log)
    tables = []
    for title, families in FAMILIES.items():
        own = [network for network in networks if network.sample.family in families]
        if len(own) < _LEAST:
            log(f"{title}: {len(own)} were measured, too few to fit and judge")
            continue
        log(f"{title}: {len(own)}")
        found = compare_latency(own, DEPTHS, log)
        ends = "converged" if found["converged"] else "not converged"
        what = (
            f"{title} on {device}: {found['test']} of {len(own)} asked for; latency {ms(found['mean']):.3g} ms in the "
            f"mean, standard deviation {ms(found['deviation']):.3g}; the network's fit has {ends}"
        )
        tables.append(Comparison(what, found["rows"], shares=PERCENT | {"mape", "median error"}))
    return tables


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown, one file a device."""
    device = "cpu" if any(" on cpu" in table.title for table in tables) else "gpu"
    text = (
        "# Flattened graphs beside foretell\n\n"
        "Latency of random networks from the flattened list of layers and their "
        "adjacency, after Mendoza and Wang. Remade by `python -m lab evaluate flattened --report`, with "
        "`--device cpu --store data-cpu` for a CPU."
    )
    write_whole(folder / f"flattened-{device}.md", page(text, tables))
    return folder / f"flattened-{device}.md"
