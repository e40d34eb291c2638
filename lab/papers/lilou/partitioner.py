"""Lab: LILOU's graph partitioner, judged beside foretell's trees on architectures that it has not seen.

One network serves three runtimes. In eager mode, the nodes of one origin are one call. Foretell's own partitioner reads
the origins, while LILOU sees only operators and sizes, so in eager mode it is compared with baselines only.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import DataError
from foretell.features.operator_codes import operator_code
from foretell.files import write_whole
from foretell.predictors.fusion.baselines import PairFrequency, always, by_rules, never
from foretell.predictors.fusion.edges import EDGE_COLUMNS, RUNTIMES
from foretell.predictors.unit.fit_network import default_device
from foretell.training.fusion import FOLDS, TREES, LabelledEdges, judge, read_edges, scores
from foretell.training.judging.table import Cell, Comparison
from lab.papers.lilou.edge_network import FITS, EdgeExamples, EdgeFit, fit_edge_network
from lab.papers.lilou.folds import (
    Arrays,
    Log,
    PlannedFit,
    complete,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    plan_folds,
    read_predictions,
)
from lab.papers.lilou.report import write_section
from lab.papers.lilou.sets import EAGER, ONNX, EdgeSet, Flags, Numbers, load_edges, prepare_edges

TITLE = "Which edges are fused: the graph partitioner"
# LILOU's Table 5, in ONNX's names
CHAINS = (
    ("Conv", "Relu"), ("Sigmoid", "Mul"), ("BatchNormalization", "Relu"), ("Add", "Sqrt", "Div", "Mul", "Add"),
    ("Div", "Erf", "Add", "Mul", "Mul"), ("HardSigmoid", "Mul"),
)  # fmt: skip
FIT_VERSION = 1  # raise it when the network, its features or its training change
OTHERS_VERSION = 1  # raise it when trees, baselines or features of edges change
_ORIGIN = EDGE_COLUMNS.index("same_origin")

Predictions = dict[str, Flags]


def examples_of(edge_set: EdgeSet) -> EdgeExamples:
    """Every graph under its runtime, then those of ONNX Runtime again under eager mode."""
    # the same graphs a second time, labelled for eager mode by the origins of their nodes
    onnx_examples = np.flatnonzero(edge_set.runtime == RUNTIMES.index(ONNX))
    own = np.isin(_owner(edge_set), onnx_examples)
    return EdgeExamples(
        edge_set.nodes.of(edge_set.rows), edge_set.edges, edge_set.node_counts, edge_set.edge_counts,
        np.concatenate([np.arange(len(edge_set.runtime)), onnx_examples]),
        np.concatenate([edge_set.runtime, np.full(len(onnx_examples), RUNTIMES.index(EAGER))]),
        np.concatenate([edge_set.fused, edge_set.same_origin[own]]),
    )  # fmt: skip


def _owner(edge_set: EdgeSet) -> Numbers:
    """The graph of each edge."""
    return np.repeat(np.arange(len(edge_set.runtime)), edge_set.edge_counts)


def fit_fold(
    prepared: Path, settings: EdgeFit, fold: int, seconds: float | None, log: Log
) -> tuple[Arrays, dict[str, Any]]:
    """The predictions of a network for the edges of a fold that it has not seen."""
    edge_set = load_edges(prepared)
    examples = examples_of(edge_set)
    training, validation, held_out = parts_of(edge_set.fold[examples.graph], edge_set.checked[examples.graph], fold)
    network, history = fit_edge_network(examples, training, validation, settings, default_device(), seconds, log)
    predicted = network.predict(held_out)
    return {"said": np.packbits(predicted), "edges": np.array(len(predicted))}, facts_of(history)


def read_flags(planned: Sequence[PlannedFit], edge_set: EdgeSet) -> Predictions:
    """The predictions of saved networks for the edges of all examples, each for those it has not seen."""
    examples = examples_of(edge_set)
    fold = np.repeat(edge_set.fold[examples.graph], examples.sizes)
    predictions: Predictions = {}
    for fit in planned:
        arrays, _ = read_predictions(fit.file)
        flags = predictions.setdefault(fit.name, np.zeros(len(fold), bool))
        flags[fold == fit.fold] = np.unpackbits(arrays["said"])[: int(arrays["edges"])].astype(bool)
    return predictions


def others(store: Path, prepared: Path, edge_set: EdgeSet, log: Log) -> Predictions:
    """The predictions of foretell's trees and of the baselines for the same edges; cached, as trees take minutes."""
    digest = hashlib.sha256(f"{prepared.name} {OTHERS_VERSION}".encode())
    file = prepared.with_name(f"lilou-others-{digest.hexdigest()[:16]}.npz")
    count = len(edge_set.fused) + int(edge_set.edge_counts[edge_set.runtime == RUNTIMES.index(ONNX)].sum())
    if not file.exists():
        log(f"fitting {TREES} and baselines for {file}")
        edges = read_edges(store, log)
        # the same labels in the same order, else predictions would belong to other edges
        if not np.array_equal(edges.fused, edge_set.fused):
            raise DataError(f"{prepared} has other edges than {store}: delete it.")
        data = io.BytesIO()
        predictions = _with_eager(edges, judge(edges, log))
        np.savez_compressed(
            data, allow_pickle=False, **{name: np.packbits(flags) for name, flags in predictions.items()}
        )
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as stored:
        return {name: np.unpackbits(stored[name])[:count].astype(bool) for name in stored.files}


def _with_eager(edges: LabelledEdges, predictions: Mapping[str, Flags]) -> Predictions:
    """The predictions, followed by those for the edges of eager mode; trees make none there."""
    is_onnx = edges.of(ONNX)
    features, fold = edges.features[is_onnx], edges.fold[is_onnx]
    fused = features[:, _ORIGIN] > 0
    by_frequency = np.zeros(len(fused), bool)
    for number in range(FOLDS):
        held_out = fold == number
        if held_out.any() and not held_out.all():
            by_frequency[held_out] = PairFrequency(features[~held_out], fused[~held_out])(features[held_out])
    eager = {"never": never(features), "always": always(features), "rules": by_rules(features)}
    eager["pair frequency"] = by_frequency
    return {
        name: np.concatenate([flags, eager.get(name, np.zeros(len(fused), bool))])
        for name, flags in predictions.items()
    }


def on_chain(operators: NDArray[np.int16], edges: Numbers, chain: Sequence[str]) -> Flags:
    """Which edges lie on a path of just these operators.

    >>> codes = np.array([operator_code(name) for name in ("Conv", "Relu", "Conv", "Add")], np.int16)
    >>> on_chain(codes, np.array([[0, 1, 2], [1, 2, 3]]), ("Conv", "Relu")).tolist()
    [True, False, False]
    """
    steps = [
        (operators[edges[0]] == operator_code(before)) & (operators[edges[1]] == operator_code(after))
        for before, after in pairwise(chain)
    ]
    for number in range(1, len(steps)):  # keep the steps that the step before leads to
        steps[number] &= np.isin(edges[0], edges[1][steps[number - 1]])
    # then backwards: keep only steps from which the chain can be completed
    for number in range(len(steps) - 1, 0, -1):
        steps[number - 1] &= np.isin(edges[1], edges[0][steps[number]])
    return np.asarray(np.any(steps, axis=0))


def tables(edge_set: EdgeSet, predictions: Mapping[str, Flags], networks: Sequence[str]) -> list[Comparison]:
    """Tables by runtime: all predictors, the patterns of LILOU's Table 5, and families, LILOU's worst first."""
    examples = examples_of(edge_set)
    runtime = np.repeat(examples.runtime, examples.sizes)
    family = np.repeat(edge_set.family[examples.graph], examples.sizes)
    chains = _chains(edge_set, examples)
    comparisons = []
    for number, name in enumerate(RUNTIMES):
        use = runtime == number
        if not use.any():
            continue
        # foretell's trees make no prediction for eager mode
        shown = {predictor: flags for predictor, flags in predictions.items() if predictor != TREES or name != EAGER}
        graphs = int((examples.runtime == number).sum())
        size = f"{name}: {graphs} graphs, {int(use.sum()):,} edges, {examples.fused[use].mean():.0%} fused"
        rows = {predictor: scores(flags[use], examples.fused[use]) for predictor, flags in shown.items()}
        comparisons.append(Comparison(size, rows))
        right = {
            predictor: shown[predictor] == examples.fused
            for predictor in ("rules", TREES, *networks)
            if predictor in shown
        }
        parts = {"-".join(chain): use & flags for chain, flags in zip(CHAINS, chains, strict=True)}
        comparisons.append(
            _by_part(f"{name}, edges predicted correctly by pattern", parts, examples.fused, right, "pattern")
        )
        parts = {one: use & (family == one) for one in np.unique(family[use]).tolist()}
        worst = dict(sorted(parts.items(), key=lambda part: right[networks[0]][part[1]].mean()))
        comparisons.append(
            _by_part(f"{name}, edges predicted correctly by family", worst, examples.fused, right, "family")
        )
    return [table for table in comparisons if table.rows]


def _chains(edge_set: EdgeSet, examples: EdgeExamples) -> list[Flags]:
    """For every edge of the examples whether it lies on each chain."""
    starts = np.cumsum(edge_set.node_counts) - edge_set.node_counts
    global_edges = edge_set.edges + starts[_owner(edge_set)]
    flags = [on_chain(examples.nodes.operators, global_edges, chain) for chain in CHAINS]
    eager = np.isin(_owner(edge_set), examples.graph[len(edge_set.runtime) :])
    return [np.concatenate([on_this_chain, on_this_chain[eager]]) for on_this_chain in flags]


def _by_part(title: str, parts: Mapping[str, Flags], fused: Flags, right: Mapping[str, Flags], head: str) -> Comparison:
    rows: dict[str, dict[str, Cell]] = {}
    for name, own in parts.items():
        if own.any():
            rows[name] = {"edges": int(own.sum()), "fused": float(fused[own].mean())}
            rows[name] |= {predictor: float(flags[own].mean()) for predictor, flags in right.items()}
    return Comparison(title, rows, ranked=False, shares=frozenset(("fused", *right)), head=head)


def evaluate(
    store: Path, _device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, fits: Mapping[str, EdgeFit] = FITS, log: Log = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """Held-out tables; none where only networks are fitted."""
    prepared = prepare_edges(store, cache, log)
    planned = plan_folds(prepared, fits, FIT_VERSION, FOLDS)
    if only_networks or not any(fit.file.exists() for fit in planned):
        fit_folds(planned, fit_fold, prepared, fit_seconds, processes, log)
    if only_networks:
        return []
    planned = complete(planned, log)
    edge_set = load_edges(prepared)
    networks = read_flags(planned, edge_set)
    return [
        *tables(edge_set, {**others(store, prepared, edge_set, log), **networks}, list(networks)),
        fit_table(planned),
    ]


def write_report(comparisons: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables into LILOU's page."""
    text = (
        "*lilou* is the network as published: one GAT layer of 128 channels, an LSTM over the two ends; *three layers "
        f"both ways* is ours. One network for all three runtimes. *{TREES}* is what foretell uses: trees on an "
        "edge and its surroundings. In eager mode an edge is fused where both ends are one call of PyTorch; foretell "
        "reads that from the graph, so trees have no row there. Patterns: edges on a path of just these operators."
    )
    return write_section(folder, TITLE, text, comparisons)
