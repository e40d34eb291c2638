"""Lab: the slowdown of models that share a device, from flattened graphs (figure 9), beside the product's own table.

The folds and groups are those of `foretell evaluate sharing`: at least one architecture of a group is unseen. A job's
vector stands first, those beside it follow; members of a group may be of several precisions and modes and have limits
of SMs, so each has these as numbers, too. The depth is searched in every fold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sharing.model import MPS
from foretell.training import sharing
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged, tables_of
from foretell.training.judging.table import Comparison
from lab.papers.flattened.features import Flattening, Layers
from lab.papers.flattened.regressors import DEPTHS, Examples, Vector, dense, fit_linear, search_depth
from lab.papers.flattened.study import read_layers

LINEAR, NETWORK = "linear regression on flattened graphs", "network on flattened graphs"
_DEPTHS = DEPTHS
_LEAST = 20  # members that teach: fewer show nothing
_RIDGE = 1.0
_DEV = 7  # one member in so many chooses the epoch and the depth
_ROUNDING = 1e-7  # of the mean square of a vector: models of equal vectors stay apart by so much

Values = NDArray[np.float64]
Array = NDArray[np.float32]
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
    # a job first, then those beside it
    members = [[rows[key], *(rows[other] for other in groups[key[:2]] if other != key)] for key in keys]
    known = {str(row["workload_id"]): row for group in members for row in group}
    truth = {_key(one): float(np.exp(one.truth)) for one in judged}
    folds = [{fold_of(row["spec"]) for row in group} for group in members]
    found = dict[tuple[Key, int], dict[str, float]]()
    for fold in range(FOLDS):
        asked = np.flatnonzero([fold in own for own in folds])
        learning = np.random.default_rng(fold).permutation(np.flatnonzero([fold not in own for own in folds]))
        if not len(asked) or len(learning) < _LEAST:
            continue
        teaching = {str(row["workload_id"]): None for number in learning for row in members[number]}
        placed = place_models(layers, known, list(teaching))
        examples = Examples([_vector(group, placed) for group in members], np.array([truth[key] for key in keys]))
        width = 1 + max(int(places.max()) for places, _ in examples.vectors)
        train, dev = examples.part(learning[len(learning) // _DEV :]), examples.part(learning[: len(learning) // _DEV])
        network = search_depth(train, dev, width, _DEPTHS, log)
        log(
            f"fold {fold + 1} of {FOLDS}: {network.depth} hidden layers, {len(network.errors)} epochs, "
            f"{network.converged=}"
        )
        vectors = examples.part(asked).vectors
        predicted = {LINEAR: fit_linear(train, _RIDGE)(vectors), NETWORK: network.predict(vectors)}
        for place, number in enumerate(asked.tolist()):
            values = {name: float(np.log(max(own[place], 1.0))) for name, own in predicted.items()}
            found[keys[number], fold] = values
    return [
        replace(one, others={**one.others, **found[_key(one), one.fold]})
        for one in judged
        if (_key(one), one.fold) in found
    ]


def place_models(
    layers: Mapping[str, Layers], rows: Mapping[str, Mapping[str, Any]], first: Sequence[str]
) -> dict[str, Array]:
    """The flattened vector of each workload in as many numbers as there are workloads: its place among them.

    Gram and Schmidt: lengths and angles stay. A layer on padded vectors of 10⁵ numbers can do no more to these few
    hundred models than one on their places, and random weights are as random in any orthonormal basis. So a network
    can say the same, and its fit takes seconds instead of hours. The workloads of ``first``, which teach, come first:
    what only others have gets no gradient, as in the padded vectors.
    """
    names = list(dict.fromkeys((*first, *rows)))
    flattening = Flattening.of([layers[name] for name in names])
    vectors = [flattening.vector([(layers[name], int(rows[name]["batch_size"]))]) for name in names]
    padded = dense(vectors, np.unique(np.concatenate([places for places, _ in vectors]))).astype(np.float64)
    inner = padded @ padded.T
    # the Cholesky factor of the inner products is the triangle of Gram and Schmidt
    triangle = np.linalg.cholesky(inner + _ROUNDING * np.trace(inner) / len(inner) * np.eye(len(inner)))
    return dict(zip(names, triangle.astype(np.float32), strict=True))


def _vector(group: Sequence[Mapping[str, Any]], placed: Mapping[str, Array]) -> Vector:
    """A job and those beside it, side by side."""
    parts = [np.append(placed[str(row["workload_id"])], _setting(row)) for row in group]
    values = np.concatenate(parts).astype(np.float32)
    return np.flatnonzero(values), values[values != 0]


def _setting(row: Mapping[str, Any]) -> list[float]:
    """What the jobs of the paper have in common, and ours do not."""
    is_half = float(row.get("dtype") in ("fp16", "bf16"))
    modes = [float(row.get("mode") == mode) for mode in ("training", "decode")]
    return [is_half, *modes, float(row.get("percentage") or 100.0) / 100.0]


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
