"""Lab: the graph network of the thesis' chapter 6 beside its trees, on the same rows: ``lab.papers.llm_network``.

The thesis fits GraphSAGE to graphs of nine encoders, and finds trees on a table better: 5.5 against 17.6 % of
throughput. Here both are fitted to the same folds of our forward passes of text models on an H200
(`lab.papers.llm_trees`). The network has two SAGE layers, sums and static features, as TraPPM's without an encoder;
``--width`` makes narrow copies for a CPU. It learns logarithms, as the trees do, and an eighth of the rows that teach
chooses the epoch.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.papers.dippm.sets import Labelled, read_set
from lab.papers.graph_networks.recipes import Recipe, find_recipe
from lab.papers.llm_trees import FITS, FOLDS, MODEL_FEATURES, Forward, folds, read_forwards

Values = NDArray[np.float64]
_CHECKED = 8  # one row in so many chooses the epoch


def recipe_of(width: int, epochs: int) -> Recipe:
    """Two SAGE layers and static features; latency chooses the epoch."""
    plain = replace(find_recipe("trappm"), embedding="none", targets=("latency_ms", "memory_mib"), batch=32)
    return replace(plain, width=width, epochs=epochs, patience=epochs)


def network_fold(rows: Sequence[Labelled], taught: NDArray[np.bool_], recipe: Recipe, seed: int) -> dict[str, Values]:
    """Latency and memory of the rows that did not teach, by a network."""
    from lab.papers.graph_networks.training import fit

    teaching = np.random.default_rng(seed).permutation(np.flatnonzero(taught))
    samples = [[(rows[i].graph, rows[i].truth) for i in part.tolist()]
               for part in (teaching[len(teaching) // _CHECKED :], teaching[: len(teaching) // _CHECKED])]  # fmt: skip
    fitted = fit(samples[0], samples[1], recipe, seed)
    return fitted.predict([rows[i].graph for i in np.flatnonzero(~taught).tolist()])


def trees_fold(forwards: Sequence[Forward], target: str, taught: NDArray[np.bool_], seed: int) -> Values:
    """The same rows by boosted trees on the table."""
    features = np.array([[row.features[name] for name in MODEL_FEATURES] for row in forwards], np.float64)
    truth = np.array([row.truths[target] for row in forwards])
    return np.asarray(FITS["boosted trees"](features[taught], truth[taught], seed)(features[~taught]), np.float64)


def judge(
    rows: Sequence[Labelled],
    forwards: Sequence[Forward],
    recipe: Recipe,
    file: Path,
    *,
    by_family: bool,
    seconds: float,
) -> dict[str, Values]:
    """Predictions by both, of each fold that is done; a file keeps the folds, so that another run goes on."""
    fold, began = folds(forwards, 0, by_family=by_family), time.monotonic()
    found = {name: np.full(len(rows), np.nan) for name in ("network ms", "network MiB", "trees 1/s", "trees MiB")}
    if file.exists():
        with np.load(file, allow_pickle=False) as stored:
            found = {name: stored[name] for name in found}
    for number in range(FOLDS):
        held_out, taught = fold == number, fold != number
        if np.isfinite(found["network ms"][held_out]).all() or time.monotonic() - began > seconds:
            continue
        answers = network_fold(rows, taught, recipe, number)
        found["network ms"][held_out], found["network MiB"][held_out] = answers["latency_ms"], answers["memory_mib"]
        found["trees 1/s"][held_out] = trees_fold(forwards, "throughput", taught, number)
        found["trees MiB"][held_out] = trees_fold(forwards, "memory", taught, number)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **found)
    return found


def line(title: str, rows: Sequence[Labelled], found: dict[str, Values]) -> str:
    """Mean errors and root mean squares of both, over the folds that are done."""
    done = np.isfinite(found["network ms"])
    latency_ms = np.array([row.truth["latency_ms"] for row in rows])[done]
    memory = np.array([row.truth["memory_mib"] for row in rows])[done]
    speed = np.array([row.graph.whole_of(("batch",))[0] for row in rows])[done] / latency_ms * 1000
    own = {name: values[done] for name, values in found.items()}
    throughput = {"network": speed * latency_ms / own["network ms"], "trees": own["trees 1/s"]}
    parts = []
    for name, values in throughput.items():
        held = own[f"{name} MiB"]
        parts.append(
            f"{name} {100 * np.mean(np.abs(values / speed - 1)):.1f} % of throughput (RMSE "
            f"{np.sqrt(np.mean((values - speed) ** 2)):.4g}/s), "
            f"{100 * np.nanmean(np.abs(held / memory - 1)):.1f} % of memory"
        )
    return f"{title}, {int(done.sum())} of {len(rows)} rows judged: " + "; ".join(parts)


def main() -> None:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.prepare.")
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("out/llm-network"))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=800.0, help="No fold begins later [800].")
    options = parser.parse_args()
    by_id = {row.workload_id: row for row in read_forwards(options.store)}
    rows = [row for row in read_set(options.set) if row.workload_id in by_id and np.isfinite(row.truth["memory_mib"])]
    forwards, recipe = [by_id[row.workload_id] for row in rows], recipe_of(options.width, options.epochs)
    for title, by_family in (("rows at random", False), ("architecture left out", True)):
        file = options.out / f"{title.replace(' ', '-')}-{options.width}-{options.epochs}.npz"
        found = judge(rows, forwards, recipe, file, by_family=by_family, seconds=options.seconds / 2)
        sys.stdout.write(line(title, rows, found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
