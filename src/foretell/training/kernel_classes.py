"""Training: kernel classes: fit a classifier of kernels to traces, and judge it on architectures it has not seen.

"At once" is top-1 accuracy: the likeliest class is the one that ran. "Among five" is top-5 accuracy. Each unit counts
once, or by its time. The predictions of a fold are cached.
"""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.features.units import COLUMNS
from foretell.files import write_whole
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.kernels.classifier import MOST, KernelClassifier, file_name, write
from foretell.predictors.kernels.fit import FIT_VERSION, FITS, KernelFit, fit_kernels
from foretell.predictors.kernels.inputs import KernelInputs, kernel_inputs
from foretell.training.examples.kernel_labels import LABELS_VERSION, KernelLabels, read_labels
from foretell.training.examples.samples import fingerprint
from foretell.training.fusion import FOLDS
from foretell.training.judging.table import Cell, Comparison, page

NETWORK, COMMONEST = "kernel-classes", "commonest of operator and type"
_FIGURES = ("at once", "among five", "at once, by time", "among five, by time")
_OPERATOR, _PHASE, _DTYPE = (COLUMNS.index(name) for name in ("operator", "phase", "dtype"))
_SHOWN_GROUPS = 16

Log = Callable[[str], None]
TopClasses = NDArray[np.int64]  # for each row the five likeliest classes


def inputs_of(labels: KernelLabels) -> KernelInputs:
    """Labelled units as inputs of a classifier."""
    return kernel_inputs(labels.features, labels.layouts, labels.training)


def judge(
    labels: KernelLabels, device: str, files: Sequence[Path], fits: Mapping[str, KernelFit] = FITS,
    log: Log = lambda _: None,
) -> dict[str, TopClasses]:  # fmt: skip
    """Held-out predictions for every row; ``files`` cache those of each fold."""
    units = inputs_of(labels)
    predictions = {name: np.full((len(labels), MOST), -1, np.int64) for name in (NETWORK, COMMONEST)}
    for fold in range(FOLDS):
        held_out, training = np.flatnonzero(labels.fold == fold), np.flatnonzero(labels.fold != fold)
        if not len(held_out):
            continue
        if not len(training):
            raise DataError("All traces belong to one fold; trace more architectures.")
        predictions[COMMONEST][held_out] = _commonest(labels, training, held_out)
        if not files[fold].exists():
            log(f"fold {fold + 1} of {FOLDS}")
            model = _fit(labels, units, training, device, fits, log)
            data = io.BytesIO()
            # only the five likeliest classes are cached, not probabilities: judging needs no more
            np.savez_compressed(data, classes=model.rank(units.of(held_out)).classes.astype(np.int16))
            write_whole(files[fold], data.getvalue())
        with np.load(files[fold], allow_pickle=False) as stored:
            predictions[NETWORK][held_out] = stored["classes"]
    return predictions


def _fit(
    labels: KernelLabels, units: KernelInputs, rows: NDArray[np.intp], device: str, fits: Mapping[str, KernelFit],
    log: Log,
) -> KernelClassifier:  # fmt: skip
    sms = find_device(device).sms
    return fit_kernels(
        units.of(rows), labels.label[rows], labels.counts[rows], labels.classes, device, sms, fits, log
    )  # fmt: skip


def _commonest(labels: KernelLabels, training: NDArray[np.intp], held_out: NDArray[np.intp]) -> TopClasses:
    """The baseline: the commonest classes of the same operator, phase and type; of all units where none was seen."""
    columns = labels.features[:, [_OPERATOR, _PHASE, _DTYPE]]
    _, group = np.unique(columns, axis=0, return_inverse=True)
    seen = np.zeros((int(group.max()) + 1, len(labels.classes)))
    np.add.at(seen, (group.ravel()[training], labels.label[training]), labels.counts[training])
    # a group that is not in the training folds gets the commonest classes of all
    seen[~seen.any(axis=1)] = seen.sum(axis=0)
    order = np.argsort(-seen, axis=1, kind="stable")[:, :MOST]
    first = np.full((len(seen), MOST), -1, np.int64)
    first[:, : order.shape[1]] = np.where(np.take_along_axis(seen, order, axis=1) > 0, order, -1)
    return np.asarray(first[group.ravel()[held_out]])


def scores(labels: KernelLabels, predicted: TopClasses, rows: NDArray[np.bool_]) -> dict[str, Cell]:
    """Top-1 and top-5 accuracy, by units and by time."""
    right = predicted[rows] == labels.label[rows][:, None]
    weights = (labels.counts[rows], labels.time_us[rows])
    shares = [float(flags @ weight / weight.sum()) for weight in weights for flags in (right[:, 0], right.any(axis=1))]
    return dict(zip(_FIGURES, shares, strict=True))


def tables(labels: KernelLabels, predictions: Mapping[str, TopClasses]) -> list[Comparison]:
    """Tables for inference and training: against the baseline, then by library and algorithm of the kernel."""
    comparisons: list[Comparison] = []
    models = ~labels.bench
    if (models & labels.training).any() and (models & ~labels.training).any():
        comparisons.append(_against("Inference and training", labels, predictions, models))
    algorithm = np.array([" ".join(name.split()[:2]) for name in labels.classes])[labels.label]
    for name, training in (("Inference", False), ("Training steps", True)):
        use = models & (labels.training == training)
        if not use.any():
            continue
        comparisons.append(_against(name, labels, predictions, use))
        groups, place = np.unique(algorithm[use], return_inverse=True)
        units = np.bincount(place, labels.counts[use])
        rows = {}
        for group in np.argsort(-units)[:_SHOWN_GROUPS].tolist():
            own = use & (algorithm == groups[group])
            spent = float(labels.time_us[own].sum() / labels.time_us[use].sum())
            rows[str(groups[group])] = {
                "count": int(units[group]),
                "time": spent,
                **scores(labels, predictions[NETWORK], own),
            }
        comparisons.append(_table(f"{name}, by kernel", rows, "kernel"))
    return comparisons


def _against(
    name: str, labels: KernelLabels, predictions: Mapping[str, TopClasses], use: NDArray[np.bool_]
) -> Comparison:
    """The classifier and its baseline on some rows."""
    number = len(np.unique(labels.label[use]))
    title = f"{name}: {int(labels.counts[use].sum()):,} units, {number} classes"
    return _table(
        title, {predictor: scores(labels, predicted, use) for predictor, predicted in predictions.items()}, "predictor"
    )


def _table(title: str, rows: Mapping[str, Mapping[str, Cell]], head: str) -> Comparison:
    return Comparison(title, rows, ranked=False, shares=frozenset((*_FIGURES, "time")), head=head)


def fold_files(store: Path, device: str, cache: Path, fits: Mapping[str, KernelFit]) -> list[Path]:
    """The files that cache the predictions of each fold; their names depend on data, versions and fits."""
    made_of = fingerprint(store, device, labels=LABELS_VERSION, kernels=FIT_VERSION)
    key = hashlib.sha256(f"{made_of} {sorted(fits.items())}".encode()).hexdigest()[:16]
    return [cache / f"kernel-folds-{device}-{key}" / f"{fold}.npz" for fold in range(FOLDS)]


def evaluate(
    store: Path, device: str, cache: Path, fits: Mapping[str, KernelFit] = FITS, log: Log = lambda _: None
) -> list[Comparison]:
    """Held-out tables."""
    device = find_device(device).id
    labels = read_labels(store, device, cache, log)
    return tables(labels, judge(labels, device, fold_files(store, device, cache, fits), fits, log))


def write_report(comparisons: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Which kernel a unit of work runs\n\n"
        "Architectures held out, five folds; benches of single operators are training data only. Remade by "
        "`foretell evaluate kernel-classes --report`.\n\n"
        "The main kernel of a unit is the one that takes longest by name; "
        "[its class](../docs/kernel-classes.md) is library, algorithm, tile and layout. Shares of units that are "
        "predicted correctly: each counts once, or by the time of its kernels."
    )
    write_whole(folder / "kernels.md", page(text, comparisons))
    return folder / "kernels.md"


def train(
    store: Path, device: str, cache: Path, out: Path, fits: Mapping[str, KernelFit] = FITS, log: Log = lambda _: None
) -> Path:
    """Fit a classifier to all traces, and write it with its held-out scores."""
    device = find_device(device).id
    labels = read_labels(store, device, cache, log)
    predicted = judge(labels, device, fold_files(store, device, cache, fits), fits, log)[NETWORK]
    log("all")
    model = _fit(labels, inputs_of(labels), np.arange(len(labels)), device, fits, log)
    models = ~labels.bench
    uses = {"inference": models & ~labels.training, "training": models & labels.training}
    held_out = {name: scores(labels, predicted, use) for name, use in uses.items() if use.any()}
    card = {"units": int(labels.counts.sum()), "held_out": held_out}
    return write_fitted(out, file_name(device), write(KernelClassifier(**{**vars(model), "card": card})))
