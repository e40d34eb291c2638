"""Lab: the slowdown of models that share a device, from flattened graphs (figure 9), beside the product's own table.

The folds and groups are those of `foretell evaluate sharing`: at least one architecture of a group is unseen. A job's
vector stands first, those beside it follow. Depths are searched on the first fold; all folds then have the best one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sharing.model import MPS
from foretell.training import sharing
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged, tables_of
from foretell.training.judging.table import Comparison
from lab.papers.flattened.features import Flattening, Layers
from lab.papers.flattened.regressors import Examples, Vector, fit_linear, fit_network, search_depth
from lab.papers.flattened.study import read_layers

LINEAR, NETWORK = "linear regression on flattened graphs", "network on flattened graphs"
_DEPTHS = (1, 5, 10, 20)
_LEAST = 20  # members that teach: fewer show nothing
_RIDGE = 1.0
_DEV = 7  # one member in so many chooses the epoch and the depth

Values = NDArray[np.float64]
Log = Callable[[str], None]
Key = tuple[str, str, int]  # campaign, group, member


def _key(one: Judged) -> Key:
    return str(one.row["campaign_id"]), str(one.row["group_id"]), int(one.row["member"])


def with_flattened(judged: Sequence[Judged], layers: Mapping[str, Layers], log: Log) -> list[Judged]:
    """The judged members of one method, each with what flattened graphs say of it; members without a graph keep none.

    Other baselines are kept. A table needs every predictor in every row, so members without a graph are left out.
    """
    rows = {_key(one): one.row for one in judged}
    groups: dict[tuple[str, str], list[Key]] = {}
    for key in sorted(rows):
        groups.setdefault(key[:2], []).append(key)
    groups = {name: keys for name, keys in groups.items() if all(rows[key]["workload_id"] in layers for key in keys)}
    keys = [key for members in groups.values() for key in members]
    if not keys:
        return []
    flattening = Flattening.of(list(layers.values()), members=max(map(len, groups.values())))
    vectors = _compact(
        [
            flattening.vector(
                [
                    (layers[rows[one]["workload_id"]], rows[one]["batch_size"])
                    for one in (key, *(other for other in groups[key[:2]] if other != key))
                ]
            )
            for key in keys
        ]
    )
    truth = {_key(one): float(np.exp(one.truth)) for one in judged}
    examples = Examples(vectors, np.array([truth[key] for key in keys]))
    width = 1 + max(int(places.max()) for places, _ in vectors)
    folds = [{fold_of(rows[other]["spec"]) for other in groups[key[:2]]} for key in keys]
    found, depth = dict[tuple[Key, int], dict[str, float]](), 0
    for fold in range(FOLDS):
        asked = np.flatnonzero([fold in own for own in folds])
        learning = np.random.default_rng(fold).permutation(np.flatnonzero([fold not in own for own in folds]))
        if not len(asked) or len(learning) < _LEAST:
            continue
        train, dev = examples.part(learning[len(learning) // _DEV :]), examples.part(learning[: len(learning) // _DEV])
        if not depth:
            network = search_depth(train, dev, width, _DEPTHS, log)
            depth = network.depth
        else:
            network = fit_network(train, dev, width, depth)
        log(f"fold {fold + 1} of {FOLDS}: {depth} hidden layers, {len(network.errors)} epochs, {network.converged=}")
        vectors_asked = examples.part(asked).vectors
        predicted = {LINEAR: fit_linear(train, _RIDGE)(vectors_asked), NETWORK: network.predict(vectors_asked)}
        for place, number in enumerate(asked.tolist()):
            values = {name: float(np.log(max(own[place], 1.0))) for name, own in predicted.items()}
            found[keys[number], fold] = values
    return [
        replace(one, others={**one.others, **found[_key(one), one.fold]})
        for one in judged
        if (_key(one), one.fold) in found
    ]


def _compact(vectors: Sequence[Vector]) -> list[Vector]:
    """The same vectors without the places that no example sets: most pairs of layers are never connected."""
    used = np.unique(np.concatenate([places for places, _ in vectors]))
    return [(np.searchsorted(used, places), values) for places, values in vectors]


def evaluate(
    store: Path, device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, log: Log = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """The tables of ``foretell evaluate sharing``, with two more predictors."""
    del only_networks, fit_seconds, processes
    group_set, judged = sharing.judge_store(store, device, cache, log)
    layers = read_layers(store, [str(one.row["workload_id"]) for one in judged])
    # by time-slicing the slowdown is one number, whatever runs
    found = with_flattened([one for one in judged if one.row["method"] == MPS], layers, log)
    found += [one for one in judged if one.row["method"] != MPS]
    return tables_of(found, group_set.source)


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    return sharing.write_report(tables, folder)
