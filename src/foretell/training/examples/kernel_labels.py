"""Training: kernel labels: for every traced unit of work the class of its main kernel, extracted once and cached.

The main kernel of a unit is the one whose launches together take longest. Equal units of a workload whose main kernels
have the same class are one row with a count.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import TableFile, find_files, read_columns
from foretell.devices import find_device
from foretell.devices.cpu_runs import ONE_THREAD
from foretell.errors import DataError, ForetellError
from foretell.features import COLUMNS, Units, extract_units
from foretell.features.layouts import operand_layouts
from foretell.files import write_whole
from foretell.predictors.kernels.classes import kernel_class
from foretell.records import Target, Workload
from foretell.training.examples.calls import OPTIMIZER, Call
from foretell.training.examples.graphs import read_graphs
from foretell.training.examples.link import run_of_campaigns
from foretell.training.examples.samples import fingerprint, teaching_rows
from foretell.training.examples.workloads import call_nodes, workload_of
from foretell.training.fusion import fold_of

BENCH = "synthetic:operators?"
LABELS_VERSION = 1  # raise it when a unit gets another class or layout than before

Log = Callable[[str], None]
Spent = Counter[str]  # microseconds by the name of a kernel
Calls = dict[tuple[str, int], Spent]  # by phase and node


@dataclass(frozen=True)
class KernelLabels:
    """Units with the class of their main kernel, ``classes[label]``, and the layout of their operands.

    ``counts`` says how many units a row stands for, ``time_us`` how long their kernels took together. A ``bench`` runs
    single operators: it is training data, but no model to be judged on.
    """

    features: NDArray[np.float32]
    layouts: NDArray[np.float32]
    label: NDArray[np.intp]
    counts: NDArray[np.float64]
    time_us: NDArray[np.float64]
    fold: NDArray[np.intp]
    bench: NDArray[np.bool_]
    training: NDArray[np.bool_]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.label)


def read_labels(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> KernelLabels:
    """The labelled units of a device, from the cache where there is one; it is written completely or not at all."""
    device = find_device(device).id
    file = cache / f"kernels-{device}-{fingerprint(store, device, labels=LABELS_VERSION)}.npz"
    if not file.exists():
        _save(_extract(store, device, log), file)
    return _load(file)


def _extract(store: Path, device: str, log: Log) -> KernelLabels:
    traced = _traced_calls(store)
    waiting = teaching_rows(store, device, traced)
    total, done, parts = sum(map(len, waiting.values())), 0, []
    target = Target(find_device(device))
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key]:
            done += 1
            try:
                workload = workload_of(row, graph, target)
                # `pop`: the traces of all workloads fill the memory, and each is needed once
                labelled = _labelled(workload, extract_units(workload), traced.pop(row["workload_id"]))
            except ForetellError as error:
                log(f"left out {row['spec']}: {error}")
                continue
            if labelled is not None:
                parts.append((row, *labelled))
            if done % 500 == 0:
                log(f"{done} of {total} traced workloads read")
    if not parts:
        raise DataError(f"{store} has no traced workload of {device}; name another folder with --store.")
    names, label = np.unique(np.concatenate([names for *_, names, _, _ in parts]), return_inverse=True)
    features = np.concatenate([features for _, features, *_ in parts])
    sizes = [len(counts) for *_, counts, _ in parts]

    def repeat_for_rows(values: Sequence[int | bool], kind: type[np.generic]) -> NDArray[np.generic]:
        return np.repeat(np.array(values, kind), sizes)

    return KernelLabels(
        features[:, : len(COLUMNS)],
        features[:, len(COLUMNS) :],
        label.astype(np.intp),
        np.concatenate([counts for *_, counts, _ in parts]),
        np.concatenate([time_us for *_, time_us in parts]),
        repeat_for_rows([fold_of(row["spec"]) for row, *_ in parts], np.intp),  # type: ignore[arg-type]
        repeat_for_rows([row["spec"].startswith(BENCH) for row, *_ in parts], np.bool_),  # type: ignore[arg-type]
        repeat_for_rows([row["mode"] == "training" for row, *_ in parts], np.bool_),  # type: ignore[arg-type]
        tuple(names.tolist()),
    )


def _traced_calls(store: Path) -> dict[str, Calls]:
    """By workload the kernel time by phase, node and kernel name; of a workload traced twice, the first trace."""
    files, nodes = find_files(store), call_nodes(store)
    run_of = run_of_campaigns(files)
    by_workload: dict[str, Calls] = {}
    for file in files:
        if file.table == "kernels":
            names = kernel_names(files, file.path.parent)
            own: dict[tuple[str, str], Calls] = {}
            for workload_id, campaign, number, op, name, time_us in _kernels(file):
                if run_of.get(campaign, ONE_THREAD) != ONE_THREAD:
                    continue
                node = nodes.get(workload_id, {}).get(number)
                if name not in names:
                    raise DataError(f"{file.path} has kernels without a name; restore kernel_names.parquet beside it.")
                if node is not None and (node >= 0 or node == OPTIMIZER):
                    phase = "optimizer" if node == OPTIMIZER else Call(number, op, "").phase
                    calls = own.setdefault((workload_id, campaign), {})
                    calls.setdefault((phase, node), Counter())[names[name]] += time_us  # type: ignore[assignment]
            for (workload_id, _), calls in own.items():
                by_workload.setdefault(workload_id, calls)
    return by_workload


def _kernels(file: TableFile) -> Iterator[tuple[str, str, int, str, int, float]]:
    """The kernels of a call with one name, added up, in the order of the campaigns in the file."""
    requested = ("workload_id", "campaign_id", "op_index", "op", "name_id", "duration_us")
    table = read_columns(file, requested)
    keys = [name for name in requested[:-1] if name in table.column_names]
    # one thread keeps the order of the groups, which decides which campaign comes first
    columns = table.group_by(keys, use_threads=False).aggregate([("duration_us", "sum")]).to_pydict()
    campaigns = columns.get("campaign_id") or [""] * len(columns["workload_id"])
    rest = (columns[name] for name in ("op_index", "op", "name_id", "duration_us_sum"))
    yield from zip(columns["workload_id"], campaigns, *rest, strict=True)


def kernel_names(files: Sequence[TableFile], folder: Path) -> dict[int, str]:
    """The names of kernels in one folder, by their number."""
    names: dict[int, str] = {}
    for file in files:
        if file.table == "kernel_names" and file.path.parent == folder:
            columns = read_columns(file, ("name_id", "name")).to_pydict()
            names.update(zip(columns["name_id"], columns["name"], strict=True))
    return names


def _labelled(
    workload: Workload, units: Units, calls: Mapping[tuple[str, int], Spent]
) -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.float64], NDArray[np.float64]] | None:
    """Features and layouts, class, count and time of the distinct units that ran kernels; None if none did."""
    positions = {node.name: position for position, node in enumerate(workload.graph.nodes)}
    running = workload.running_graph.nodes
    described = np.concatenate([units.features, operand_layouts(workload, units)], axis=1)
    rows: dict[tuple[bytes, str], list[float]] = {}
    for number, (phase, members) in enumerate(zip(units.phases, units.nodes, strict=True)):
        # casts that autocast adds are not in the graph that was traced
        places = (
            [OPTIMIZER] if phase == "optimizer" else [positions.get(running[member].name, -1) for member in members]
        )
        spent = sum((calls[phase, place] for place in places if (phase, place) in calls), start=Counter[str]())
        if spent:
            main = max(spent, key=lambda name: spent[name])
            # the bytes of the features are the key: equal units merge
            row = rows.setdefault((described[number].tobytes(), str(kernel_class(main))), [0.0, 0.0])
            row[0] += 1
            row[1] += sum(spent.values())
    if not rows:
        return None
    features = np.frombuffer(b"".join(features for features, _ in rows), np.float32).reshape(len(rows), -1)
    counts, time_us = np.array(list(rows.values())).T
    return features, np.array([name for _, name in rows]), counts, time_us


def _save(labels: KernelLabels, file: Path) -> None:
    data = io.BytesIO()
    arrays = {name: np.asarray(value) for name, value in vars(labels).items()}
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(file, data.getvalue())


def _load(file: Path) -> KernelLabels:
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return KernelLabels(**{**arrays, "classes": tuple(arrays["classes"].tolist())})
