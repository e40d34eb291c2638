"""Training: fusion: fit a partitioner to kernels that compilers reported; judge it on architectures it has not seen."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import TableFile, find_files, read_columns, read_graphs
from foretell.datasets.splits import architecture_of
from foretell.errors import DataError
from foretell.features.operator_codes import CODED, UNKNOWN_CODE
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.fusion.baselines import PairFrequency, always, by_rules, never
from foretell.predictors.fusion.edges import EDGE_COLUMNS, RUNTIMES, extract_edges
from foretell.predictors.fusion.partitioner import SHIPPED, fit_edges, is_fused, write
from foretell.training.judging.table import Comparison, page

FOLDS = 5
TREES = "partitioner"
_SHOWN_PATTERNS = 12
_COMPARED = (TREES, "rules", "pair frequency")
_RUNTIME, _SOURCE, _TARGET = (EDGE_COLUMNS.index(name) for name in ("runtime", "source_operator", "target_operator"))
_NAMES = dict(enumerate(CODED)) | {UNKNOWN_CODE: "another"}

Log = Callable[[str], None]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class LabelledEdges:
    """The edges of many graphs: features, label, fold and family; ``graphs`` counts graphs by runtime."""

    features: NDArray[np.float32]
    fused: Flags
    fold: NDArray[np.intp]
    family: NDArray[np.str_]
    graphs: Mapping[str, int]

    def of(self, runtime: str) -> Flags:
        """Which edges belong to a runtime."""
        return np.asarray(self.features[:, _RUNTIME] == RUNTIMES.index(runtime))


@dataclass(frozen=True)
class _Labelled:
    runtime: str
    spec: str
    family: str
    graph: Graph
    fused: Flags


def read_edges(store: Path, log: Log = lambda _: None) -> LabelledEdges:
    """The edges of all graphs below ``store`` whose fusion was collected."""
    parts, fused, folds, families, graphs = [], [], [], [], defaultdict[str, int](int)
    for labelled in labelled_graphs(store):
        edges = extract_edges(labelled.graph, labelled.runtime)
        if len(edges) != len(labelled.fused):
            raise DataError(
                f"{labelled.spec} has {len(edges)} edges and {len(labelled.fused)} labels; collect it again."
            )
        parts.append(edges.features)
        fused.append(labelled.fused)
        folds += [fold_of(labelled.spec)] * len(edges)
        families += [labelled.family] * len(edges)
        graphs[labelled.runtime] += 1
        if sum(graphs.values()) % 500 == 0:
            log(f"{sum(graphs.values())} graphs read")
    if not parts:
        raise DataError(
            f"No fusion was collected below {store}; collect some with a plan of the kind fusion: foretell collect."
        )
    return LabelledEdges(
        np.concatenate(parts), np.concatenate(fused), np.array(folds, np.intp), np.array(families), dict(graphs)
    )


def fold_of(spec: str) -> int:
    """The fold of a model, which is that of its architecture; a hash, so that new data moves no old model."""
    return int.from_bytes(hashlib.sha256(architecture_of(spec).encode()).digest()[:4], "big") % FOLDS


def labelled_graphs(store: Path) -> Iterator[_Labelled]:
    """Graphs with their labels, folder by folder; labels are in the order of `extract_edges`.

    Graphs of several sittings may lie together in the folder above: similar ones side by side take less space.
    """
    files = find_files(store)
    for folder in sorted({file.path.parent for file in files if file.table == "fusion_graphs"}):
        own = [file for file in files if file.path.parent == folder]
        graphs = {
            graph_hash: (stored, place)
            for file in files
            if file.table == "graphs" and file.path.parent in (folder, folder.parent)
            for stored in (read_graphs(file),)
            for place, (graph_hash,) in enumerate(_rows([file], "graphs", "graph_hash"))
        }
        labels: defaultdict[str, list[tuple[int, int, bool]]] = defaultdict(list)
        for fusion_id, *label in _rows(own, "fusion_edges", "fusion_id", "source", "target", "fused"):
            labels[fusion_id].append(tuple(label))
        columns = ("fusion_id", "backend", "spec", "family", "graph_hash", "status")
        for fusion_id, backend, spec, family, graph_hash, status in _rows(own, "fusion_graphs", *columns):
            if status == "ok":
                if graph_hash not in graphs:
                    raise DataError(f"{folder} has no graph of {spec} under {backend}; collect it again.")
                # sorted by source and target: the order of `extract_edges`
                fused = np.array([label for *_, label in sorted(labels[fusion_id])], bool)
                stored, place = graphs[graph_hash]
                yield _Labelled(backend, spec, family or "", stored[place], fused)


def _rows(files: Sequence[TableFile], table: str, *columns: str) -> Iterator[Any]:
    """Some columns of a table, row by row."""
    for file in files:
        if file.table == table:
            yield from zip(*read_columns(file, columns).select(columns).to_pydict().values(), strict=True)


def judge(edges: LabelledEdges, log: Log = lambda _: None) -> dict[str, Flags]:
    """The predictions of the partitioner and its baselines for every edge, held out by architecture."""
    predictions = {"never": never(edges.features), "always": always(edges.features), "rules": by_rules(edges.features)}
    predictions |= {name: np.zeros(len(edges.fused), bool) for name in ("pair frequency", TREES)}
    for fold in range(FOLDS):
        log(f"fold {fold + 1} of {FOLDS}")
        for runtime in edges.graphs:
            own, in_fold = edges.of(runtime), edges.fold == fold
            training, held_out = own & ~in_fold, own & in_fold
            # a runtime with few graphs may have none in a fold
            if training.any() and held_out.any():
                examples = edges.features[training], edges.fused[training]
                predictions["pair frequency"][held_out] = PairFrequency(*examples)(edges.features[held_out])
                predictions[TREES][held_out] = is_fused(fit_edges(*examples), edges.features[held_out])
    return predictions


def scores(predicted: Flags, fused: Flags) -> dict[str, float | None]:
    """Accuracy over all edges, precision and recall of the fused ones.

    >>> scores(np.array([True, True, False, False]), np.array([True, False, False, False]))
    {'accuracy': 0.75, 'precision': 0.5, 'recall': 1.0}
    """
    right = int((predicted & fused).sum())
    return {
        "accuracy": float((predicted == fused).mean()),
        "precision": right / int(predicted.sum()) if predicted.any() else None,
        "recall": right / int(fused.sum()) if fused.any() else None,
    }


def tables(edges: LabelledEdges, predictions: Mapping[str, Flags]) -> list[Comparison]:
    """Tables by runtime: all predictors, then the partitioner by family and by pattern."""
    comparisons = []
    for runtime in RUNTIMES:
        use = edges.of(runtime)
        if not use.any():
            continue
        size = f"{edges.graphs[runtime]} graphs, {int(use.sum()):,} edges, {edges.fused[use].mean():.0%} fused"
        rows = {name: scores(flags[use], edges.fused[use]) for name, flags in predictions.items()}
        comparisons.append(Comparison(f"{runtime}: {size}", rows))
        by_family, by_pattern = _by_family(edges, predictions[TREES], use), _by_pattern(edges, predictions, use)
        title = f"{runtime}, {TREES} by family, worst first"
        comparisons.append(Comparison(title, by_family, ranked=False, head="family"))
        title, shares = f"{runtime}, edges predicted correctly by pattern", frozenset(("fused", *_COMPARED))
        comparisons.append(Comparison(title, by_pattern, ranked=False, shares=shares, head="pattern"))
    return comparisons


def _by_family(edges: LabelledEdges, predicted: Flags, use: Flags) -> dict[str, dict[str, float | None]]:
    rows = {}
    for family in np.unique(edges.family[use]).tolist():
        own = use & (edges.family == family)
        rows[family] = scores(predicted[own], edges.fused[own]) | {"edges": int(own.sum())}
    return dict(sorted(rows.items(), key=lambda row: row[1]["accuracy"] or 0.0))


def _by_pattern(
    edges: LabelledEdges, predictions: Mapping[str, Flags], use: Flags
) -> dict[str, dict[str, float | None]]:
    """The commonest fused pairs of operators, and how many of their edges are predicted correctly."""
    pairs = edges.features[:, [_SOURCE, _TARGET]].astype(int)
    kinds, counts = np.unique(pairs[use & edges.fused], axis=0, return_counts=True)
    rows: dict[str, dict[str, float | None]] = {}
    for place in np.argsort(-counts)[:_SHOWN_PATTERNS].tolist():
        own = use & (pairs == kinds[place]).all(axis=1)
        name = "-".join(_NAMES[int(code)] for code in kinds[place])
        right = {predictor: float((predictions[predictor][own] == edges.fused[own]).mean()) for predictor in _COMPARED}
        rows[name] = {"edges": int(own.sum()), "fused": float(edges.fused[own].mean()), **right}
    return rows


def write_report(comparisons: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = "# Which edges a compiler fuses\n\nArchitectures held out, five folds. "
    text += "Remade by `foretell evaluate partitioner --report`."
    write_whole(folder / "fusion.md", page(text, comparisons))
    return folder / "fusion.md"


def evaluate(store: Path, _device: str, _cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables; compilers decide the same for all devices, and nothing is cached."""
    edges = read_edges(store, log)
    return tables(edges, judge(edges, log))


def train(store: Path, _device: str, _cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit a partitioner to all graphs, and write it with its held-out scores."""
    edges = read_edges(store, log)
    predicted = judge(edges, log)[TREES]
    held_out = {
        runtime: scores(predicted[edges.of(runtime)], edges.fused[edges.of(runtime)]) for runtime in edges.graphs
    }
    log("all")
    card = {"graphs": edges.graphs, "edges": len(edges.fused), "held_out": held_out}
    fits = {name: fit_edges(edges.features[edges.of(name)], edges.fused[edges.of(name)]) for name in edges.graphs}
    return write_fitted(out, SHIPPED, write(fits, card))
