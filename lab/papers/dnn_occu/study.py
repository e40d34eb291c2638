"""Lab: DNN-occu and its baselines beside the product, on the same counted workloads and folds; and the paper's studies.

Each fold of architectures is the test side once; the next fold chooses the epoch, the others train. Predictions and
losses of a fit are cached, so that one machine can fit and another judge. Studies of the paper that the data allow: by
number of nodes and edges (figure 5), and one kind of transformer as training data for others (table V).
"""

import gzip
import hashlib
import io
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.occupancy.fit import NetworkFit
from foretell.training import occupancy
from foretell.training.examples.launches import read_counted
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import accuracy
from foretell.training.judging.table import PERCENT, Cell, Comparison, page
from lab.papers.dnn_occu.graphs import OccupancyGraph, graphs_from_bytes, graphs_to_bytes, read_occupancy_graphs

if TYPE_CHECKING:
    from lab.papers.dnn_occu.fitting import Fit

QUICKEST_FIRST = (
    "mlp",
    "brp-nas",
    "dnnperf",
    "transformer",
    "dnn-occu",
    "lstm",
)  # a limit then leaves whole rows of the table
STUDY_VERSION = 2  # raise it when a network, its features or its fitting changes: saved predictions are then made again
OURS, MEAN = "foretell", "mean of the training side"
NODES, EDGES = (100, 250, 500, 1000), (100, 250, 500, 1000)
# table V: trained on one kind of transformer, asked for others
TEACHER = ("timm:vit_tiny",)
ONE_KIND = "one-kind"
STUDENTS: Mapping[str, tuple[str, ...]] = {
    "Swin": ("timm:swin", "torchvision:swin"),
    "MaxViT": ("timm:maxvit", "timm:maxxvit", "torchvision:maxvit"),
    "ViT-S": ("timm:vit_small", "timm:deit_small"),
    "BERT": ("hf:bert", "hf:distilbert", "hf:roberta"),
    "GPT-2": ("hf:gpt2",),
}
# table IV: two towers as one model, and each alone
CLIP: Mapping[str, tuple[str, ...]] = {
    "two towers": ("hf:clip?",),
    "text tower": ("hf:clip_text_model",),
    "image tower": ("hf:clip_vision_model", "timm:resnet50_clip"),
}
_SHARES = PERCENT | {"fits that converged"}

Log = Callable[[str], None]
Values = NDArray[np.float64]
Places = NDArray[np.intp]


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

    def of(self, places: Places) -> tuple[list[OccupancyGraph], Values]:
        """Some graphs with their occupancy."""
        return [self.graphs[place] for place in places], self.truth[places]

    def starting_with(self, starts: tuple[str, ...]) -> Places:
        """The places of the workloads whose model's name starts so."""
        return np.array([place for place, row in enumerate(self.rows) if row["spec"].startswith(starts)], np.intp)


@dataclass(frozen=True)
class PlannedFit:
    """A network, what it is fitted for, and the workloads that train, choose the epoch, and are asked for."""

    network: str
    study: str
    train: Places
    validation: Places
    test: Places

    def file(self, folder: Path) -> Path:
        """Where its predictions are."""
        return folder / f"{self.network}-{self.study}.npz"


def read_counted_graphs(store: Path, device: str, cache: Path) -> tuple[Counted, Path]:
    """All counted workloads with their graphs, and the folder of what is fitted to them; both hang on what was counted.

    Reading the graphs takes half a minute; they are cached as one file of 2 MB, so that another machine can fit.
    """
    rows = read_counted(store)
    if not rows:
        raise DataError(f"No occupancy was counted below {store}; count some: python -m lab collect.")
    counts = sorted((name, round(float(row["occupancy_weighted"]), 3)) for name, row in rows.items())
    folder = cache / f"dnn-occu-{device}-{hashlib.sha256(f'{STUDY_VERSION} {counts}'.encode()).hexdigest()[:16]}"
    file = folder / "graphs.npz"
    if not file.exists():
        write_whole(file, graphs_to_bytes(read_occupancy_graphs(store, device, list(rows))))
    graphs = graphs_from_bytes(file.read_bytes())
    return Counted([rows[graph.workload_id] for graph in graphs], graphs), folder


def plan_fits(counted: Counted) -> list[PlannedFit]:
    """All fits, the quickest first."""
    studies = dict[str, tuple[Places, Places, Places]]()
    for fold in np.unique(counted.fold).tolist():
        beside = (fold + 1) % FOLDS
        train = np.flatnonzero((counted.fold != fold) & (counted.fold != beside))
        studies[str(fold)] = train, np.flatnonzero(counted.fold == beside), np.flatnonzero(counted.fold == fold)
    teachers = counted.starting_with(TEACHER)
    students = np.concatenate([counted.starting_with(starts) for starts in STUDENTS.values()])
    if len(teachers) >= 3 and len(students):
        chooses = np.arange(len(teachers)) % 3 == 0
        studies[ONE_KIND] = teachers[~chooses], teachers[chooses], students
    if any(not len(train) or not len(validation) for train, validation, _ in studies.values()):
        raise DataError("Too few folds have counted workloads: count more architectures.")
    return [PlannedFit(network, study, *sides) for network in QUICKEST_FIRST for study, sides in studies.items()]


def fold_predictions(counted: Counted, network: str, folder: Path) -> tuple[Values, list[dict[str, Any]]]:
    """The held-out predictions of a network for all workloads, and what each fit says of itself."""
    predicted, notes = np.full(len(counted.rows), np.nan), list[dict[str, Any]]()
    for fit in plan_fits(counted):
        if fit.network == network and fit.study != ONE_KIND:
            predicted[fit.test], note = _read(fit.file(folder))
            notes.append(note)
    return predicted, notes


def _read(file: Path) -> tuple[Values, dict[str, Any]]:
    with np.load(file, allow_pickle=False) as stored:
        return stored["predicted"], json.loads(str(stored["notes"]))


def fit_planned(planned: Sequence[PlannedFit], counted: Counted, folder: Path, fit: "Fit", log: Log) -> None:
    """Fit networks one after the other, and write what each predicts for the workloads that it is asked for."""
    # torch is needed only where something is fitted
    from lab.papers.dnn_occu.fitting import fit_network

    for one in planned:
        fitted = fit_network(one.network, counted.of(one.train), counted.of(one.validation), fit, log)
        notes = {"losses": fitted.losses, "converged": fitted.converged, "fit": asdict(fit)}
        data, predicted = io.BytesIO(), fitted.predict(counted.of(one.test)[0])
        np.savez_compressed(data, allow_pickle=False, predicted=predicted, notes=np.array(json.dumps(notes)))
        write_whole(one.file(folder), data.getvalue())
        ended = "converged" if fitted.converged else "stopped"
        log(f"{one.network} {one.study}: {ended} after {len(fitted.losses)} epochs")


def fit_side_by_side(
    planned: Sequence[PlannedFit], counted: Counted, folder: Path, fit: "Fit", processes: int, log: Log
) -> None:
    """Fit what the folder lacks, in several processes: one alone leaves most of a GPU idle."""
    waiting = [one for one in planned if not _is_done(one.file(folder), fit.seconds)]
    if processes == 1 or len(waiting) < 2:
        fit_planned(waiting, counted, folder, fit, log)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(min(processes, len(waiting)), context, _open, (counted,)) as pool:
        futures = [pool.submit(_fit_one, one, folder, fit) for one in waiting]
        for number, future in enumerate(as_completed(futures), start=1):
            log(f"{number} of {len(waiting)}: {future.result()}")


def _is_done(file: Path, seconds: float | None) -> bool:
    """Whether a network was fitted: until it converged, or for as long as it may take now."""
    if not file.exists():
        return False
    notes = _read(file)[1]
    return bool(notes["converged"]) or (notes["fit"]["seconds"] or math.inf) >= (seconds or math.inf)


_opened: list[Counted] = []  # one entry in each process: the graphs are large, and a process fits several networks


def _open(counted: Counted) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: each process has one core
    _opened.append(counted)


def _fit_one(planned: PlannedFit, folder: Path, fit: "Fit") -> str:
    lines = list[str]()
    fit_planned([planned], _opened[-1], folder, fit, lines.append)
    return lines[-1]


def errors_by_name(
    counted: Counted, predictions: Mapping[str, Values], kinds: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, Cell]]:
    """The mean relative error of each predictor on workloads whose model's name starts so; absent ones are left out."""
    truth, rows = counted.truth, dict[str, dict[str, Cell]]()
    for kind, starts in kinds.items():
        own = counted.starting_with(starts)
        if len(own):
            cells = {name: float(np.abs(values[own] / truth[own] - 1).mean()) for name, values in predictions.items()}
            rows[kind] = {"count": len(own), **cells}
    return rows


def one_kind(counted: Counted, folder: Path) -> dict[str, dict[str, Cell]]:
    """Table V: errors on other transformers of networks that were fitted to ViT-T alone."""
    predictions = dict[str, Values]()
    for fit in plan_fits(counted):
        if fit.study == ONE_KIND and fit.file(folder).exists():
            predictions[fit.network] = np.full(len(counted.rows), np.nan)
            predictions[fit.network][fit.test] = _read(fit.file(folder))[0]
    return errors_by_name(counted, predictions, STUDENTS) if predictions else {}


def utilisation(store: Path) -> dict[str, dict[str, Cell]]:
    """NVML's utilisation beside the counted occupancy, where both were measured."""
    rows = dict[str, dict[str, Cell]]()
    for file in sorted(store.rglob("utilisation.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).decode().splitlines():
            row = json.loads(line)
            if row.get("nvml_utilisation_pct") is not None:
                name = f"{row['spec'][:60]} {row['mode']} {row['dtype']} batch {row['batch_size']}"
                rows[name] = {
                    "occupancy": row["occupancy_weighted"],
                    "NVML, replayed": row["nvml_utilisation_pct"],
                    "NVML, eager": row["nvml_eager_utilisation_pct"],
                }
    return rows


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
    """All tables; networks are fitted on CUDA where torch finds it. With ``only_networks`` nothing is judged.

    With 0 ``fit_seconds`` nothing is fitted, and networks that lack a fold are left out.
    """
    device = find_device(device).id
    counted, folder = read_counted_graphs(store, device, cache)
    planned = plan_fits(counted)
    if fit_seconds != 0 and (only_networks or any(not one.file(folder).exists() for one in planned)):
        from foretell.predictors.unit.fit_network import default_device
        from lab.papers.dnn_occu.fitting import Fit

        fit_side_by_side(planned, counted, folder, Fit(seconds=fit_seconds, device=default_device()), processes, log)
    if only_networks:
        return []
    predictions, notes = {OURS: _ours(counted, store, device, cache, log)}, dict[str, Any]()
    for name in QUICKEST_FIRST:
        lacking = [one.study for one in planned if one.network == name and not one.file(folder).exists()]
        if set(lacking) - {ONE_KIND}:
            log(f"{name} is left out: it was not fitted for {', '.join(lacking)}")
            continue
        predictions[name], notes[name] = fold_predictions(counted, name, folder)
    predictions[MEAN] = _means(counted)
    kind_rows = one_kind(counted, folder)
    # a few have no trace, which ours is judged by
    own = np.isfinite(predictions[OURS])
    predictions = {name: values[own] for name, values in predictions.items()}
    counted = Counted(list(compress(counted.rows, own)), list(compress(counted.graphs, own)))
    tables = compare(counted, predictions, notes)
    studies = (
        ("CLIP: both towers as one model, and each alone; mean relative error", "model",
         errors_by_name(counted, predictions, CLIP)),
        ("Fitted to ViT-T alone: mean relative error on others", "model", kind_rows),
        ("The driver's utilisation beside achieved occupancy, both in per cent", "workload", utilisation(store)),
    )  # fmt: skip
    for title, head, rows in studies:
        if rows:
            shares = frozenset(predictions)
            tables.append(Comparison(title, rows, ranked=False, shares=shares, head=head))
    return tables


def _ours(counted: Counted, store: Path, device: str, cache: Path, log: Log) -> Values:
    """What the product predicts for the same workloads, without their architecture."""
    data = occupancy.read_occupancy(store, device, cache, log)
    fit = NetworkFit()
    judged = occupancy.judge(data, occupancy.fold_files(store, device, cache, fit), fit, log)
    known = dict(zip((sample.workload_id for sample in judged.samples), judged.predicted, strict=True))
    return np.array([known.get(row["workload_id"], np.nan) for row in counted.rows])


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
