"""Lab: graph networks fitted by several processes at the same time; one alone leaves most of a GPU idle."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DataError, ForetellError
from foretell.predictors.sample import Sample
from foretell.training.examples.samples import read_samples
from lab.judging.graph_fits import PRETRAINED, PlannedFit, fit_graph_networks
from lab.judging.graph_set import read_graph_set
from lab.papers.graph_networks.arrays import GraphArrays

Log = Callable[[str], None]


@dataclass(frozen=True)
class Workspace:
    """Where a process finds its data, and where it saves its predictions."""

    store: Path
    device: str
    cache: Path
    folder: Path
    seconds: float | None = None


@dataclass(frozen=True)
class _Opened:
    samples: Sequence[Sample]
    graphs: dict[str, GraphArrays]
    workspace: Workspace


_opened: list[_Opened] = []  # one entry in each process: reading takes seconds, and a process fits many networks


def fit_side_by_side(planned: Sequence[PlannedFit], workspace: Workspace, processes: int, log: Log) -> None:
    """Fit the networks whose predictions are not in the folder; a failure is raised when all others are done.

    Networks that share an encoder go to one process: the first of them fits it.
    """
    groups: dict[tuple[object, ...], list[PlannedFit]] = {}
    for fit in planned:
        if not fit.file(workspace.folder).exists():
            # TraPPM's arms of one split and seed share an encoder
            key = (fit.split, fit.seed) if fit.arm.recipe == PRETRAINED else (fit.arm, fit.split, fit.seed)
            groups.setdefault(key, []).append(fit)
    # the longest first: a group with all shares of the labels
    waiting = sorted(groups.values(), key=len, reverse=True)
    if not waiting:
        return
    failed: list[ForetellError] = []
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(min(processes, len(waiting)), context, _open, (workspace,)) as pool:
        for number, future in enumerate(as_completed([pool.submit(_fit, group) for group in waiting]), start=1):
            try:
                for line in future.result():
                    log(f"{number} of {len(waiting)}: {line}")
            except ForetellError as error:
                failed.append(error)
    if failed:
        raise DataError(f"{len(failed)} of {len(waiting)} fits failed, the first with: {failed[0]}")


def _open(workspace: Workspace) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: each process has one core
    samples = read_samples(workspace.store, workspace.device, workspace.cache, _nothing)
    graphs = read_graph_set(samples, workspace.store, workspace.device, workspace.cache, _nothing)
    _opened.append(_Opened(samples, graphs, workspace))


def _fit(planned: list[PlannedFit]) -> list[str]:
    """Fit some networks one after the other; return the closing line of each."""
    opened, lines = _opened[-1], list[str]()
    fit_graph_networks(
        opened.samples, planned, lambda: opened.graphs, opened.workspace.folder, opened.workspace.seconds, lines.append
    )
    return [line for line in lines if "epochs in" in line or "best of" in line]


def _nothing(_line: str) -> None:
    """Ignore progress: several processes would print at the same time."""
