"""Training: compiled: fit a model of latency under ``torch.compile``, and judge it on architectures it has not seen.

The shipped predictor gives the times of kernels in eager mode. It has seen some of these architectures, mostly in other
settings; the report has separate rows for these and for the others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.datasets.splits import architecture_of
from foretell.devices import Device, find_device
from foretell.errors import DataError, InputError
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.predictors import Predictor, find_predictor
from foretell.predictors.compiled.fit import Measured, fit_compiled
from foretell.predictors.compiled.model import (
    CompiledModel,
    CompiledPredictor,
    compiled,
    file_name,
    find_kernels,
    write,
)
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.fusion.kernel_graph import split_cycles
from foretell.predictors.fusion.partitioner import Partitioner
from foretell.predictors.slices.model import UnitTimePredictor
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.records import Target
from foretell.training.compiled_calls import measured_calls, read_calls
from foretell.training.examples.graphs import GraphKey, collect_graphs, read_graphs, write_graphs
from foretell.training.examples.workloads import measured_rows, workload_of
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import accuracy
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import KILO

COMPILER = "inductor"
MODEL, EAGER, MEAN = "compiled", "eager prediction as it is", "eager prediction times the mean gain"
GAIN = 0.05
_COLUMNS = (
    "workload_id", "spec", "family", "mode", "dtype", "batch_size", "input_shape", "eager_ms", "compiled_ms", "status",
)  # fmt: skip
_GENERATED = "triton_"
_MAX_DEVIATION = 0.2  # a trace whose sum is farther from the measured latency is of a different run
_GRAPHS = "compiled-graphs"
_RATES = frozenset(("mape", "median_ape", "within_10_percent", "sign", "sign_of_gains", "slower_found", "eager_mape"))

Log = Callable[[str], None]
Values = NDArray[np.float64]


def parts_of(graph: Graph, partitioner: Partitioner) -> list[tuple[int, ...]]:
    """The nodes of every kernel under Inductor, split so that each can run."""
    return split_cycles(graph, partitioner.partition(graph, COMPILER).kernels)


def on_compile(predictor: Predictor, device: str) -> CompiledPredictor:
    """The predictor with the shipped model of compiled times."""
    return compiled(predictor, device, lambda graph: parts_of(graph, _partitioner()))


@cache
def _partitioner() -> Partitioner:
    """The shipped partitioner; reading it takes longer than using it."""
    return Partitioner.shipped()


def check_compile_request(mode: str, device: Device, others: Mapping[str, object]) -> None:
    """Refuse what was not measured under ``torch.compile``; ``others`` are options for eager mode alone."""
    if device.is_cpu:
        raise InputError(f"torch.compile was measured on GPUs, not on {device.id}: leave out --runtime compiled.")
    if mode != "inference":
        raise InputError(f"torch.compile was measured in inference, not in {mode}: leave out --runtime compiled.")
    for name, value in others.items():
        if value:
            raise InputError(f"{name} is for eager mode only: leave it out, or leave out --runtime compiled.")


@dataclass(frozen=True)
class CompiledSet:
    """Compiled workloads: the measurements, the predicted eager latency, and which architectures were seen.

    ``calls`` are the calls of each workload whose times were measured one by one; most have none.
    """

    device: str
    rows: Sequence[Mapping[str, Any]]
    measured: Sequence[Measured]
    predicted_eager_ms: Values
    seen: NDArray[np.bool_]
    calls: Sequence[Sequence[Measured]] = ()

    @property
    def eager_ms(self) -> Values:
        """The latency measured in eager mode."""
        return np.array([row["eager_ms"] for row in self.rows])

    @property
    def compiled_ms(self) -> Values:
        """The latency measured under ``torch.compile``."""
        return np.array([row["compiled_ms"] for row in self.rows])

    @property
    def fold(self) -> NDArray[np.intp]:
        """The fold of each row: that of its architecture."""
        return np.array([fold_of(row["spec"]) for row in self.rows], np.intp)

    @cached_property
    def held_out_models(self) -> Mapping[int, CompiledModel]:
        """For each fold a model that has not seen it."""
        fold = self.fold
        if len(np.unique(fold)) == 1:
            raise DataError("All compiled workloads belong to one fold; measure more architectures.")
        return {number: self.fit(np.flatnonzero(fold != number)) for number in np.unique(fold).tolist()}

    def fit(self, rows: NDArray[np.intp]) -> CompiledModel:
        """A model fitted to these rows."""
        return fit_compiled([self.measured[row] for row in rows.tolist()], self.device)

    def latencies_ms(self, model: CompiledModel, rows: NDArray[np.intp]) -> Values:
        """The predictions of a model for some rows."""
        return np.array([model.times_us(self.measured[row].kernels).sum() / KILO for row in rows.tolist()])


def read_compiled(
    store: Path, device: str, cache: Path, predictor: Predictor | None = None, log: Log = lambda _: None
) -> CompiledSet:
    """The compiled workloads below ``store``; graphs that it lacks are made and cached in ``cache``."""
    target_device = find_device(device)
    eager = predictor or find_predictor(None, target_device.id)
    if not isinstance(eager, UnitTimePredictor):
        raise InputError(f"No predictor of units is fitted to {target_device.id}; fit one first: foretell train.")
    rows = _measured(store)
    if not rows:
        raise DataError(
            f"No compiled workload was measured below {store}; measure some with a plan of the kind compiled."
        )
    traces, all_calls, partitioner = _traces(store), read_calls(store), Partitioner.shipped()
    known = {architecture_of(row["spec"]) for row in measured_rows(store).values()}
    used_rows, measured, eager_ms = list[Mapping[str, Any]](), list[Measured](), list[float]()
    calls = list[Sequence[Measured]]()
    for row, graph in _with_graphs(store, cache, rows, log):
        workload = workload_of(row, graph, Target(target_device))
        latency = eager.predict(workload).latency_ms
        kernels = find_kernels(workload, eager, lambda graph: parts_of(graph, partitioner))
        # a model that launches nothing cannot be compiled into something faster
        if latency is None or not len(kernels):
            continue
        latency_us = row["compiled_ms"] * KILO
        used_rows.append(row)
        eager_ms.append(latency.value)
        measured.append(Measured(kernels, latency_us, *_by_kind(traces.get(row["workload_id"], ()), latency_us)))
        calls.append(measured_calls(workload, kernels, all_calls.get(row["workload_id"], ())))
        if len(used_rows) % 40 == 0:
            log(f"{len(used_rows)} of {len(rows)} compiled workloads read")
    if not used_rows:
        raise DataError(f"None of {len(rows)} compiled workloads has a graph; make them: foretell data graphs.")
    # the eager predictor was fitted to all measured workloads, whatever their setting
    seen = np.array([architecture_of(row["spec"]) in known for row in used_rows], bool)
    return CompiledSet(target_device.id, used_rows, measured, np.array(eager_ms), seen, calls)


def _measured(store: Path) -> list[Mapping[str, Any]]:
    """The first successful measurement of every workload."""
    rows: dict[str, Mapping[str, Any]] = {}
    for file in find_files(store):
        if file.table == "compiled":
            for row in read_columns(file, _COLUMNS).to_pylist():
                if row["status"] == "ok":
                    rows.setdefault(row["workload_id"], row)
    return list(rows.values())


def _traces(store: Path) -> dict[str, list[tuple[str, float]]]:
    """By workload the names and times of its kernels; where a workload was traced twice, the first trace."""
    kernels_of: defaultdict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "compiled_kernels":
            columns = ("campaign_id", "workload_id", "name", "duration_us")
            for campaign, workload, *kernel in zip(*read_columns(file, columns).select(columns).to_pydict().values()):
                kernels_of[workload, campaign].append((kernel[0], kernel[1]))
    first: dict[str, list[tuple[str, float]]] = {}
    # dictionaries keep their order: the first campaign of a workload wins
    for (workload, _), kernels in kernels_of.items():
        first.setdefault(workload, kernels)
    return first


def _by_kind(kernels: Sequence[tuple[str, float]], latency_us: float) -> tuple[float, float]:
    """The time of library kernels and of generated kernels; NaN where the trace is of a different run."""
    generated_us = sum(time_us for name, time_us in kernels if name.startswith(_GENERATED))
    total_us = sum(time_us for _, time_us in kernels)
    if abs(total_us / latency_us - 1.0) > _MAX_DEVIATION:
        return float("nan"), float("nan")
    # profiling slows a run down a little: scale its parts to the timed latency
    scale = latency_us / total_us
    return (total_us - generated_us) * scale, generated_us * scale


def _with_graphs(
    store: Path, cache: Path, rows: Sequence[Mapping[str, Any]], log: Log
) -> Iterator[tuple[Mapping[str, Any], Graph]]:
    """Rows with their graphs: from the store first, then from the cache."""
    waiting: defaultdict[GraphKey, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        waiting[GraphKey.of(row)].append(row)
    for key, _, graph in read_graphs(store, list(waiting)):
        yield from ((row, graph) for row in waiting.pop(key))
    if not waiting:
        return
    log(f"{len(waiting)} graphs are not in {store}; they are kept in {cache / _GRAPHS}")
    families = {key: str(own[0]["family"] or "") for key, own in waiting.items()}
    collect_graphs(families, cache / _GRAPHS, on_progress=lambda done, total, *_: log(f"{done} of {total} graphs"))
    write_graphs(cache / _GRAPHS, cache / _GRAPHS)
    for key, _, graph in read_graphs(cache / _GRAPHS, list(waiting)):
        yield from ((row, graph) for row in waiting.pop(key))


def judge(compiled_set: CompiledSet, log: Log = lambda _: None) -> dict[str, Values]:
    """The latency of every row, by models that have not seen its architecture, and by baselines."""
    fold, gains = compiled_set.fold, compiled_set.compiled_ms / compiled_set.eager_ms
    predictions = {
        MODEL: np.full(len(fold), np.nan),
        MEAN: np.full(len(fold), np.nan),
        EAGER: compiled_set.predicted_eager_ms,
    }
    for number, model in compiled_set.held_out_models.items():
        log(f"fold {number + 1} of {FOLDS}")
        training, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        predictions[MODEL][held_out] = compiled_set.latencies_ms(model, held_out)
        # the geometric mean of the gain: gains are ratios
        predictions[MEAN][held_out] = compiled_set.predicted_eager_ms[held_out] * np.exp(np.log(gains[training]).mean())
    return predictions


def judge_calls(compiled_set: CompiledSet) -> Comparison | None:
    """How well single calls are predicted, by operator, by models that have not seen their architecture; None without.

    Errors are weighted by time: the mean of |predicted − measured| over the mean measured time.
    """
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for number, own in zip(compiled_set.fold.tolist(), compiled_set.calls, strict=False):
        model = compiled_set.held_out_models[number]
        total_us = sum(call.latency_us for call in own)
        for call in own:
            predicted_us = float(model.times_us(call.kernels).sum())
            # every workload counts the same, however long it takes
            found[call.kernels.operators[0]].append((predicted_us / total_us, call.latency_us / total_us))
    if not found:
        return None
    workloads = sum(bool(own) for own in compiled_set.calls)
    rows: dict[str, dict[str, Cell]] = {}
    for name, pairs in sorted(found.items(), key=lambda item: -sum(time for _, time in item[1])):
        predicted, measured = np.array(pairs).T
        rows[name] = {
            "count": len(pairs),
            "share": float(measured.sum() / workloads),
            "error": float(np.abs(predicted - measured).sum() / measured.sum()),
            "sum": float(predicted.sum() / measured.sum()),
        }
    title = f"Single calls of {workloads} workloads, held out, by operator"
    return Comparison(title, rows, ranked=False, shares=frozenset(("share", "error", "sum")), head="")


def is_sign_right(compiled_set: CompiledSet, latency_ms: Values) -> NDArray[np.bool_]:
    """For each row whether the sign of the gain is right; both latencies are predicted."""
    return np.asarray(
        # predicted against predicted, and measured against measured: systematic errors cancel
        (latency_ms < compiled_set.predicted_eager_ms) == (compiled_set.compiled_ms < compiled_set.eager_ms)
    )


def compare(compiled_set: CompiledSet, predictions: Mapping[str, Values]) -> list[Comparison]:
    """Tables: all rows, then by whether the architecture was seen, by zoo, dtype, batch and family."""
    architectures = len({architecture_of(row["spec"]) for row in compiled_set.rows})
    size = f"{len(compiled_set.rows)} workloads of {architectures} architectures"
    every = np.arange(len(compiled_set.rows))
    tables = [
        _table(
            f"{size}, held out", {name: _figures(compiled_set, one, every) for name, one in predictions.items()}, "by"
        )
    ]
    known = np.where(compiled_set.seen, "seen in eager mode", "never seen")
    keys = {
        "By whether eager mode was learned from the architecture": known.tolist(),
        "By zoo": [row["spec"].partition(":")[0] for row in compiled_set.rows],
        "By dtype": [row["dtype"] for row in compiled_set.rows],
        "By batch": [f"{row['batch_size']}" for row in compiled_set.rows],
        "By family, worst first": [row["family"] or "" for row in compiled_set.rows],
    }
    for title, names in keys.items():
        column = np.array(names)
        own = {name: np.flatnonzero(column == name) for name in np.unique(column).tolist()}
        rows = {name: _figures(compiled_set, predictions[MODEL], members) for name, members in own.items()}
        worst = dict(sorted(rows.items(), key=lambda row: -float(row[1]["mape"] or 0.0)))  # type: ignore[arg-type]
        tables.append(_table(title, worst, ""))
    return tables


def _figures(compiled_set: CompiledSet, latency_ms: Values, rows: NDArray[np.intp]) -> dict[str, Cell]:
    own = accuracy(compiled_set.compiled_ms[rows], latency_ms[rows])
    right = is_sign_right(compiled_set, latency_ms)[rows]
    gains = (compiled_set.compiled_ms / compiled_set.eager_ms - 1.0)[rows]
    # gains within the noise say nothing about the sign
    clear, slower = np.abs(gains) > GAIN, gains > GAIN
    return {
        "count": len(rows),
        "mape": own.mape,
        "median_ape": own.median_ape,
        "within_10_percent": own.within_10_percent,
        "sign": float(right.mean()),
        "sign_of_gains": float(right[clear].mean()) if clear.any() else None,
        "slower_found": float(right[slower].mean()) if slower.any() else None,
        "eager_mape": accuracy(compiled_set.eager_ms[rows], compiled_set.predicted_eager_ms[rows]).mape,
    }


def _table(title: str, rows: Mapping[str, Mapping[str, Cell]], head: str) -> Comparison:
    return Comparison(title, rows, ranked=False, shares=_RATES, head=head)


def evaluate(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> list[Comparison]:
    """Held-out tables."""
    compiled_set = read_compiled(store, device, cache, log=log)
    tables = compare(compiled_set, judge(compiled_set, log))
    calls = judge_calls(compiled_set)
    # the long table by family stays the last
    return tables if calls is None else [*tables[:-1], calls, tables[-1]]


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Latency under torch.compile\n\n"
        "Architectures held out, five folds. Remade by `foretell evaluate compiled --report`.\n\n"
        "`sign`: whether compiling makes it faster, both latencies predicted; `sign_of_gains`: the same where it makes "
        f"more than {GAIN:.0%} of difference, `slower_found` where it makes it slower by more than that. `eager_mape` "
        "is the error of the latency in eager mode, predicted by the shipped predictor, which has seen some of the "
        "architectures, mostly in other settings.\n\n"
        "Single calls: `share` of the time of their workloads, `error` weighted by time, `sum` predicted over measured."
    )
    write_whole(folder / "compiled.md", page(text, tables))
    return folder / "compiled.md"


def train(store: Path, device: str, cache: Path, out: Path, log: Log = lambda _: None) -> Path:
    """Fit a model to all compiled workloads, and write it with its held-out errors."""
    compiled_set = read_compiled(store, device, cache, log=log)
    predicted_ms = judge(compiled_set, log)[MODEL]
    error = conformal_quantile(np.abs(np.log(predicted_ms / compiled_set.compiled_ms)), Settings().miss)
    model = replace(compiled_set.fit(np.arange(len(compiled_set.rows))), error=error)
    every = np.arange(len(compiled_set.rows))
    card = {"workloads": len(compiled_set.rows), "held_out": _figures(compiled_set, predicted_ms, every)}
    return write_fitted(out, file_name(compiled_set.device), write(model, card))
