"""Lab: errors by the size of the input (LILOU, Fig. 9): ``python -m lab.papers.lilou.input_sizes``.

The paper groups networks by the height and width of the input, from 32 to 224, and says that all predictors err more on
small inputs, and LILOU varies least. Here the predictors that a CPU can fit are fitted to four folds of architectures
and judged on the fifth, five times: linear regression, boosted trees on the whole graph, nn-Meter's way (a forest for
each kernel, summed), and the roofline, which is not fitted. LILOU's networks are those that
``lab evaluate lilou-analyser`` has saved; one that lacks folds is judged on those that it has.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.sample import Sample
from foretell.training.examples.samples import read_samples
from foretell.training.examples.workloads import measured_rows
from foretell.training.fusion import FOLDS, fold_of
from foretell.units import KILO
from lab.papers.baselines import GradientBoosting, Linear
from lab.papers.kernel_regressors import KernelRegressors
from lab.papers.lilou.analyser import FIT_VERSION, FITS, read_fits
from lab.papers.lilou.folds import plan_folds
from lab.papers.lilou.sets import load_units, prepare_units

Values = NDArray[np.float64]
SIDES = ((1, 47), (48, 95), (96, 159), (160, 223), (224, 224), (225, 1 << 30))
ROOFLINE, LINEAR, BOOSTED, BY_KERNEL = (
    "roofline", "linear regression", "boosted trees on the whole", "a forest for each kernel"
)  # fmt: skip


def side_of(shape: str) -> int | None:
    """The smaller side of a picture, from the shape of an input.

    >>> side_of("3x224x160"), side_of("128")
    (160, None)
    """
    sizes = shape.split(",")[0].split("x")
    return min(map(int, sizes[1:])) if len(sizes) == 3 and all(size.isdigit() for size in sizes) else None


def predictions(samples: Sequence[Sample], teaching: Sequence[Sample], log: Callable[[str], None]) -> dict[str, Values]:
    """Milliseconds by predictor, each by a fit to the other folds; ``teaching`` has traced benches, too."""
    folds, taught = (np.array([fold_of(one.spec) for one in some]) for some in (samples, teaching))
    found = {name: np.full(len(samples), np.nan) for name in (LINEAR, BOOSTED, BY_KERNEL)}
    for fold in range(FOLDS):
        log(f"fold {fold + 1} of {FOLDS}")
        held_out = np.flatnonzero(folds == fold)
        own, rest = (
            [samples[i] for i in held_out.tolist()],
            [samples[i] for i in np.flatnonzero(folds != fold).tolist()],
        )
        if own:
            found[LINEAR][held_out] = Linear.fit(rest).predict(own)["latency_ms"]
            found[BOOSTED][held_out] = GradientBoosting.fit(rest).predict(own)["latency_ms"]
            forests = _forests([teaching[i] for i in np.flatnonzero(taught != fold).tolist()])
            found[BY_KERNEL][held_out] = [_summed_ms(forests, sample) for sample in own]
    return found | {ROOFLINE: np.array([sample.roofline_ms for sample in samples])}


def _forests(samples: Sequence[Sample]) -> KernelRegressors:
    traced = [sample for sample in samples if sample.unit_us is not None]
    features = np.concatenate([sample.units.features for sample in traced])
    times_us = np.concatenate([sample.unit_us for sample in traced if sample.unit_us is not None])
    known = np.isfinite(times_us) & (times_us > 0)
    _, first = np.unique(features[known], axis=0, return_index=True)  # equal units teach once
    return KernelRegressors.fit(features[known][first], times_us[known][first])


def _summed_ms(forests: KernelRegressors, sample: Sample) -> float:
    return float(forests.predict(sample.units.features) @ sample.units.counts) / KILO


def networks_ms(store: Path, cache: Path, ids: Sequence[str]) -> dict[str, Values]:
    """Milliseconds of workloads by LILOU's saved networks, each by one that has not seen the architecture."""
    prepared = prepare_units(store, "h200", cache)
    saved = [fit for fit in plan_folds(prepared, FITS, FIT_VERSION, FOLDS) if fit.file.exists()]
    unit_set, found = load_units(prepared), dict[str, Values]()
    for name, predicted in read_fits(saved, unit_set).items():
        owner = np.repeat(np.arange(len(unit_set.lengths)), unit_set.lengths)
        totals = np.bincount(owner, predicted.summed_us * unit_set.repeats, len(unit_set.lengths)) / KILO
        folds = [fit.fold for fit in saved if fit.name == name]
        known = dict(zip(unit_set.ids.tolist(), np.where(np.isin(unit_set.summed_fold, folds), totals, np.nan)))
        found[name] = np.array([known.get(one, np.nan) for one in ids])
    return found


def lines(sides: NDArray[np.int64], truth_ms: Values, predicted_ms: Mapping[str, Values]) -> Iterator[str]:
    """The table: the mean error of each predictor by the side of the input, and how much it varies over them."""
    parts = [(low, high, (sides >= low) & (sides <= high)) for low, high in SIDES]
    heads = [f"{_text(low, high)} px ({own.sum()})" for low, high, own in parts]
    yield "| predictor, mean error % | " + " | ".join(heads) + " | all | deviation over sizes |"
    yield "|---|" + "---:|" * (len(parts) + 2)
    for name, values in predicted_ms.items():
        errors, told = 100 * np.abs(values / truth_ms - 1), np.isfinite(values)
        means = [float(errors[own & told].mean()) if (own & told).any() else float("nan") for *_, own in parts]
        cells = [f"{mean:.1f}" for mean in (*means, float(errors[told].mean()), float(np.nanstd(means)))]
        yield f"| {name} | " + " | ".join(cells) + " |"


def _text(low: int, high: int) -> str:
    if low == high:
        return f"{low}"
    return f"{low} – {high}" if high < 1 << 30 else f"{low} and more"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    options = parser.parse_args()
    shapes = {name: row["input_shape"] for name, row in measured_rows(options.store).items()}
    everything = read_samples(options.store, "h200", options.cache)
    forward = [one for one in everything if one.setting.mode == "inference"]
    chosen = [
        one for one in forward
        if one.captured and np.isfinite(one.truth["latency_ms"]) and side_of(shapes.get(one.workload_id, ""))
    ]  # fmt: skip
    sides = np.array([side_of(shapes[one.workload_id]) for one in chosen], np.int64)
    truth_ms = np.array([one.truth["latency_ms"] for one in chosen])
    found = networks_ms(options.store, options.cache, [one.workload_id for one in chosen])
    found |= predictions(chosen, forward, _say)
    for line in lines(sides, truth_ms, found):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
