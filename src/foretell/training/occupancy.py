"""Training: occupancy: fit a model to counted and traced kernels, and judge it on architectures it has not seen.

Few workloads were counted, many were traced. So there are three steps. (1) Trees learn from counted kernels what a
launch reaches (`foretell.predictors.occupancy.launches`), and label all traced kernels. (2) A network learns the
occupancy of a unit from the labels of its kernels, and how much longer than predicted a counter sees it run. (3) The
mean over the units of a counted workload is compared with what the counter showed; these errors give the interval.

Each step leaves out the architectures of a fold: what is judged was seen neither by the trees, nor by the network, nor
by the networks that predict the times of units (where ``foretell train`` has cached them; the report says so).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import architecture_of
from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors import best_predictor
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.occupancy.fit import FIT_VERSION, LabelledUnits, NetworkFit, fit_network
from foretell.predictors.occupancy.launches import LaunchModel, fit_launches
from foretell.predictors.occupancy.model import file_name, predict_units, write
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import Settings, conformal_quantile
from foretell.predictors.unit.fit_network import default_device
from foretell.predictors.unit.network import UnitNetwork
from foretell.predictors.unit.predictor import shipped as shipped_units
from foretell.predictors.unit.rows import UnitRows
from foretell.training.cross_fits import held_out_units
from foretell.training.examples.launches import LAUNCHES_VERSION, UnitLaunches, read_counted, read_launches
from foretell.training.examples.samples import fingerprint, read_samples
from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.metrics import mape
from foretell.training.judging.table import Comparison
from foretell.training.occupancy_tables import HELD_OUT, SEEN, Judged, LaunchErrors, compare, write_tables

_FIT = NetworkFit()
_LEAST_SHARE = 0.002  # of a workload: two thirds of all units take less, and together 5 % of the time

Log = Callable[[str], None]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class OccupancySet:
    """All samples with their units, the kernels of the traced ones, and what counters showed of some.

    ``unit_us`` are the predicted times of all units, ``row`` is the row of ``rows`` of each launch, ``truth`` is NaN
    where nothing was counted.
    """

    device: str
    samples: Sequence[Sample]
    rows: UnitRows
    launches: UnitLaunches
    row: NDArray[np.intp]
    truth: Values
    unit_us: Values
    source: str

    @cached_property
    def fold(self) -> NDArray[np.intp]:
        """The fold of each sample: that of its architecture."""
        return np.array([fold_of(sample.spec) for sample in self.samples], np.intp)

    @cached_property
    def counted(self) -> NDArray[np.intp]:
        """The samples whose occupancy was counted."""
        return np.flatnonzero(np.isfinite(self.truth))

    def fit_launches(self, samples: Flags) -> LaunchModel:
        """What launches reach, learned from the counted kernels of some samples."""
        kernels = self.launches
        known = samples[self.rows.owner[self.row]] & np.isfinite(kernels.occupancy_pct)
        if not known.any():
            raise DataError("No counted kernel was found in a trace; trace the workloads that are counted.")
        return fit_launches(
            kernels.launches.of(known), kernels.occupancy_pct[known], kernels.counted_us[known],
            find_device(self.device),
        )  # fmt: skip

    def label(self, model: LaunchModel, samples: Flags) -> tuple[Values, Values]:
        """For each row its occupancy and its time under a counter; counters of ``samples`` count, others do not.

        The time is 0 where a unit was not traced.
        """
        kernels = self.launches
        known = samples[self.rows.owner[self.row]] & np.isfinite(kernels.occupancy_pct)
        occupancy_pct = np.where(known, kernels.occupancy_pct, model.occupancy_pct(kernels.launches))
        one_us = np.where(known, kernels.counted_us, model.counted_us(kernels.launches.time_us))
        time_us = one_us * kernels.kernels
        size = len(self.rows.counts)
        spent_us = np.bincount(self.row, time_us, size)
        full = np.bincount(self.row, time_us * occupancy_pct, size)
        return full / np.where(spent_us > 0, spent_us, 1.0), spent_us / self.rows.counts

    def fit_network(self, labels: tuple[Values, Values], samples: Flags, fit: NetworkFit, log: Log) -> UnitNetwork:
        """A network for the units of some samples."""
        occupancy_pct, time_us = labels
        total_us = self.rows.sums(time_us)[self.rows.owner]
        share = time_us * self.rows.counts / np.where(total_us > 0, total_us, 1.0)
        use = (share >= _LEAST_SHARE) & samples[self.rows.owner]
        log_time = np.log(np.where(use, time_us, 1.0) / self.unit_us)
        units = LabelledUnits(self.rows.features, occupancy_pct, log_time, share).of(use)
        device = default_device()
        log(f"a network on {len(units.weight)} units, on {device}")
        # what is judged and what is served are the same: weights as they are stored
        return UnitNetwork.load(fit_network(units, fit, device, log).to_bytes())

    def means(self, occupancy_pct: Values, time_us: Values) -> Values:
        """The occupancy of every sample, from that of its units; NaN where none of them took any time."""
        weight = self.rows.sums(time_us)
        return np.where(weight > 0, self.rows.sums(time_us * occupancy_pct), np.nan) / np.where(weight > 0, weight, 1.0)


def read_occupancy(store: Path, device: str, cache: Path, log: Log = lambda _: None) -> OccupancySet:
    """The counted and the traced workloads below ``store``."""
    device = find_device(device).id
    counted = read_counted(store)
    if not counted:
        raise DataError(
            f"No occupancy was counted below {store}; count some with a plan of the kind occupancy: "
            "python -m lab collect."
        )
    samples, launches = read_samples(store, device, cache, log), read_launches(store, device, cache, log)
    rows = UnitRows.of(samples)
    place = {sample.workload_id: number for number, sample in enumerate(samples)}
    missing = [name for name in launches.workload_ids if name not in place]
    if missing:
        raise DataError(f"{len(missing)} traced workloads have no sample; delete {cache} and try again.")
    first = rows.starts[[place[name] for name in launches.workload_ids]]
    truth = np.full(len(samples), np.nan)
    for name, row in counted.items():
        if name in place:
            truth[place[name]] = row["occupancy_weighted"]
    if not np.isfinite(truth).any():
        raise DataError(f"No counted workload was measured on {device} below {store}; measure it too.")
    predictions = held_out_units(samples, device, cache)
    if predictions is None:
        model = shipped_units(device, best_predictor(device))
        unit_us = np.concatenate([model.times_us(sample.units) for sample in samples])
    else:
        unit_us = np.exp(predictions.log_ratio) * rows.bound_us
    return OccupancySet(
        device, samples, rows, launches, first[launches.workload] + launches.unit, truth, unit_us,
        SEEN if predictions is None else HELD_OUT,
    )  # fmt: skip


def judge(data: OccupancySet, files: Sequence[Path], fit: NetworkFit = _FIT, log: Log = lambda _: None) -> Judged:
    """What is predicted for every counted workload without its architecture; ``files`` cache the networks of folds."""
    rows, size = data.rows, len(data.rows.counts)
    occupancy_pct, time_us, label_pct, label_us = (np.zeros(size) for _ in range(4))
    kernel_pct = np.full(len(data.launches), np.nan)
    for fold in np.unique(data.fold[data.counted]).tolist():
        samples = data.fold != fold
        if not np.isfinite(data.truth[samples]).any():
            raise DataError("All counted workloads belong to one fold; count more architectures.")
        log(f"fold {fold + 1} of {FOLDS}")
        model = data.fit_launches(samples)
        labels = data.label(model, samples)
        if not files[fold].exists():
            write_whole(files[fold], data.fit_network(labels, samples, fit, log).to_bytes())
        network = UnitNetwork.load(files[fold].read_bytes())
        held_out = ~samples[rows.owner] & np.isfinite(data.truth)[rows.owner]
        occupancy_pct[held_out], ratio = predict_units(network, rows.features[held_out])
        time_us[held_out] = data.unit_us[held_out] * ratio
        label_pct[held_out], label_us[held_out] = labels[0][held_out], labels[1][held_out]
        own = held_out[data.row] & np.isfinite(data.launches.occupancy_pct)
        kernel_pct[own] = model.occupancy_pct(data.launches.launches.of(own))
    known = np.isfinite(kernel_pct)
    kernels = data.launches
    return Judged(
        samples=[data.samples[number] for number in data.counted],
        truth=data.truth[data.counted],
        predicted=data.means(occupancy_pct, time_us)[data.counted],
        with_traced_times=data.means(occupancy_pct, label_us)[data.counted],
        with_traced_launches=data.means(label_pct, label_us)[data.counted],
        mean_of_others=_mean_of_others(data),
        source=data.source,
        launches=LaunchErrors(
            np.array(kernels.algorithms)[kernels.launches.algorithm[known]],
            kernels.occupancy_pct[known],
            kernel_pct[known],
            (kernels.counted_us * kernels.kernels)[known],
        ),
    )


def _mean_of_others(data: OccupancySet) -> Values:
    """The baseline: the mean of the counted workloads of other folds, in the same dtype."""
    dtype = np.array([data.samples[number].setting.dtype for number in data.counted])
    fold, truth = data.fold[data.counted], data.truth[data.counted]
    means = np.zeros(len(truth))
    for row in range(len(truth)):
        others = (fold != fold[row]) & (dtype == dtype[row])
        means[row] = truth[others].mean() if others.any() else truth[fold != fold[row]].mean()
    return means


def fold_files(store: Path, device: str, cache: Path, fit: NetworkFit) -> list[Path]:
    """The files that cache the network of each fold; their names depend on data, versions and the fit."""
    counted = len(read_counted(store))
    made_of = fingerprint(store, device, occupancy=FIT_VERSION, launches=LAUNCHES_VERSION, counted=counted)
    key = hashlib.sha256(f"{made_of} {fit}".encode()).hexdigest()[:16]
    return [cache / f"occupancy-folds-{device}-{key}" / f"{fold}.npz" for fold in range(FOLDS)]


def evaluate(
    store: Path, device: str, cache: Path, fit: NetworkFit = _FIT, log: Log = lambda _: None
) -> list[Comparison]:
    """Held-out tables."""
    data = read_occupancy(store, device, cache, log)
    return compare(judge(data, fold_files(store, data.device, cache, fit), fit, log))


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    return write_tables(tables, folder)


def train(store: Path, device: str, cache: Path, out: Path, fit: NetworkFit = _FIT, log: Log = lambda _: None) -> Path:
    """Fit a model to all kernels, and write it with its held-out errors."""
    data = read_occupancy(store, device, cache, log)
    judged = judge(data, fold_files(store, data.device, cache, fit), fit, log)
    log("all")
    every = np.ones(len(data.samples), bool)
    network = data.fit_network(data.label(data.fit_launches(every), every), every, fit, log)
    scores = np.abs(np.log(judged.predicted / judged.truth))
    card: Mapping[str, object] = {
        "device": data.device,
        "workloads": len(judged.truth),
        "architectures": len({architecture_of(sample.spec) for sample in judged.samples}),
        "modes": sorted({sample.setting.mode for sample in judged.samples}),
        "traced": len(data.launches.workload_ids),
        "held_out": mape(judged.truth, judged.predicted),
        "times": data.source,
        "width": conformal_quantile(scores, Settings().miss),
    }
    return write_fitted(out, file_name(data.device), write(network, card))
