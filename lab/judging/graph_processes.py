"""workflows: graph networks fitted by several processes side by side; one alone leaves most of an accelerator idle."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from foretell.errors import DataError, ForetellError
from foretell.predictors.sample import Sample
from foretell.training.examples.samples import read_samples
from lab.judging.graph_fits import PRETRAINED, Asked, fit_graph_networks
from lab.judging.graph_set import read_graph_set
from lab.papers.graph_networks.arrays import GraphArrays

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """Where a process finds what it fits to, and where it keeps what comes of it."""

    store: Path
    device: str
    cache: Path
    folder: Path
    seconds: float | None = None


@dataclass(frozen=True)
class _Opened:
    samples: Sequence[Sample]
    graphs: dict[str, GraphArrays]
    bench: Bench


_opened: list[_Opened] = []  # of this process: reading takes seconds, and a process fits many networks


def fit_side_by_side(asked: Sequence[Asked], bench: Bench, processes: int, say: Say) -> None:
    """Fit what the bench's folder has no predictions of; what one network fails with is said when all others are done.

    Networks that share an encoder are one process's business: the first of them fits it.
    """
    groups: dict[tuple[object, ...], list[Asked]] = {}
    for each in asked:
        if not each.file(bench.folder).exists():
            own = (each.split, each.seed) if each.arm.recipe == PRETRAINED else (each.arm, each.split, each.seed)
            groups.setdefault(own, []).append(each)
    # the longest first: all shares of the labels, one after the other
    waiting = sorted(groups.values(), key=len, reverse=True)
    if not waiting:
        return
    failed: list[ForetellError] = []
    context = multiprocessing.get_context("spawn")  # a forked process cannot use an accelerator
    with ProcessPoolExecutor(min(processes, len(waiting)), context, _open, (bench,)) as pool:
        for number, future in enumerate(as_completed([pool.submit(_fit, group) for group in waiting]), start=1):
            try:
                for line in future.result():
                    say(f"{number} of {len(waiting)}: {line}")
            except ForetellError as error:
                failed.append(error)
    if failed:
        raise DataError(f"{len(failed)} of {len(waiting)} fits failed, the first with: {failed[0]}")


def _open(bench: Bench) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: side by side, each has a core
    samples = read_samples(bench.store, bench.device, bench.cache, _nothing)
    graphs = read_graph_set(samples, bench.store, bench.device, bench.cache, _nothing)
    _opened.append(_Opened(samples, graphs, bench))


def _fit(asked: list[Asked]) -> list[str]:
    """Fit some networks one after the other; what there is to say of each in the end."""
    opened, lines = _opened[-1], list[str]()
    fit_graph_networks(
        opened.samples, asked, lambda: opened.graphs, opened.bench.folder, opened.bench.seconds, lines.append
    )
    return [line for line in lines if "epochs in" in line or "best of" in line]


def _nothing(_line: str) -> None:
    """Processes side by side would talk at once."""
