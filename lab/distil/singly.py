"""Lab: distil: the networks of folds and splits one after the other, where no GPU is at hand.

``python -m lab.distil.singly FOLDER OUT`` fits nine networks to what ``python -m lab.distil.elsewhere pack FOLDER``
wrote: one without each fold of all data, and one for each split that judges, on its own samples alone. Each is kept as
soon as it is done; a second call goes on with those that are missing. When all are there, the cross-fits are written as
``python -m lab.distil.elsewhere keep OUT`` wants them, and ``foretell evaluate unit-network --split architecture`` says
how good they are.

A GPU fits all networks side by side; a processor is faster with one at a time, whose activations stay in its caches.
Products are in bf16, batches are a quarter as large and there is no dropout, which would take a quarter of the time, so
a fifth of the epochs makes four fifths of the steps.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import encode
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import CrossFit, Settings, combine
from foretell.predictors.unit.fit_network import Classes, NetworkFit, fit_networks
from foretell.predictors.unit.network import UnitNetwork, UnitPredictions
from foretell.predictors.unit.rows import UnitRows
from foretell.training.cross_fits import ALL_DATA, save_cross_fit
from lab.distil.elsewhere import SPLIT, read_packed

FIT = NetworkFit(epochs=40, batch=32, dropout=0.0, bf16=True)


@dataclass(frozen=True)
class Part:
    """One network: which samples it learns from, and which it is asked about."""

    name: str
    learns: NDArray[np.bool_]
    asked: NDArray[np.bool_]


def parts_of(folds: dict[str, NDArray[np.intp]]) -> Iterator[Part]:
    """The networks of the folds of all data, then those of the splits that judge."""
    own = folds[ALL_DATA]
    for fold in range(Settings().folds):
        yield Part(f"fold-{fold}", own != fold, own == fold)
    for name in folds:
        if name.startswith(SPLIT):
            yield Part(name, folds[name] >= 0, folds[name] < 0)


def fit_part(samples: Sequence[Sample], classes: Classes, part: Part, fit: NetworkFit) -> UnitNetwork:
    """The network of one part; after each report, what it says of the samples that it does not learn from."""
    rows = UnitRows.of(_some(samples, part.learns))
    of_row = np.repeat(part.learns, [len(sample.units) for sample in samples])
    began = time.monotonic()

    def log(text: str) -> None:
        click.echo(f"{part.name}: {time.monotonic() - began:.0f} s: {text}")

    everyone = np.ones((1, int(part.learns.sum())), bool)
    return fit_networks(rows, everyone, fit, "cpu", log, classes[of_row]).network([0])


def told(network: UnitNetwork, samples: Sequence[Sample]) -> UnitPredictions:
    """What a network says of all units of some samples."""
    rows = UnitRows.of(samples)
    return network.predict(encode(rows.features), rows.bound_us)


def latency_error(said: UnitPredictions, samples: Sequence[Sample]) -> float:
    """The mean error of sums of units on replayed workloads, before any tree corrects them."""
    rows = UnitRows.of(samples)
    sums = np.add.reduceat(np.exp(said.log_ratio) * rows.bound_us * rows.counts, rows.starts[:-1])
    return float(np.abs(sums / rows.latency_us - 1)[rows.is_replayed].mean())


def cross_fits_of(
    networks: dict[str, UnitNetwork], samples: Sequence[Sample], folds: dict[str, NDArray[np.intp]]
) -> Iterator[tuple[str, CrossFit]]:
    """What `foretell.training.cross_fits` reads: the networks of the folds answer for what is seen of a split."""
    of_row = np.repeat(np.arange(len(samples)), [len(sample.units) for sample in samples])
    by_fold = [told(networks[f"fold-{fold}"], samples) for fold in range(Settings().folds)]
    known = combine(by_fold, by_fold[0], folds[ALL_DATA][of_row])
    yield ALL_DATA, CrossFit(known, networks["fold-0"].to_bytes())
    for name in networks:
        if name.startswith(SPLIT):
            unseen = told(networks[name], samples)
            joined = combine([known], unseen, np.where(folds[name] >= 0, 0, -1)[of_row])
            yield name, CrossFit(joined, networks[name].to_bytes())


def _some(samples: Sequence[Sample], chosen: NDArray[np.bool_]) -> list[Sample]:
    return [sample for sample, is_chosen in zip(samples, chosen, strict=True) if is_chosen]


def fit_missing(folder: Path, out: Path, fit: NetworkFit, names: Sequence[str] | None = None) -> bool:
    """Fit the networks that ``out`` lacks, or some of them; with all at hand, write the cross-fits and say so."""
    samples, folds, classes = read_packed(folder)
    networks: dict[str, UnitNetwork] = {}
    parts = list(parts_of(folds))
    for part in parts:
        file = out / "networks" / f"{part.name}.npz"
        if not file.exists():
            if names and part.name not in names:
                continue
            write_whole(file, fit_part(samples, classes, part, fit).to_bytes())
        # read back, as it will be served: with weights in 8 bits
        network = networks[part.name] = UnitNetwork.load(file.read_bytes())
        asked = _some(samples, part.asked)
        click.echo(f"{part.name}: {latency_error(told(network, asked), asked):.2%} off on what it has not seen")
    if len(networks) < len(parts):
        return False
    for name, one in cross_fits_of(networks, samples, folds):
        save_cross_fit(one, out / f"{name}.npz")
    return True


def main() -> None:
    """Read the options, and fit."""
    parser = argparse.ArgumentParser(prog="python -m lab.distil.singly")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=FIT.width)
    parser.add_argument("--blocks", type=int, default=FIT.blocks)
    parser.add_argument("--epochs", type=int, default=FIT.epochs)
    parser.add_argument("--parts", help="only these, with commas between them")
    options = parser.parse_args()
    fit = replace(FIT, width=options.width, blocks=options.blocks, epochs=options.epochs)
    is_complete = fit_missing(options.folder, options.out, fit, options.parts and options.parts.split(","))
    click.echo(f"written: {options.out}" if is_complete else "some networks are missing: run it again without --parts")


if __name__ == "__main__":
    main()
