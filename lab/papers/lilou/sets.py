"""workflows: what LILOU's networks are fitted to, as two small files: a machine that fits needs nothing else.

Edges: the graphs of Inductor and of ONNX Runtime with what each fused, and the latter again for PyTorch's eager mode,
where the nodes of one origin are one call. Units: traced units of inference with their time and the class of their
kernel, and the units of all measured workloads of inference, to be summed.
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
from lab.papers.lilou.features import NodeTable, describe_device, describe_nodes, describe_units

EAGER, ONNX = "eager", "onnxruntime"
SETS_VERSION = 1  # raise it when nodes, edges or units are described otherwise than before
_MEASURED = ("measurements", "kernels", "kernel_nodes")  # graphs are only added to, for workloads that have none
_PARTS = 8  # of the architectures that may teach, one part chooses the best epoch
_PHASE, _NODES = COLUMNS.index("phase"), COLUMNS.index("nodes")

Say = Callable[[str], None]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def is_checked(spec: str) -> bool:
    """Whether a model chooses the best epoch, where its fold does not judge; by architecture."""
    return int.from_bytes(hashlib.sha256(architecture_of(spec).encode()).digest()[4:8], "big") % _PARTS == 0


@dataclass(frozen=True)
class EdgeSet:
    """Graphs, each with the edges that its ``runtime`` fused and those whose ends have one origin.

    ``rows`` says of each node which of the distinct ``nodes`` it is; ``edges`` are numbered within each graph.
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

    ``lengths`` says how many units each workload has; ``bench`` units teach, but do not judge; ``device`` is what the
    device offers.
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


def prepare_edges(store: Path, cache: Path, say: Say = lambda _: None) -> Path:
    """The file of the edges, made where it is not kept."""
    files = find_files(store)
    folders = {file.path.parent for file in files if file.table == "fusion_graphs"}
    file = cache / f"lilou-edges-{_key(store, (each.path for each in files if each.path.parent in folders))}.npz"
    if not file.exists():
        say(f"reading graphs for {file}")
        _save(_read_edges(store, say), file)
    return file


def _key(store: Path, files: Iterable[Path], *also: str) -> str:
    """A hash of some files of the store and of what they are read as: whatever else is collected changes nothing."""
    digest = hashlib.sha256(" ".join((f"{FEATURES_VERSION} {SETS_VERSION}", *also)).encode())
    for path in sorted(files):
        digest.update(f"{path.relative_to(store)}:{path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _read_edges(store: Path, say: Say) -> EdgeSet:
    tables, pairs, facts, families = [], [], [], list[str]()
    fused, origins = list[Flags](), list[Flags]()
    for each in labelled_graphs(store):
        graph = each.graph
        ends = np.array(edges_of(graph), np.int64).reshape(-1, 2)
        if len(ends) != len(each.fused):
            raise DataError(f"{each.spec} has {len(ends)} edges and {len(each.fused)} labels; collect it again.")
        names = [node.origin for node in graph.nodes]
        tables.append(describe_nodes(graph))
        pairs.append(ends.T)
        fused.append(each.fused)
        origins.append(np.array([bool(names[a]) and names[a] == names[b] for a, b in ends.tolist()], bool))
        families.append(each.family)
        facts.append((RUNTIMES.index(each.runtime), fold_of(each.spec), is_checked(each.spec)))
        if len(facts) % 500 == 0:
            say(f"{len(facts)} graphs read")
    if not facts:
        raise DataError(f"No fusion was collected below {store}; a plan of the kind fusion does: foretell collect.")
    nodes, rows = _stacked(tables)
    runtime, fold, checked = np.array(facts, np.int64).T
    return EdgeSet(
        nodes, rows, np.concatenate(pairs, axis=1), np.array([len(table) for table in tables], np.int64),
        np.array([each.shape[1] for each in pairs], np.int64), runtime, fold, np.array(families),
        checked.astype(bool),
        np.concatenate(fused), np.concatenate(origins),
    )  # fmt: skip


def _stacked(tables: Sequence[NodeTable]) -> tuple[NodeTable, Numbers]:
    """The distinct rows of some tables, and which of them each row is, one table after the other."""
    parts = (np.concatenate([getattr(table, name) for table in tables]) for name in NodeTable.__dataclass_fields__)
    distinct, rows = NodeTable(*parts).distinct()
    return distinct, rows.astype(np.int64)


def prepare_units(store: Path, device: str, cache: Path, say: Say = lambda _: None) -> Path:
    """The file of the units, made where it is not kept."""
    device = find_device(device).id
    files = (each.path for each in find_files(store) if each.table in _MEASURED)
    file = cache / f"lilou-units-{device}-{_key(store, files, str(_offered(device).tolist()))}.npz"
    if not file.exists():
        say(f"reading units for {file}")
        labels = read_labels(store, device, cache, say)
        _save(_unit_set(labels, summed_samples(read_samples(store, device, cache, say)), device), file)
    return file


def _offered(device: str) -> NDArray[np.float32]:
    return describe_device(effective(find_device(device)))


def summed_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The workloads whose sums are judged: those of inference that were captured."""
    return [sample for sample in samples if sample.captured and sample.setting.mode != "training"]


def inference_units(labels: KernelLabels) -> Flags:
    """The labelled units that teach: those of inference whose kernels took time."""
    forward = labels.features[:, _PHASE] == PHASES.index("forward")
    return np.asarray(~labels.training & forward & (labels.time_us > 0))


def _unit_set(labels: KernelLabels, samples: Sequence[Sample], device: str) -> UnitSet:
    use = inference_units(labels)
    if not use.any() or not samples:
        raise DataError(f"{int(use.sum())} units of inference are traced, {len(samples)} workloads timed; needs both.")
    every = np.concatenate([labels.features[use], *(sample.units.features for sample in samples)])
    if every[:, _NODES].max() > 1:
        raise DataError(f"A unit has {every[:, _NODES].max():g} nodes, and sub-graphs here are of one: leave it out.")
    nodes, rows = _stacked([describe_units(every)])
    traced = int(use.sum())
    return UnitSet(
        nodes, rows[:traced], labels.time_us[use] / labels.counts[use], labels.label[use].astype(np.int64),
        labels.counts[use], labels.fold[use].astype(np.int64), _checked_rows(rows[:traced]),
        labels.bench[use], np.array(labels.classes), _offered(device), rows[traced:],
        np.array([len(sample.units) for sample in samples], np.int64),
        np.array([fold_of(sample.spec) for sample in samples], np.int64),
        np.array([sample.workload_id for sample in samples]),
    )  # fmt: skip


def _checked_rows(rows: Numbers) -> Flags:
    """Units that choose the best epoch: what equals one of them does not teach; labels do not tell architectures."""
    return np.asarray(rows % _PARTS == 0)


def load_edges(file: Path) -> EdgeSet:
    """What `prepare_edges` kept."""
    return EdgeSet(**_load(file))


def load_units(file: Path) -> UnitSet:
    """What `prepare_units` kept."""
    return UnitSet(**_load(file))


def _save(kept: EdgeSet | UnitSet, file: Path) -> None:
    """Edges are kept as steps: neighbours are near each other, and small numbers pack well."""
    arrays = {name: value for name, value in vars(kept).items() if name != "nodes"}
    if isinstance(kept, EdgeSet):
        arrays["edges"] = np.stack([np.diff(kept.edges[0], prepend=0), kept.edges[1] - kept.edges[0]])
    arrays = {name: value.astype(np.int32) if value.dtype == np.int64 else value for name, value in arrays.items()}
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays, **vars(kept.nodes))
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
