"""Lab: LILOU's analyser on sub-graphs of several nodes, end to end on compiled latency: ``-m …lilou.group_fits``.

The networks are fitted to sums: the latency of each compiled workload, and where it was traced what libraries and what
generated kernels took. As published: the paper's columns, logarithms of microseconds, from nothing. At its best: the
ratio to the bound, foretell's columns, and the weights of the network that was fitted to single units of eager mode
without this fold's architectures. The same without edges says what message passing is worth.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import operator_code
from foretell.predictors.unit.fit_network import default_device
from foretell.training.fusion import FOLDS
from foretell.training.judging.metrics import accuracy
from foretell.training.judging.table import Cell, Comparison
from lab.papers.lilou import analyser
from lab.papers.lilou.features import DEVICE_COLUMNS, SIZES
from lab.papers.lilou.fitting import Gat, Schedule
from lab.papers.lilou.folds import (
    Arrays,
    Log,
    PlannedFit,
    complete,
    curve_of,
    facts_of,
    fit_folds,
    fit_table,
    parts_of,
    plan_folds,
    read_predictions,
)
from lab.papers.lilou.groups import GroupSet, load_groups, prepare_groups
from lab.papers.lilou.report import write_section
from lab.papers.lilou.sets import Numbers, prepare_units
from lab.papers.lilou.subgraph_network import (
    NODES,
    SHAPES,
    Measured,
    SubgraphFit,
    Subgraphs,
    Sums,
    fit_subgraph_network,
)

TITLE = "Compiled models: sub-graphs of several nodes"
FORETELL, BOUNDS = "foretell", "sum of bounds"
AS_PUBLISHED, BEST, NO_EDGES = "lilou", "lilou, at its best", "the same without edges"
# the operators of each pattern, as our graphs have them: a layer norm and a GELU are one node
PATTERNS = {
    "conv-relu": ("Conv", "Relu"), "sigmoid-mul": ("Sigmoid", "Mul"),
    "batchnorm-relu": ("BatchNormalization", "Relu"), "hardsigmoid-mul": ("HardSigmoid", "Mul"),
    "add-sqrt-div-mul-add (a layer norm)": ("LayerNormalization",), "div-erf-add-mul-mul (a GELU)": ("Gelu",),
}  # fmt: skip
GROUP_FIT_VERSION = 1  # raise it when the sums or their training change
_LEAST_SHARE = 0.02  # a smaller part of a latency is mostly noise

Values = NDArray[np.float64]


@dataclass(frozen=True)
class GroupFit:
    """A network of groups; ``edges``: whether it sees them; ``start``: the folder of the networks to begin with."""

    network: SubgraphFit
    edges: bool = True
    start: str = ""


def fits_for(start: Path) -> dict[str, GroupFit]:
    """The networks to compare; ``start`` has those of single units."""
    best = SubgraphFit(analyser.AT_ITS_BEST.gat, Schedule(rate=1e-3, batch=16, epochs=40), SHAPES, dropout=0.5)
    published = SubgraphFit(Gat(width=128, layers=3, direction="mutual"), Schedule(rate=5e-4, batch=16, epochs=100))
    return {
        AS_PUBLISHED: GroupFit(published),
        BEST: GroupFit(best, start=str(start)),
        NO_EDGES: GroupFit(best, edges=False, start=str(start)),
    }


def described(groups: GroupSet, settings: GroupFit) -> Subgraphs:
    """The groups, with the columns and the edges that a network sees."""
    nodes, edges, counts, whole, base_us = groups.nodes, groups.edges, groups.edge_counts, groups.whole, groups.bound_us
    if settings.network.known == NODES:
        nodes = replace(nodes, sizes=nodes.sizes[:, : len(SIZES)])
        whole, base_us = whole[:, : len(DEVICE_COLUMNS)], np.ones_like(base_us)
    if not settings.edges:
        edges, counts = edges[:, :0], np.zeros_like(counts)
    return Subgraphs(nodes, edges, groups.node_counts, counts, whole, base_us)


def whole_sums(groups: GroupSet) -> Sums:
    """The latency of every workload."""
    count = len(groups.lengths)
    return Sums(groups.members, groups.repeats, groups.lengths, groups.latency_us, np.ones(count), np.arange(count))


def part_sums(groups: GroupSet, *, library: bool) -> Sums:
    """What libraries, or generated kernels, took of each workload; the weight is the root of the share, or 0."""
    own = groups.library[groups.members] == library
    owner = np.repeat(np.arange(len(groups.lengths)), groups.lengths)[own]
    lengths = np.bincount(owner, minlength=len(groups.lengths))
    total_us = groups.library_us if library else groups.generated_us
    share = np.nan_to_num(total_us / groups.latency_us)
    is_known = (share > _LEAST_SHARE) & (lengths > 0)
    known_us = np.where(is_known, total_us, 1.0)
    weights = np.where(is_known, np.sqrt(share.clip(min=0)), 0.0)
    return Sums(groups.members[own], groups.repeats[own], lengths, known_us, weights, np.arange(len(lengths)))


def joined(parts: Sequence[Sums]) -> Sums:
    """Sums, one after the other."""
    columns = ("members", "counts", "lengths", "total_us", "weights", "owner")
    return Sums(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def teaching_sums(groups: GroupSet, training: Numbers) -> Sums:
    """The sums that teach: whole workloads, then their parts where those are known."""
    parts = [part.of(training) for part in (part_sums(groups, library=True), part_sums(groups, library=False))]
    return joined([whole_sums(groups).of(training), *(part.of(np.flatnonzero(part.weights > 0)) for part in parts)])


def fit_group_fold(
    prepared: Path, settings: GroupFit, fold: int, seconds: float | None, log: Log
) -> tuple[Arrays, dict[str, Any]]:
    """What a network that has not seen a fold says of all sub-graphs."""
    groups = load_groups(prepared)
    training, validation, _ = parts_of(groups.fold, groups.checked, fold)
    none = Measured(np.zeros(0), np.zeros(0, np.int64), np.zeros(0), 0)
    start = read_predictions(Path(settings.start) / f"{fold}.npz")[0] if settings.start else None
    subgraphs, empty = described(groups, settings), np.zeros(0, np.int64)
    network, history = fit_subgraph_network(
        subgraphs, none, empty, empty, settings.network, default_device(), seconds, log,
        (teaching_sums(groups, training), whole_sums(groups).of(validation)), start,
    )  # fmt: skip
    time_us, _ = network.predict(subgraphs)
    return {"time_us": time_us, **curve_of(history)}, facts_of(history)


def read_times(planned: Sequence[PlannedFit], groups: GroupSet) -> dict[str, Values]:
    """By network what each sub-graph takes, in one row for each fold: by the network that has not seen it."""
    times_us: dict[str, Values] = {}
    for fit in planned:
        own = times_us.setdefault(fit.name, np.full((FOLDS, len(groups.node_counts)), np.nan))
        own[fit.fold] = read_predictions(fit.file)[0]["time_us"]
    return times_us


def latencies_us(groups: GroupSet, times_us: Values) -> Values:
    """The latency of every workload, by the network that has not seen its architecture."""
    by_fold = np.stack([whole_sums(groups).sums_of(times) for times in times_us])
    return np.asarray(by_fold[groups.fold, np.arange(len(groups.fold))])


def tables(groups: GroupSet, latencies: Mapping[str, Values]) -> list[Comparison]:
    """End to end: all workloads, then by how many sub-graphs have several nodes, and by zoo."""
    bounds = whole_sums(groups).sums_of(groups.bound_us)
    every = {**latencies, FORETELL: groups.foretell_us, BOUNDS: bounds}
    rows: dict[str, dict[str, Cell]] = {}
    for name, values in every.items():
        figures = accuracy(groups.latency_us, values)
        rmspe = float(np.sqrt(np.mean((values / groups.latency_us - 1.0) ** 2)))
        rows[name] = {
            "mape": figures.mape, "median_ape": figures.median_ape,
            "within_10_percent": figures.within_10_percent, "rmspe": rmspe,
        }  # fmt: skip
    several = int((groups.node_counts > 1).sum())
    title = (
        f"End to end: {len(groups.lengths)} compiled workloads, {int(groups.repeats.sum()):,} sub-graphs, "
        f"{len(groups.node_counts):,} different ones, {several:,} of several nodes"
    )
    zoo = np.array([spec.partition(":")[0] for spec in groups.spec.tolist()])
    by_zoo: dict[str, dict[str, Cell]] = {}
    for name in np.unique(zoo).tolist():
        own = zoo == name
        errors = {n: float(np.abs(v[own] / groups.latency_us[own] - 1.0).mean()) for n, v in every.items()}
        by_zoo[name] = {"count": int(own.sum()), **errors}
    shares = frozenset({"mape", "median_ape", "within_10_percent", "rmspe", *every})
    return [
        Comparison(title, rows, ranked=True, shares=shares, head="predictor"),
        Comparison("By zoo, mean error", by_zoo, ranked=False, shares=shares, head="zoo"),
    ]


def call_tables(groups: GroupSet, times_us: Mapping[str, Values]) -> list[Comparison]:
    """Single sub-graphs whose call was timed, by what they are, and by the six patterns of the paper's Table 5."""
    nodes, library = groups.node_counts[groups.called], groups.library[groups.called]
    parts = {
        "library calls": library,
        "generated, one node": ~library & (nodes == 1),
        "generated, several nodes": ~library & (nodes > 1),
    }
    starts = np.cumsum(groups.node_counts) - groups.node_counts
    ends = starts + groups.node_counts
    operators = [set(groups.operators[starts[one] : ends[one]].tolist()) for one in groups.called.tolist()]
    patterns = {
        name: np.array([{operator_code(op) for op in ops} <= own for own in operators], bool)
        for name, ops in PATTERNS.items()
    }
    every = {**times_us, BOUNDS: np.tile(groups.bound_us, (FOLDS, 1))}
    fold = groups.fold[groups.caller]

    def errors(own: NDArray[np.bool_]) -> dict[str, Cell]:
        cells: dict[str, Cell] = {"count": int(own.sum())}
        for name, values in every.items():
            off = np.abs(values[fold, groups.called] / groups.called_us - 1.0)
            cells[name] = float(off[own].mean()) if own.any() else None
        return cells

    title = f"Single sub-graphs: {len(groups.called):,} calls of {len(np.unique(groups.caller))} workloads, mean error"
    return [
        Comparison(heading, {name: errors(own) for name, own in rows.items()}, False, frozenset(every), head)
        for heading, rows, head in (
            (title, parts, "kind"),
            ("The same, with all operators of a pattern", patterns, "pattern"),
        )
    ]


def evaluate(
    store: Path, device: str, cache: Path, log: Log, fits: Mapping[str, GroupFit] | None = None
) -> list[Comparison]:
    """Fit what is missing, and judge."""
    prepared = prepare_groups(store, device, cache, log)
    if fits is None:
        units = plan_folds(prepare_units(store, device, cache, log), analyser.FITS, analyser.FIT_VERSION, FOLDS)
        fits = fits_for(next(fit.file.parent for fit in units if fit.name == analyser.BEST))
    planned = plan_folds(prepared, fits, GROUP_FIT_VERSION, FOLDS)
    fit_folds(planned, fit_group_fold, prepared, None, 1, log)
    planned, groups = complete(planned, log), load_groups(prepared)
    times_us = read_times(planned, groups)
    whole = {name: latencies_us(groups, times) for name, times in times_us.items()}
    return [*tables(groups, whole), *call_tables(groups, times_us), fit_table(planned)]


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Fit, judge, and write LILOU's page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    parser.add_argument("--report", type=Path, default=Path("reports"))
    options = parser.parse_args()
    found = evaluate(options.store, "h200", options.cache, _say)
    text = (
        "A sub-graph has the nodes that foretell's partitioner puts into one kernel of TorchInductor, and the edges "
        "between them. The labels are sums: the latency of whole compiled workloads, and, where they were traced, the "
        "time of all library kernels and of all generated ones. Single calls judge and do not teach: those of "
        "workloads whose modules tell which sub-graph they are. "
        f"*{AS_PUBLISHED}*: the paper's columns and form, 128 channels, logarithms of microseconds. "
        f"*{BEST}*: the ratio to the bound, foretell's columns of every node, whether Inductor lays images out or "
        "takes attention apart, half of the columns left out in each step, begun with the network of eager units of "
        f"the same fold. *{FORETELL}*: `foretell evaluate compiled` on the same folds; its eager network has seen some "
        "of the architectures in other settings, LILOU's has not."
    )
    write_section(options.report, TITLE, text, found)


if __name__ == "__main__":
    main()
