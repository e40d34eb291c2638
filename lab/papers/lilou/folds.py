"""Lab: LILOU folds: networks by fold, several at the same time; the predictions of each are saved when it ends.

A machine with a GPU can fit, and another one can judge. A network that fails is named when all others are done.
"""

import hashlib
import io
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import DataError, ForetellError
from foretell.files import write_whole
from foretell.training.judging.table import Cell, Comparison

_FACTS = "facts"
# errors of one fit, such as a GPU out of memory, after which the others go on
_CAUGHT = (ForetellError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)

Log = Callable[[str], None]
Arrays = dict[str, NDArray[Any]]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class PlannedFit:
    """A network to fit: its name and settings, the fold that it does not see, and the file of its predictions."""

    name: str
    settings: Any
    fold: int
    file: Path

    def __str__(self) -> str:
        return f"{self.name}, fold {self.fold + 1}"


# prepared file, settings of the network, fold, limit in seconds, progress callback → predictions and facts
Fitter = Callable[[Path, Any, int, float | None, Log], tuple[Arrays, Mapping[str, Any]]]


def plan_folds(prepared: Path, fits: Mapping[str, object], version: int, folds: int) -> list[PlannedFit]:
    """All networks of some fits; the names of the files depend on data, settings and the ``version`` of the fit."""
    planned = []
    for name, settings in fits.items():
        # the name of the prepared file contains a hash of the data
        digest = hashlib.sha256(f"{prepared.name} {name} {settings} {version}".encode())
        folder = prepared.parent / f"{prepared.stem.rpartition('-')[0]}-folds-{digest.hexdigest()[:16]}"
        planned += [PlannedFit(name, settings, fold, folder / f"{fold}.npz") for fold in range(folds)]
    return planned


def complete(planned: Sequence[PlannedFit], log: Log) -> list[PlannedFit]:
    """The fits of networks whose folds are all saved; say what the other networks lack."""
    missing = {fit.name: fit for fit in planned if not fit.file.exists()}
    for fit in missing.values():
        log(f"{fit.name} is left out: fold {fit.fold + 1} is not fitted; --only-networks fits it")
    complete_fits = [fit for fit in planned if fit.name not in missing]
    if not complete_fits:
        raise DataError("No network is fitted to all folds; --only-networks fits what is missing.")
    return complete_fits


def parts_of(fold: Numbers, is_validation: Flags, held_out: int) -> tuple[Numbers, Numbers, Numbers]:
    """Training, validation and test examples of a fold; where nothing is left to validate, the training ones do."""
    training, validation = (
        np.flatnonzero((fold != held_out) & ~is_validation),
        np.flatnonzero((fold != held_out) & is_validation),
    )
    if not len(training):
        raise DataError(f"Fold {held_out + 1} leaves nothing to learn from; collect more architectures.")
    return training, validation if len(validation) else training, np.flatnonzero(fold == held_out)


def fit_folds(
    planned: Sequence[PlannedFit], fitter: Fitter, prepared: Path, seconds: float | None, processes: int, log: Log
) -> None:
    """Fit what is not saved; ``seconds`` limits each network, and ``processes`` are fitted at the same time."""
    missing = [fit for fit in planned if not fit.file.exists()]
    failed: list[str] = []

    def report(number: int, line: str, error: str | None) -> None:
        log(f"{number} of {len(missing)}: {line}" if error is None else f"{number} of {len(missing)} failed: {error}")
        if error is not None:
            failed.append(error)

    # one fit needs no pool, and its progress can be shown
    if min(processes, len(missing)) <= 1:
        for number, fit in enumerate(missing, start=1):
            report(number, *_fit(fitter, fit, prepared, seconds, log))
    else:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        with ProcessPoolExecutor(min(processes, len(missing)), context, _limit_threads) as pool:
            futures = {pool.submit(_fit, fitter, fit, prepared, seconds): fit for fit in missing}
            for number, future in enumerate(as_completed(futures), start=1):
                try:
                    report(number, *future.result())
                except RuntimeError as error:  # a process died, and the pool with it
                    report(number, "", f"{futures[future]}: {error}")
    if failed:
        raise DataError(f"{len(failed)} of {len(missing)} fits failed, the first with: {failed[0]}")


def _limit_threads() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: each process has one core


def _nothing(_line: str) -> None:
    """Ignore progress: several processes would print at the same time."""


def _fit(
    fitter: Fitter, planned: PlannedFit, prepared: Path, seconds: float | None, log: Log = _nothing
) -> tuple[str, str | None]:
    """Fit one network and save its predictions; return a line about it, or the error."""
    try:
        arrays, facts = fitter(prepared, planned.settings, planned.fold, seconds, log)
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **arrays, facts=np.array(json.dumps(dict(facts))))
        write_whole(planned.file, data.getvalue())
    except _CAUGHT as error:
        return "", f"{planned}: {' '.join(str(error).split())[:300]}"
    return f"{planned}: {', '.join(f'{name} {value:.4g}' for name, value in facts.items())}", None


def read_predictions(file: Path) -> tuple[Arrays, dict[str, Any]]:
    """The predictions of a network for its fold, and the facts about its fit."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(str(arrays.pop(_FACTS)))


def facts_of(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Facts about a fit."""
    return {
        "epochs": len(history),
        "seconds": history[-1]["seconds"],
        "best": max(record["score"] for record in history),
        "best_epoch": 1 + max(range(len(history)), key=lambda number: history[number]["score"]),
        "last_tenth": last_tenth([record["score"] for record in history]),
    }


def last_tenth(scores: Sequence[float]) -> float:
    """By how much the last tenth of the epochs improves the error 1 − score, as a share of it; below 2 % it converged.

    >>> last_tenth([0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.9])
    0.5
    """
    first = scores[: max(len(scores) - max(len(scores) // 10, 1), 1)]
    return round(1.0 - (1.0 - max(scores)) / max(1.0 - max(first), 1e-12), 6)


def curve_of(history: Sequence[Mapping[str, float]]) -> Arrays:
    """The curve of a fit: the score of every epoch on the validation side."""
    return {"curve": np.array([record["score"] for record in history], np.float32)}


def fit_table(planned: Sequence[PlannedFit]) -> Comparison:
    """Facts about the fits, as means over folds."""
    rows: dict[str, dict[str, Cell]] = {}
    for name in dict.fromkeys(fit.name for fit in planned):
        facts = [read_predictions(fit.file)[1] for fit in planned if fit.name == name]
        rows[name] = {key: float(np.mean([fact[key] for fact in facts])) for key in facts[0]}
    return Comparison("Fits, means over folds", rows, ranked=False, shares=frozenset(), head="network")
