"""Training: the protocol: one predictor on one split with one seed, fitted on one side and judged on another.

Every predictor is a fitter: it gets the training side, the validation side and a seed, and returns a function that
predicts samples. The test side is given to that function alone. Splits are by workload (random), architecture or family
(`foretell.datasets.splits`); the last two ask how well a predictor generalises. Each is repeated with several seeds,
and tables show mean and standard deviation over them.

Three rules make comparisons fair. A bench of single operators may be training data, but is never judged, because it is
no model. Networks of the wild zoo only train here: whole fields of it are kept aside and judge in a report of their own
(`benchmarks/wild.py`). A predictor that does not predict a mode at all is not judged in that mode, nor over all modes,
where it would be compared on easier data.

Limits: seeds change the split and the fit together, so the deviation covers both; the samples of one store come from
one device and a few campaigns. A run is saved when it ends and is not repeated, so a stopped evaluation can go on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, Split, architecture_of, assign
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.training.judging.metrics import accuracy, coverage, median_relative_width, over_seeds
from foretell.training.judging.table import Cell, Comparison

METRICS = ("latency_ms", "memory_mib", "energy_j", "power_w")
MODES = ("all", "inference", "training", "prefill", "decode")
SHARE = 0.15
_MIN_WORKLOADS = 8

Predicted = Mapping[str, NDArray[np.float64]]
# a fitter gets training samples, validation samples and a seed, and returns a function that predicts samples
SamplePredictor = Callable[[Sequence[Sample]], Predicted]
Fitter = Callable[[Sequence[Sample], Sequence[Sample], int], SamplePredictor]


@dataclass(frozen=True)
class Run:
    """The results of one predictor on one split: by metric and mode, the name and value of each figure."""

    predictor: str
    split: str
    seed: int
    sizes: Mapping[str, int]
    figures: Mapping[str, Mapping[str, Mapping[str, float | None]]]


def sides(samples: Sequence[Sample], split: str, seed: int) -> dict[str, list[Sample]]:
    """The samples of each side; benches, wild networks, and samples that were not replayed, only train."""
    rule = Split(split, validation=SHARE, test=SHARE, seed=seed)
    records = {
        "workload_id": [sample.workload_id for sample in samples],
        "spec": [sample.spec for sample in samples],
        "family": [sample.family for sample in samples],
    }
    parts: dict[str, list[Sample]] = {TRAIN: [], VALIDATION: [], TEST: []}
    for side, sample in zip(assign(rule, records), samples, strict=True):
        if sample.spec.startswith("wild:"):
            parts[TRAIN].append(sample)
        # validation and test are whole, replayed models only
        elif side == TRAIN or sample.captured:
            parts[side].append(sample)
    return parts


def judge(test: Sequence[Sample], predicted: Predicted) -> dict[str, dict[str, dict[str, float | None]]]:
    """The figures of each metric, over all modes and by mode; a mode with few workloads has none.

    A predictor whose predictions are NaN throughout a mode is not made for that mode. It is not judged there, nor over
    all modes. A NaN among numbers is an error.
    """
    modes = np.array([sample.setting.mode for sample in test])
    figures: dict[str, dict[str, dict[str, float | None]]] = {}
    for metric in METRICS:
        if metric not in predicted:
            continue
        truth = np.array([sample.truth[metric] for sample in test])
        known = np.isfinite(truth)
        declined = _declined(metric, predicted[metric][known], modes[known])
        for mode in MODES:
            use = known & ((modes == mode) | (mode == "all"))
            # percentiles of fewer workloads mean nothing
            if use.sum() >= _MIN_WORKLOADS and mode not in declined:
                figures.setdefault(metric, {})[mode] = _figures(truth[use], metric, predicted, use)
    return figures


def _declined(metric: str, values: NDArray[np.float64], modes: NDArray[np.str_]) -> set[str]:
    """The modes without predictions, and ``all`` where there are any."""
    declined = {str(mode) for mode in np.unique(modes) if np.isnan(values[modes == mode]).all()}
    if declined and declined == set(modes.tolist()):
        raise DataError(f"All {len(values)} predictions of {metric} are NaN; leave the metric out.")
    return declined | {"all"} if declined else declined


def _figures(
    truth: NDArray[np.float64], metric: str, predicted: Predicted, use: NDArray[np.bool_]
) -> dict[str, float | None]:
    values = predicted[metric][use]
    figures: dict[str, float | None] = asdict(accuracy(truth, values))
    if f"{metric}_low" in predicted:
        low, high = predicted[f"{metric}_low"][use], predicted[f"{metric}_high"][use]
        figures["coverage"] = coverage(truth, low, high)
        figures["median_relative_width"] = median_relative_width(values, low, high)
    if "distance" in predicted:
        # how often the distance warning is shown
        figures["warned"] = float(np.mean(predicted["distance"][use] > 1))
    return figures


def run_once(name: str, fitter: Fitter, samples: Sequence[Sample], split: str, seed: int, folder: Path) -> Run:
    """One run, read from its file where it exists."""
    file = _file(name, split, seed, folder)
    if file.exists():
        return Run(**json.loads(file.read_text(encoding="utf-8")))
    parts = sides(samples, split, seed)
    predict = fitter(parts[TRAIN], parts[VALIDATION], seed)
    # the test side is seen here for the first time
    predicted = predict(parts[TEST])
    run = Run(name, split, seed, {side: len(part) for side, part in parts.items()}, judge(parts[TEST], predicted))
    write_whole(file, json.dumps(asdict(run), indent=1).encode())
    return run


def is_known(name: str, split: str, seed: int, folder: Path) -> bool:
    """Whether a run is finished."""
    return _file(name, split, seed, folder).exists()


def _file(name: str, split: str, seed: int, folder: Path) -> Path:
    return folder / f"{name}-{split}-{seed}.json"


def compare(runs: Sequence[Run], split: str, metric: str, mode: str) -> Comparison | None:
    """Predictors side by side on one split, mean and spread over seeds; None where no run has the metric."""
    rows: dict[str, dict[str, Cell]] = {}
    for name in dict.fromkeys(run.predictor for run in runs):
        by_seed = [
            run.figures[metric][mode]
            for run in runs
            if run.predictor == name and run.split == split and mode in run.figures.get(metric, {})
        ]
        if by_seed:
            rows[name] = {figure: _over(by_seed, figure) for figure in by_seed[0] if figure != "count"}
    seeds = len({run.seed for run in runs if run.split == split})
    title = f"{metric}, {mode}, split by {split}, {seeds} seed{'s' if seeds != 1 else ''}"
    return Comparison(title, rows) if rows else None


def _over(by_seed: Sequence[Mapping[str, float | None]], figure: str) -> Cell:
    values = [figures.get(figure) for figures in by_seed]
    known = [value for value in values if value is not None]
    return over_seeds(known) if known else None


def groups_of(samples: Sequence[Sample]) -> list[str]:
    """The architecture of each sample; of a network of no zoo its whole field, as users bring fields of their own."""
    return [s.family if s.spec.startswith("wild:") else architecture_of(s.spec) for s in samples]
