"""Lab: DNN-occu and its baselines beside the product, on the same counted workloads and folds; and the paper's studies.

Each fold of architectures is the test side once; the next fold chooses the epoch, the others train. Predictions and
losses of a fit are cached, so that one machine can fit and another judge. Studies of the paper that the data allow: by
number of nodes and edges (figure 5), and one kind of transformer as training data for others (table V).
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.occupancy.fit import NetworkFit
from foretell.training import occupancy
from foretell.training.examples.launches import read_counted
from foretell.training.examples.samples import fingerprint
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import accuracy
from foretell.training.judging.table import PERCENT, Cell, Comparison, page
from lab.papers.dnn_occu.graphs import OccupancyGraph, read_occupancy_graphs

STUDY_VERSION = 1  # raise it when a network, its features or its fitting changes: saved predictions are then made again
OURS, MEAN = "foretell", "mean of the training side"
NODES, EDGES = (100, 250, 500, 1000), (100, 250, 500, 1000)
# table V: trained on one kind of transformer, asked for others
TEACHER = ("vit_tiny", "deit_tiny", "vit_small", "deit_small")
STUDENTS: Mapping[str, tuple[str, ...]] = {
    "Swin": ("timm:swin", "torchvision:swin"),
    "MaxViT": ("timm:maxvit", "timm:maxxvit", "torchvision:maxvit"),
    "other ViT": ("timm:vit_", "timm:deit", "torchvision:vit"),
    "BERT": ("hf:bert", "hf:distilbert", "hf:roberta"),
    "GPT-2": ("hf:gpt2",),
}
_SHARES = PERCENT | {"loss fell", "fits that converged"}

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Counted:
    """The counted workloads that have a graph, and their occupancy in per cent."""

    rows: Sequence[Mapping[str, Any]]
    graphs: Sequence[OccupancyGraph]

    @property
    def truth(self) -> Values:
        """What the counter showed."""
        return np.array([row["occupancy_weighted"] for row in self.rows], np.float64)

    @property
    def fold(self) -> NDArray[np.intp]:
        """The fold of each workload: that of its architecture."""
        return np.array([fold_of(row["spec"]) for row in self.rows], np.intp)

    def of(self, places: NDArray[np.intp]) -> tuple[list[OccupancyGraph], Values]:
        """Some graphs with their occupancy."""
        return [self.graphs[place] for place in places], self.truth[places]


def read_counted_graphs(store: Path, device: str) -> Counted:
    """All counted workloads with their graphs."""
    rows = read_counted(store)
    if not rows:
        raise DataError(f"No occupancy was counted below {store}; count some: python -m lab collect.")
    graphs = read_occupancy_graphs(store, device, list(rows))
    return Counted([rows[name] for name in graphs], list(graphs.values()))


def fold_predictions(
    counted: Counted, name: str, folder: Path, seconds: float | None, device: str, log: Log
) -> tuple[Values, list[dict[str, Any]]]:
    """The held-out predictions of a network for all workloads, and what each fit says of itself."""
    predicted, notes = np.full(len(counted.rows), np.nan), list[dict[str, Any]]()
    for fold in np.unique(counted.fold).tolist():
        test = np.flatnonzero(counted.fold == fold)
        validation = np.flatnonzero(counted.fold == (fold + 1) % FOLDS)
        train = np.flatnonzero((counted.fold != fold) & (counted.fold != (fold + 1) % FOLDS))
        file = folder / f"{name}-{fold}.npz"
        if not file.exists():
            write_whole(file, _fit(counted, name, (train, validation, test), seconds, device, log))
        predicted[test], note = _read(file)
        notes.append(note)
    return predicted, notes


def _fit(
    counted: Counted, name: str, sides: tuple[NDArray[np.intp], ...], seconds: float | None, device: str, log: Log
) -> bytes:
    """A fit's predictions for the last of three sides, as one file."""
    # torch is needed only where something is fitted
    from lab.papers.dnn_occu.fitting import Fit, fit_network

    train, validation, test = sides
    if not len(train) or not len(validation):
        raise DataError("Too few folds have counted workloads: count more architectures.")
    fit = Fit(seconds=seconds, device=device)
    fitted = fit_network(name, counted.of(train), counted.of(validation), fit, log)
    notes = {"losses": fitted.losses, "converged": fitted.converged, "fit": asdict(fit)}
    data = io.BytesIO()
    predicted = fitted.predict(counted.of(test)[0])
    np.savez_compressed(data, allow_pickle=False, predicted=predicted, notes=np.array(json.dumps(notes)))
    return data.getvalue()


def _read(file: Path) -> tuple[Values, dict[str, Any]]:
    with np.load(file, allow_pickle=False) as stored:
        return stored["predicted"], json.loads(str(stored["notes"]))


def learn_from_one_kind(
    counted: Counted, name: str, folder: Path, seconds: float | None, device: str, log: Log
) -> dict[str, Cell]:
    """Table V: errors on other transformers of a network that was fitted to small vision transformers alone."""
    specs = [str(row["spec"]) for row in counted.rows]
    teachers = np.array([any(word in spec for word in TEACHER) for spec in specs])
    places = np.flatnonzero(teachers)
    groups = {
        student: np.array(
            [place for place, spec in enumerate(specs) if spec.startswith(starts) and not teachers[place]], np.intp
        )
        for student, starts in STUDENTS.items()
    }
    every = np.concatenate(list(groups.values()))
    if len(places) < 4 or not len(every):
        return {}
    file = folder / f"{name}-one-kind.npz"
    if not file.exists():
        write_whole(file, _fit(counted, name, (places[1::2], places[::2], every), seconds, device, log))
    predicted = dict(zip(every.tolist(), _read(file)[0].tolist(), strict=True))
    return {
        student: float(np.mean([abs(predicted[place] / counted.truth[place] - 1) for place in group.tolist()]))
        for student, group in groups.items()
        if len(group)
    }


def compare(
    counted: Counted, predictions: Mapping[str, Values], notes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[Comparison]:
    """Tables: all workloads, by nodes, by edges, and how the fits ended."""
    truth = counted.truth
    figures = {
        name: {key: value for key, value in asdict(accuracy(truth, values)).items() if key != "count"}
        | {"mse": float(np.mean((values - truth) ** 2)) / 1e4}
        for name, values in predictions.items()
    }
    nodes = [len(graph) for graph in counted.graphs]
    edges = [graph.edges.shape[1] for graph in counted.graphs]
    tables = [Comparison(f"{len(truth)} counted workloads, architectures held out", figures)]
    tables += [
        _by_size(f"By {what}: mean relative error", sizes, ends, truth, predictions)
        for what, sizes, ends in (("nodes", nodes, NODES), ("edges", edges, EDGES))
    ]
    fits = {
        name: {
            "fits": len(own),
            "fits that converged": float(np.mean([note["converged"] for note in own])),
            "epochs": float(np.mean([len(note["losses"]) for note in own])),
            "first loss": float(np.mean([note["losses"][0][0] for note in own])),
            "last loss": float(np.mean([note["losses"][-1][0] for note in own])),
            "best validation": float(np.mean([min(error for _, error in note["losses"]) for note in own])),
        }
        for name, own in notes.items()
    }
    if fits:
        tables.append(Comparison("How the fits ended (mean squared errors)", fits, ranked=False, shares=_SHARES))
    return tables


def _by_size(
    title: str, sizes: Sequence[int], ends: Sequence[int], truth: Values, predictions: Mapping[str, Values]
) -> Comparison:
    band, rows = np.searchsorted(ends, sizes), dict[str, dict[str, Cell]]()
    for number in np.unique(band).tolist():
        own = band == number
        name = f"up to {ends[number]}" if number < len(ends) else f"above {ends[-1]}"
        rows[name] = {"count": int(own.sum())}
        rows[name] |= {key: float(np.abs(values[own] / truth[own] - 1).mean()) for key, values in predictions.items()}
    return Comparison(title, rows, ranked=False, shares=frozenset(predictions), head="size")


def evaluate(
    store: Path, device: str, cache: Path, *, only_networks: bool = False, fit_seconds: float | None = None,
    processes: int = 1, log: Log = lambda _: None,
) -> list[Comparison]:  # fmt: skip
    """All tables; networks are fitted on CUDA where torch finds it. With ``only_networks`` nothing is judged."""
    del processes
    from foretell.predictors.unit.fit_network import default_device
    from lab.papers.dnn_occu.networks import NETWORKS

    device, runs_on = find_device(device).id, default_device()
    counted = read_counted_graphs(store, device)
    made_of = fingerprint(store, device, dnn_occu=STUDY_VERSION, counted=len(counted.rows))
    folder = cache / f"dnn-occu-{device}-{hashlib.sha256(f'{made_of} {fit_seconds}'.encode()).hexdigest()[:16]}"
    predictions, notes, one_kind = dict[str, Values](), dict[str, Any](), dict[str, dict[str, Cell]]()
    for name in NETWORKS:
        predictions[name], notes[name] = fold_predictions(counted, name, folder, fit_seconds, runs_on, log)
        one_kind[name] = learn_from_one_kind(counted, name, folder, fit_seconds, runs_on, log)
    if only_networks:
        return []
    predictions = {OURS: _ours(counted, store, device, cache, log), **predictions, MEAN: _means(counted)}
    tables = compare(counted, predictions, notes)
    known = {name: cells for name, cells in one_kind.items() if cells}
    if known:
        title = "Trained on small vision transformers alone: mean relative error on others"
        tables.append(Comparison(title, known, ranked=False, shares=frozenset(STUDENTS)))
    return tables


def _ours(counted: Counted, store: Path, device: str, cache: Path, log: Log) -> Values:
    """What the product predicts for the same workloads, without their architecture."""
    data = occupancy.read_occupancy(store, device, cache, log)
    fit = NetworkFit()
    judged = occupancy.judge(data, occupancy.fold_files(store, device, cache, fit), fit, log)
    known = dict(zip((sample.workload_id for sample in judged.samples), judged.predicted, strict=True))
    return np.array([known[row["workload_id"]] for row in counted.rows])


def _means(counted: Counted) -> Values:
    return np.array([counted.truth[counted.fold != fold].mean() for fold in counted.fold])


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# DNN-occu and its baselines beside foretell\n\n"
        "The same counted workloads and folds; no variant of a test architecture in training. `mse` is of occupancy as "
        "a share, as in the paper. Remade by `python -m lab evaluate dnn-occu --report`."
    )
    write_whole(folder / "dnn-occu.md", page(text, tables))
    return folder / "dnn-occu.md"
