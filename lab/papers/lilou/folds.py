"""workflows: LILOU's networks by fold, several side by side; what each told of its fold is kept as soon as it ends.

A machine with an accelerator fits, another one judges. A network that fails is named when all others are done.
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
# whatever one network fails with, an accelerator's memory for one: the others go on
_CAUGHT = (ForetellError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)

Say = Callable[[str], None]
Arrays = dict[str, NDArray[Any]]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """A network to fit: its name and settings, the fold it does not see, and where what it tells of that is kept."""

    name: str
    settings: Any
    fold: int
    file: Path

    def __str__(self) -> str:
        return f"{self.name}, fold {self.fold + 1}"


# a file that was prepared, the network's settings, its fold, seconds, a teller → arrays and facts
Fitter = Callable[[Path, Any, int, float | None, Say], tuple[Arrays, Mapping[str, Any]]]


def asked_folds(prepared: Path, fits: Mapping[str, object], version: int, folds: int) -> list[Asked]:
    """All networks of some fits; files are named by what they depend on: data, settings, the ``version`` of the fit."""
    found = []
    for name, settings in fits.items():
        digest = hashlib.sha256(f"{prepared.name} {name} {settings} {version}".encode())
        folder = prepared.parent / f"{prepared.stem.rpartition('-')[0]}-folds-{digest.hexdigest()[:16]}"
        found += [Asked(name, settings, fold, folder / f"{fold}.npz") for fold in range(folds)]
    return found


def complete(asked: Sequence[Asked], say: Say) -> list[Asked]:
    """Those of networks whose folds are all kept; of the others it is said what they lack."""
    lacking = {each.name: each for each in asked if not each.file.exists()}
    for each in lacking.values():
        say(f"{each.name} is left out: fold {each.fold + 1} is not fitted; --only-networks fits it")
    found = [each for each in asked if each.name not in lacking]
    if not found:
        raise DataError("No network is fitted to all folds; --only-networks fits what is lacking.")
    return found


def parts_of(fold: Numbers, checked: Flags, held: int) -> tuple[Numbers, Numbers, Numbers]:
    """What teaches, what chooses the best epoch, and what is judged; where nothing could choose, what teaches does."""
    taught, chooses = np.flatnonzero((fold != held) & ~checked), np.flatnonzero((fold != held) & checked)
    if not len(taught):
        raise DataError(f"Fold {held + 1} leaves nothing to learn from; collect more architectures.")
    return taught, chooses if len(chooses) else taught, np.flatnonzero(fold == held)


def fit_folds(
    asked: Sequence[Asked], fitter: Fitter, prepared: Path, seconds: float | None, processes: int, say: Say
) -> None:
    """Fit what is not kept; ``seconds`` limits each network, ``processes`` of which are fitted at a time."""
    missing = [each for each in asked if not each.file.exists()]
    failed: list[str] = []

    def ended(number: int, line: str, error: str | None) -> None:
        say(f"{number} of {len(missing)}: {line}" if error is None else f"{number} of {len(missing)} failed: {error}")
        if error is not None:
            failed.append(error)

    if min(processes, len(missing)) <= 1:
        for number, each in enumerate(missing, start=1):
            ended(number, *_fit(fitter, each, prepared, seconds, say))
    else:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use an accelerator
        with ProcessPoolExecutor(min(processes, len(missing)), context, _alone) as pool:
            futures = {pool.submit(_fit, fitter, each, prepared, seconds): each for each in missing}
            for number, future in enumerate(as_completed(futures), start=1):
                try:
                    ended(number, *future.result())
                except RuntimeError as error:  # the process died, and the others with it
                    ended(number, "", f"{futures[future]}: {error}")
    if failed:
        raise DataError(f"{len(failed)} of {len(missing)} fits failed, the first with: {failed[0]}")


def _alone() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: side by side, each has a core


def _nothing(_line: str) -> None:
    """Processes side by side would talk at once."""


def _fit(
    fitter: Fitter, asked: Asked, prepared: Path, seconds: float | None, say: Say = _nothing
) -> tuple[str, str | None]:
    """Fit one network and keep what it tells; a line about it, and what went wrong."""
    try:
        arrays, facts = fitter(prepared, asked.settings, asked.fold, seconds, say)
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **arrays, facts=np.array(json.dumps(dict(facts))))
        write_whole(asked.file, data.getvalue())
    except _CAUGHT as error:
        return "", f"{asked}: {' '.join(str(error).split())[:300]}"
    return f"{asked}: {', '.join(f'{name} {value:.4g}' for name, value in facts.items())}", None


def read_told(file: Path) -> tuple[Arrays, dict[str, Any]]:
    """What a network told of its fold, and the facts about its fit."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return arrays, json.loads(str(arrays.pop(_FACTS)))


def facts_of(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """How a fit went."""
    return {
        "epochs": len(history),
        "seconds": history[-1]["seconds"],
        "best": max(each["score"] for each in history),
        "best_epoch": 1 + max(range(len(history)), key=lambda number: history[number]["score"]),
    }


def fit_table(asked: Sequence[Asked]) -> Comparison:
    """How the fits went, as means over folds."""
    rows: dict[str, dict[str, Cell]] = {}
    for name in dict.fromkeys(each.name for each in asked):
        facts = [read_told(each.file)[1] for each in asked if each.name == name]
        rows[name] = {key: float(np.mean([each[key] for each in facts])) for key in facts[0]}
    return Comparison("Fits, means over folds", rows, ranked=False, shares=frozenset(), head="network")
