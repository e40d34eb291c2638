"""Lab: LILOU sets: the data of its networks as two small files; a machine that fits needs nothing else.

Edges: the graphs of Inductor and of ONNX Runtime with the edges that each fused, and the latter again for PyTorch's
eager mode, where the nodes of one origin are one call. Units: traced units of inference with their time and the class
of their kernel, and the units of all measured workloads of inference, which are to be summed.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.parquet_files import find_files
from foretell.datasets.splits import architecture_of
from foretell.devices import effective, find_device
from foretell.errors import DataError
from foretell.features.units import COLUMNS, PHASES
from foretell.features.versions import FEATURES_VERSION
from foretell.files import write_whole
from foretell.predictors.fusion.edges import RUNTIMES, edges_of
from foretell.predictors.sample import Sample
from foretell.training.examples.kernel_labels import KernelLabels, read_labels
from foretell.training.examples.samples import read_samples
from foretell.training.fusion import fold_of, labelled_graphs
from foretell.units import KILO
from lab.papers.lilou.features import NodeTable, describe_device, describe_nodes, describe_units

EAGER, ONNX = "eager", "onnxruntime"
SETS_VERSION = 2  # raise it when the description of nodes, edges or units changes
_MEASURED = (
    "measurements",
    "kernels",
    "kernel_nodes",
)  # not graphs: those are only added, for workloads that have none
_PARTS = 8  # one part in so many of the training architectures chooses the best epoch
_PHASE, _NODES = COLUMNS.index("phase"), COLUMNS.index("nodes")

Log = Callable[[str], None]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def is_checked(spec: str) -> bool:
    """Whether a model is on the validation side, where its fold is not judged; by architecture."""
    # other bytes of the hash than `fold_of`: the validation side must not depend on the fold
    return int.from_bytes(hashlib.sha256(architecture_of(spec).encode()).digest()[4:8], "big") % _PARTS == 0


@dataclass(frozen=True)
class EdgeSet:
    """Graphs, each with the edges that its ``runtime`` fused and those whose ends have the same origin.

    ``rows`` says for each node which of the distinct ``nodes`` it is; ``edges`` are numbered within each graph.
    ``checked`` marks validation graphs.
    """

    nodes: NodeTable
    rows: Numbers
    edges: Numbers
    node_counts: Numbers
    edge_counts: Numbers
    runtime: Numbers
    fold: Numbers
    family: NDArray[np.str_]
    checked: Flags
    fused: Flags
    same_origin: Flags


@dataclass(frozen=True)
class UnitSet:
    """Traced units (rows of ``nodes`` by ``rows``), then in ``summed`` those of the workloads ``ids``.

    ``lengths`` is the number of units of each workload; ``bench`` units are training data only; ``checked`` marks
    validation units; ``device`` are the features of the device. ``shapes`` has distinct rows of all that foretell
    knows of a unit; ``shape`` says which one each traced unit has, and ``summed_shape`` each of those to be summed,
    which occurs ``repeats`` times; ``latency_us`` and ``summed_checked`` are those of the workloads.
    """

    nodes: NodeTable
    rows: Numbers
    time_us: NDArray[np.float64]
    label: Numbers
    counts: NDArray[np.float64]
    fold: Numbers
    checked: Flags
    bench: Flags
    classes: NDArray[np.str_]
    device: NDArray[np.float32]
    summed: Numbers
    lengths: Numbers
    summed_fold: Numbers
    ids: NDArray[np.str_]
    shapes: NDArray[np.float32]
    shape: Numbers
    summed_shape: Numbers
    repeats: NDArray[np.float64]
    latency_us: NDArray[np.float64]
    summed_checked: Flags


def prepare_edges(store: Path, cache: Path, log: Log = lambda _: None) -> Path:
    """The file of the edges; it is made if it does not exist."""
    files = find_files(store)
    folders = {file.path.parent for file in files if file.table == "fusion_graphs"}
    file = cache / f"lilou-edges-{key_of(store, (table.path for table in files if table.path.parent in folders))}.npz"
    if not file.exists():
        log(f"reading graphs for {file}")
        _save(_read_edges(store, log), file)
    return file


def key_of(store: Path, files: Iterable[Path], *facts: str) -> str:
    """A hash of some files of the store and of the versions; other files of the store do not change it."""
    digest = hashlib.sha256(" ".join((f"{FEATURES_VERSION} {SETS_VERSION}", *facts)).encode())
    for path in sorted(files):
        digest.update(f"{path.relative_to(store)}:{path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _read_edges(store: Path, log: Log) -> EdgeSet:
    tables, pairs, facts, families = [], [], [], list[str]()
    fused, origins = list[Flags](), list[Flags]()
    for labelled in labelled_graphs(store):
        graph = labelled.graph
        ends = np.array(edges_of(graph), np.int64).reshape(-1, 2)
        if len(ends) != len(labelled.fused):
            raise DataError(
                f"{labelled.spec} has {len(ends)} edges and {len(labelled.fused)} labels; collect it again."
            )
        names = [node.origin for node in graph.nodes]
        tables.append(describe_nodes(graph))
        pairs.append(ends.T)
        fused.append(labelled.fused)
        origins.append(np.array([bool(names[a]) and names[a] == names[b] for a, b in ends.tolist()], bool))
        families.append(labelled.family)
        facts.append((RUNTIMES.index(labelled.runtime), fold_of(labelled.spec), is_checked(labelled.spec)))
        if len(facts) % 500 == 0:
            log(f"{len(facts)} graphs read")
    if not facts:
        raise DataError(
            f"No fusion was collected below {store}; collect some with a plan of the kind fusion: foretell collect."
        )
    nodes, rows = _stacked(tables)
    runtime, fold, checked = np.array(facts, np.int64).T
    return EdgeSet(
        nodes, rows, np.concatenate(pairs, axis=1), np.array([len(table) for table in tables], np.int64),
        np.array([ends.shape[1] for ends in pairs], np.int64), runtime, fold, np.array(families),
        checked.astype(bool),
        np.concatenate(fused), np.concatenate(origins),
    )  # fmt: skip


def _stacked(tables: Sequence[NodeTable]) -> tuple[NodeTable, Numbers]:
    """The distinct rows of some tables, and which of them each row is, table by table."""
    parts = (np.concatenate([getattr(table, name) for table in tables]) for name in NodeTable.__dataclass_fields__)
    distinct, rows = NodeTable(*parts).distinct()
    return distinct, rows.astype(np.int64)


def prepare_units(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> Path:
    """The file of the units; it is made if it does not exist."""
    device = find_device(device).id
    files = (table.path for table in find_files(store) if table.table in _MEASURED)
    file = cache / f"lilou-units-{device}-{key_of(store, files, str(_device_features(device).tolist()))}.npz"
    if not file.exists():
        log(f"reading units for {file}")
        labels = read_labels(store, device, cache, log)
        _save(_unit_set(labels, summed_samples(read_samples(store, device, cache, log)), device), file)
    return file


def _device_features(device: str) -> NDArray[np.float32]:
    return describe_device(effective(find_device(device)))


def summed_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The workloads whose sums are judged: captured ones of inference."""
    return [sample for sample in samples if sample.captured and sample.setting.mode != "training"]


def inference_units(labels: KernelLabels) -> Flags:
    """The labelled units to train on: those of inference whose kernels took time."""
    forward = labels.features[:, _PHASE] == PHASES.index("forward")
    return np.asarray(~labels.training & forward & (labels.time_us > 0))


def _unit_set(labels: KernelLabels, samples: Sequence[Sample], device: str) -> UnitSet:
    is_used = inference_units(labels)
    if not is_used.any() or not samples:
        raise DataError(
            f"{int(is_used.sum())} units of inference are traced and {len(samples)} workloads timed; both are needed."
        )
    all_features = np.concatenate([labels.features[is_used], *(sample.units.features for sample in samples)])
    if all_features[:, _NODES].max() > 1:
        raise DataError(
            f"A unit has {all_features[:, _NODES].max():g} nodes, but sub-graphs here have one: leave it out."
        )
    nodes, rows = _stacked([describe_units(all_features)])
    shapes, shape = np.unique(all_features[:, : len(COLUMNS)], axis=0, return_inverse=True)
    traced = int(is_used.sum())
    return UnitSet(
        nodes, rows[:traced], labels.time_us[is_used] / labels.counts[is_used], labels.label[is_used].astype(np.int64),
        labels.counts[is_used], labels.fold[is_used].astype(np.int64), _checked_rows(rows[:traced]),
        labels.bench[is_used], np.array(labels.classes), _device_features(device), rows[traced:],
        np.array([len(sample.units) for sample in samples], np.int64),
        np.array([fold_of(sample.spec) for sample in samples], np.int64),
        np.array([sample.workload_id for sample in samples]),
        shapes, shape[:traced].astype(np.int64), shape[traced:].astype(np.int64),
        np.concatenate([sample.units.counts for sample in samples]),
        np.array([sample.truth["latency_ms"] for sample in samples]) * KILO,
        np.array([is_checked(sample.spec) for sample in samples]),
    )  # fmt: skip


def _checked_rows(rows: Numbers) -> Flags:
    """Units on the validation side; equal units are on the same side, since labels do not have the architecture."""
    return np.asarray(rows % _PARTS == 0)


def load_edges(file: Path) -> EdgeSet:
    """The set that `prepare_edges` saved."""
    return EdgeSet(**_load(file))


def load_units(file: Path) -> UnitSet:
    """The set that `prepare_units` saved."""
    return UnitSet(**_load(file))


def _save(data_set: EdgeSet | UnitSet, file: Path) -> None:
    """Write a set; edges are stored as differences, because small numbers compress well."""
    arrays = {name: value for name, value in vars(data_set).items() if name != "nodes"}
    if isinstance(data_set, EdgeSet):
        arrays["edges"] = np.stack([np.diff(data_set.edges[0], prepend=0), data_set.edges[1] - data_set.edges[0]])
    arrays = {name: value.astype(np.int32) if value.dtype == np.int64 else value for name, value in arrays.items()}
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays, **vars(data_set.nodes))
    write_whole(file, data.getvalue())


def _load(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as stored:
        arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
    nodes = NodeTable(*(arrays.pop(name) for name in NodeTable.__dataclass_fields__))
    arrays = {name: value.astype(np.int64) if value.dtype == np.int32 else value for name, value in arrays.items()}
    if "edges" in arrays:
        makers = np.cumsum(arrays["edges"][0])
        arrays["edges"] = np.stack([makers, makers + arrays["edges"][1]])
    return {"nodes": nodes, **arrays}
