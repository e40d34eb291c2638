"""workflows: LILOU's graph partitioner, judged beside foretell's trees on architectures that it has not seen.

One network for three runtimes. In eager mode the nodes of one origin are one call: foretell's own partitioner reads the
origins, LILOU sees operators and sizes alone, so there it is compared with baselines only.
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
from foretell.files import write_whole
from foretell.graph.ir.operators import OPERATORS
from foretell.predictors.fusion.baselines import PairFrequency, always, by_rules, never
from foretell.predictors.fusion.edges import EDGE_COLUMNS, RUNTIMES
from foretell.predictors.unit.fit_network import default_device
from foretell.training.fusion import FOLDS, TREES, LabelledEdges, judge, read_edges, scores
from foretell.training.judging.table import Cell, Comparison
from lab.papers.lilou.edge_network import FITS, EdgeExamples, EdgeFit, fit_edge_network
from lab.papers.lilou.folds import (
    Arrays,
    Asked,
    Say,
    asked_folds,
    complete,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    read_told,
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
_CODES = {name: number for number, name in enumerate(sorted(OPERATORS))}
_ORIGIN = EDGE_COLUMNS.index("same_origin")

Said = dict[str, Flags]


def examples_of(kept: EdgeSet) -> EdgeExamples:
    """Every graph under its runtime, then those of ONNX Runtime again under eager mode."""
    again = np.flatnonzero(kept.runtime == RUNTIMES.index(ONNX))
    own = np.isin(_owner(kept), again)
    return EdgeExamples(
        kept.nodes.of(kept.rows), kept.edges, kept.node_counts, kept.edge_counts,
        np.concatenate([np.arange(len(kept.runtime)), again]),
        np.concatenate([kept.runtime, np.full(len(again), RUNTIMES.index(EAGER))]),
        np.concatenate([kept.fused, kept.same_origin[own]]),
    )  # fmt: skip


def _owner(kept: EdgeSet) -> Numbers:
    """The graph of each edge."""
    return np.repeat(np.arange(len(kept.runtime)), kept.edge_counts)


def fit_fold(
    prepared: Path, settings: EdgeFit, fold: int, seconds: float | None, say: Say
) -> tuple[Arrays, dict[str, Any]]:
    """What a network that has not seen a fold says of its edges."""
    kept = load_edges(prepared)
    examples = examples_of(kept)
    taught, checked, held = parts_of(kept.fold[examples.graph], kept.checked[examples.graph], fold)
    network, history = fit_edge_network(examples, taught, checked, settings, default_device(), seconds, say)
    said = network.tell(held)
    return {"said": np.packbits(said), "edges": np.array(len(said))}, facts_of(history)


def read_said(asked: Sequence[Asked], kept: EdgeSet) -> Said:
    """What the kept networks say of the edges of all examples, each of those it has not seen."""
    examples = examples_of(kept)
    fold = np.repeat(kept.fold[examples.graph], examples.sizes)
    found: Said = {}
    for each in asked:
        arrays, _ = read_told(each.file)
        flags = found.setdefault(each.name, np.zeros(len(fold), bool))
        flags[fold == each.fold] = np.unpackbits(arrays["said"])[: int(arrays["edges"])].astype(bool)
    return found


def others(store: Path, prepared: Path, kept: EdgeSet, say: Say) -> Said:
    """What foretell's trees and the baselines say of the same edges; kept, as trees take minutes."""
    digest = hashlib.sha256(f"{prepared.name} {OTHERS_VERSION}".encode())
    file = prepared.with_name(f"lilou-others-{digest.hexdigest()[:16]}.npz")
    count = len(kept.fused) + int(kept.edge_counts[kept.runtime == RUNTIMES.index(ONNX)].sum())
    if not file.exists():
        say(f"fitting {TREES} and baselines for {file}")
        edges = read_edges(store, say)
        if not np.array_equal(edges.fused, kept.fused):
            raise DataError(f"{prepared} has other edges than {store}: delete it.")
        data = io.BytesIO()
        said = _with_eager(edges, judge(edges, say))
        np.savez_compressed(data, allow_pickle=False, **{name: np.packbits(flags) for name, flags in said.items()})
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as stored:
        return {name: np.unpackbits(stored[name])[:count].astype(bool) for name in stored.files}


def _with_eager(edges: LabelledEdges, said: Mapping[str, Flags]) -> Said:
    """The same, and behind it what is said of the edges of eager mode; trees say nothing there."""
    own = edges.of(ONNX)
    features, fold = edges.features[own], edges.fold[own]
    fused = features[:, _ORIGIN] > 0
    frequent = np.zeros(len(fused), bool)
    for number in range(FOLDS):
        held = fold == number
        if held.any() and not held.all():
            frequent[held] = PairFrequency(features[~held], fused[~held])(features[held])
    eager = {"never": never(features), "always": always(features), "rules": by_rules(features)}
    eager["pair frequency"] = frequent
    return {name: np.concatenate([flags, eager.get(name, np.zeros(len(fused), bool))]) for name, flags in said.items()}


def on_chain(operators: NDArray[np.int16], edges: Numbers, chain: Sequence[str]) -> Flags:
    """Which edges lie on a path of just these operators.

    >>> codes = np.array([_CODES[name] for name in ("Conv", "Relu", "Conv", "Add")], np.int16)
    >>> on_chain(codes, np.array([[0, 1, 2], [1, 2, 3]]), ("Conv", "Relu")).tolist()
    [True, False, False]
    """
    steps = [
        (operators[edges[0]] == _CODES.get(before, -1)) & (operators[edges[1]] == _CODES.get(behind, -1))
        for before, behind in pairwise(chain)
    ]
    for number in range(1, len(steps)):  # what the step before leads to
        steps[number] &= np.isin(edges[0], edges[1][steps[number - 1]])
    for number in range(len(steps) - 1, 0, -1):
        steps[number - 1] &= np.isin(edges[1], edges[0][steps[number]])
    return np.asarray(np.any(steps, axis=0))


def tables(kept: EdgeSet, said: Mapping[str, Flags], networks: Sequence[str]) -> list[Comparison]:
    """By runtime: all predictors, the patterns of LILOU's Table 5, and families, those first that LILOU tells worst."""
    examples = examples_of(kept)
    runtime = np.repeat(examples.runtime, examples.sizes)
    family = np.repeat(kept.family[examples.graph], examples.sizes)
    chains = _chains(kept, examples)
    found = []
    for number, name in enumerate(RUNTIMES):
        use = runtime == number
        if not use.any():
            continue
        shown = {who: flags for who, flags in said.items() if who != TREES or name != EAGER}
        graphs = int((examples.runtime == number).sum())
        size = f"{name}: {graphs} graphs, {int(use.sum()):,} edges, {examples.fused[use].mean():.0%} fused"
        rows = {who: scores(flags[use], examples.fused[use]) for who, flags in shown.items()}
        found.append(Comparison(size, rows))
        right = {who: shown[who] == examples.fused for who in ("rules", TREES, *networks) if who in shown}
        parts = {"-".join(chain): use & flags for chain, flags in zip(CHAINS, chains, strict=True)}
        found.append(_by_part(f"{name}, edges told rightly by pattern", parts, examples.fused, right, "pattern"))
        parts = {each: use & (family == each) for each in np.unique(family[use]).tolist()}
        worst = dict(sorted(parts.items(), key=lambda part: right[networks[0]][part[1]].mean()))
        found.append(_by_part(f"{name}, edges told rightly by family", worst, examples.fused, right, "family"))
    return [table for table in found if table.rows]


def _chains(kept: EdgeSet, examples: EdgeExamples) -> list[Flags]:
    """Of every edge of the examples whether it lies on each chain."""
    starts = np.cumsum(kept.node_counts) - kept.node_counts
    everywhere = kept.edges + starts[_owner(kept)]
    flags = [on_chain(examples.nodes.operators, everywhere, chain) for chain in CHAINS]
    eager = np.isin(_owner(kept), examples.graph[len(kept.runtime) :])
    return [np.concatenate([each, each[eager]]) for each in flags]


def _by_part(title: str, parts: Mapping[str, Flags], fused: Flags, right: Mapping[str, Flags], head: str) -> Comparison:
    rows: dict[str, dict[str, Cell]] = {}
    for name, own in parts.items():
        if own.any():
            rows[name] = {"edges": int(own.sum()), "fused": float(fused[own].mean())}
            rows[name] |= {who: float(flags[own].mean()) for who, flags in right.items()}
    return Comparison(title, rows, ranked=False, shares=frozenset(("fused", *right)), head=head)


def evaluate(
    store: Path, _device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, fits: Mapping[str, EdgeFit] = FITS, say: Say = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """Held-out tables; none where only networks are fitted."""
    prepared = prepare_edges(store, cache, say)
    asked = asked_folds(prepared, fits, FIT_VERSION, FOLDS)
    if only_networks or not any(each.file.exists() for each in asked):
        fit_folds(asked, fit_fold, prepared, fit_seconds, processes, say)
    if only_networks:
        return []
    asked = complete(asked, say)
    kept = load_edges(prepared)
    networks = read_said(asked, kept)
    return [*tables(kept, {**others(store, prepared, kept, say), **networks}, list(networks)), fit_table(asked)]


def write_report(found: Sequence[Comparison], folder: Path) -> Path:
    """The tables in LILOU's page."""
    text = (
        "*lilou* is the network as published: one GAT layer of 128 channels, an LSTM over the two ends; *three layers "
        f"both ways* is ours. One network for all three runtimes. *{TREES}* is what foretell answers with: trees on an "
        "edge and its surroundings. In eager mode an edge is fused where both ends are one call of PyTorch; foretell "
        "reads that from the graph, so trees have no row there. Patterns: edges on a path of just these operators."
    )
    return write_section(folder, TITLE, text, found)
