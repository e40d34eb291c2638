"""Lab: distil: a whole fit on a machine that has a GPU and no store: networks, students that learn from them, splits.

``python -m lab.distil.elsewhere pack FOLDER`` writes what the other machine needs, ``… fit FOLDER OUT`` and ``… splits
FOLDER OUT`` fit there, and ``… keep OUT`` puts the result where ``foretell train`` and ``foretell evaluate`` look for
fitted networks. ``… serve STUDENT.zip OUT --trees FITTED.zip`` puts a student that ``foretell train`` made into a fit
whose intervals were calibrated before; its errors on unseen architectures stay those of its own folds.

1. *all-0*: the cross-fit over all data, with more members than are served. 2. *student-WIDTH*: one network that learns
what all members say (and with ``--older FITTED.zip``, what another fit says), and one for each fold of architectures,
which learns from the networks without that fold and from no unit of its architectures. So what a student says of unseen
architectures is known, and trees and intervals can be fitted to it. 3. *architecture-SEED*: the networks of the splits
that judge. They answer for the test side, which they have not seen. The trees beside them are fitted to the other sides
alone, and to what the networks of *all-0*'s folds say of these: a quarter of the networks that whole cross-fits need.
"""

import argparse
import functools
import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import (
    CrossFit,
    Settings,
    combine,
    folds_of,
    learning_samples,
)
from foretell.predictors.unit.fit_network import Classes, FittedNetworks, default_device, fit_networks
from foretell.predictors.unit.model import NETWORK
from foretell.predictors.unit.network import UnitNetwork, UnitPredictions
from foretell.predictors.unit.rows import UnitRows
from foretell.training import unit_models
from foretell.training.cross_fits import ALL_DATA, cross_fits, save_cross_fit
from foretell.training.examples import samples as sample_files
from foretell.training.examples.unit_classes import read_unit_classes
from foretell.training.judging.protocol import groups_of
from lab.distil.fit import Answers, Fit, ask, distil, started, with_spread
from lab.distil.fitted import read_parts, with_student
from lab.distil.questions import Questions, between, beyond
from lab.distil.rows import SINGLE, SPACE, Rows, collect, distinct
from lab.distil.singles import single_operators

SAMPLES, FOLDS, ROWS, SINGLES = "samples.npz", "folds.npz", "rows.npz", "singles.npz"
SPLIT, SEEDS = "architecture", range(5)
MEMBERS, FOLD_MEMBERS, SPLIT_MEMBERS = 6, 2, 2
SERVED = 3  # members of the network that is kept beside its students
STUDENT = "student"
_SPREAD_ROWS = 60_000
_BEYOND = {0: 1.0, 1: 0.25, 2: 0.25, 4: 0.25, 6: 0.25}  # octaves → the share of these rows
_OF_NO_FOLD, _UNKNOWN = -2, -3  # a network of the search space, and a single operator, may teach every student
_SINGLE_OPERATORS = 150_000


def pack(store: Path, device: str, cache: Path, folder: Path) -> None:
    """Write the samples, their folds, the classes of their kernels, and rows that nobody measured."""
    samples = sample_files.read_samples(store, device, cache, click.echo)
    write_whole(folder / SAMPLES, sample_files.cache_file(store, device, cache).read_bytes())
    folds = {ALL_DATA: folds_of(groups_of(samples), Settings())}
    folds |= {f"{SPLIT}-{seed}": unit_models.folds_within(samples, SPLIT, seed) for seed in SEEDS}
    classes = read_unit_classes(samples, store, device, cache, click.echo)
    assert classes is not None
    _write(folder / FOLDS, classes=classes, **folds)
    if not (folder / ROWS).exists():
        rows = collect(store, device, cache, more=5, networks=600)
        write_rows(rows, folder / ROWS)
    if not (folder / SINGLES).exists():
        write_rows(single_operators(device, _SINGLE_OPERATORS), folder / SINGLES)


def write_rows(rows: Rows, file: Path) -> None:
    """Write those of workloads that nobody measured; column after column, which compresses to a third."""
    own = ~rows.is_measured
    _write(
        file, features=np.ascontiguousarray(rows.features[own].T), bound_us=rows.bound_us[own],
        architecture=rows.architecture[own], names=rows.names,
    )  # fmt: skip


def fit(
    folder: Path, out: Path, widths: Sequence[int], student: Fit, more: int, settings: Settings,
    older: UnitNetwork | None = None,
) -> None:  # fmt: skip
    """Fit the networks of all data, and the students that ``out`` does not have."""
    log, device = _logger(), default_device()
    samples, folds, classes = read_packed(folder)
    rows = UnitRows.of(samples)
    own = folds[ALL_DATA]
    fitted = fit_networks(rows, learning_samples(own, settings), settings.network, device, log, classes)
    save_cross_fit(_cross_fit(fitted, rows, own, settings), out / f"{ALL_DATA}.npz")
    log(f"{ALL_DATA} is written")
    waiting = [width for width in widths if not (out / f"{STUDENT}-{width}.npz").exists()]
    if waiting:
        asked = _asked(samples, own, fitted, folder, more, settings, older)
        log(f"all members have answered {len(asked.questions)} questions")
        for width in waiting:
            one = fit_students(rows, own, fitted, asked, replace(student, width=width), settings, log)
            save_cross_fit(one, out / f"{STUDENT}-{width}.npz")
            log(f"{STUDENT}-{width} is written")


def splits(folder: Path, out: Path, seeds: int, settings: Settings) -> None:
    """Fit the networks of the splits that ``out`` does not have; *all-0* must be there."""
    log = _logger()
    samples, folds, classes = read_packed(folder)
    names = [name for name in folds if name.startswith(SPLIT)][:seeds]
    names = [name for name in names if not (out / f"{name}.npz").exists()]
    if not names:
        return
    log(f"networks for {', '.join(names)}")
    all_data = {ALL_DATA: out / f"{ALL_DATA}.npz"}
    (known,) = cross_fits(samples, {ALL_DATA: folds[ALL_DATA]}, settings, all_data).values()
    rows, members = UnitRows.of(samples), settings.members
    learns = np.repeat(np.stack([folds[name] >= 0 for name in names]), members, axis=0)
    fitted = fit_networks(rows, learns, settings.network, default_device(), log, classes)
    predictions = list(fitted.predictions())
    for number, name in enumerate(names):
        own = list(range(number * members, (number + 1) * members))
        served = _mean([predictions[member] for member in own])
        # what is seen, and what is not
        joined = combine([known.predictions], served, np.where(folds[name] >= 0, 0, -1)[rows.owner])
        save_cross_fit(CrossFit(joined, fitted.network(own).to_bytes()), out / f"{name}.npz")
        log(f"{name} is written")


def _logger() -> unit_models.Log:
    began = time.monotonic()
    return lambda text: click.echo(f"{time.monotonic() - began:.0f} s: {text}")


def read_packed(folder: Path) -> tuple[list[Sample], dict[str, NDArray[np.intp]], Classes]:
    """The samples, the folds of each cross-fit, and the classes of kernels."""
    samples = sample_files.load_samples(folder / SAMPLES)
    with np.load(folder / FOLDS, allow_pickle=False) as arrays:
        folds = {name: arrays[name] for name in arrays.files}
    classes = folds.pop("classes")
    return samples, folds, classes


def _members(settings: Settings) -> list[list[int]]:
    """The networks of each fold, then those that are served."""
    each = settings.fold_members
    parts = [list(range(fold * each, (fold + 1) * each)) for fold in range(settings.folds)]
    return [*parts, list(range(settings.folds * each, settings.networks))]


def _cross_fit(fitted: FittedNetworks, rows: UnitRows, folds: NDArray[np.intp], settings: Settings) -> CrossFit:
    """The cross-fit as ``foretell train`` keeps it, with as many members as are served."""
    each = list(fitted.predictions())
    *parts, served = ([each[member] for member in members] for members in _members(settings))
    by_fold = [_mean(own) for own in parts]
    network = fitted.network(_members(settings)[-1][:SERVED])
    return CrossFit(combine(by_fold, _mean(served), folds[rows.owner]), network.to_bytes())


def _mean(some: Sequence[UnitPredictions]) -> UnitPredictions:
    return UnitPredictions.mean_of(
        [one.log_ratio for one in some], [one.power_w for one in some if one.power_w is not None]
    )


@dataclass(frozen=True)
class Asked:
    """Questions, the folds of the two architectures that each is about, and what the networks of each fold answer.

    The last answers are those of the members that are served.
    """

    questions: Questions
    fold_of_row: NDArray[np.intp]
    answers: Sequence[Answers]


def _asked(
    samples: Sequence[Sample], folds: NDArray[np.intp], fitted: FittedNetworks, folder: Path, more: int,
    settings: Settings, older: UnitNetwork | None,
) -> Asked:  # fmt: skip
    questions, fold_of_row = _questions(samples, folds, (folder / ROWS, folder / SINGLES), more)
    answers = []
    for members in _members(settings):
        told = fitted.told(members, questions.encoded, questions.bound_us)
        assert told.power_w is not None
        answers.append(Answers(told.log_ratio, told.power_w, told.spread))
    if older is not None:
        # it has seen all architectures, so it teaches the one that is served alone
        answers[-1] = _between(answers[-1], ask(questions, [older]))
    return Asked(questions, fold_of_row, answers)


def _between(one: Answers, other: Answers) -> Answers:
    """The mean of two teachers; how far members are apart is the first one's."""
    return Answers((one.log_ratio + other.log_ratio) / 2, (one.power_w + other.power_w) / 2, one.spread)


def fit_students(
    rows: UnitRows, folds: NDArray[np.intp], fitted: FittedNetworks, asked: Asked, fit: Fit, settings: Settings,
    log: unit_models.Log,
) -> CrossFit:  # fmt: skip
    """One student for each fold and one that is served, and what they say of the unseen."""
    # the student of a fold learns from no unit of its architectures, also not from one between them and others
    unseen = [(asked.fold_of_row != fold).all(axis=1) for fold in range(settings.folds)]
    learns = np.stack([*unseen, np.ones(len(asked.questions), bool)])
    parts = _members(settings)
    is_member = fit.width == settings.network.width and fit.blocks == settings.network.blocks
    starts = [started(fitted.network(members[:1]), 0) for members in parts] if is_member else []
    fit = replace(fit, rate=fit.rate / 2) if is_member else fit  # a member knows nearly all of it already
    like = fitted.network(parts[-1])
    students = distil(asked.questions, asked.answers, like, learns, fit, starts, log)
    own, fold_of_unit = Questions.of_units(rows.features, rows.bound_us), folds[rows.owner]
    by_fold, off = [], []
    for fold, student in enumerate(students[:-1]):
        held = np.flatnonzero(fold_of_unit == fold)
        some = own.of(held)
        # as it will be read: with weights in 8 bits
        said = UnitNetwork.load(student.to_bytes()).predict(some.encoded, some.bound_us)
        told = fitted.told(parts[fold], some.encoded, some.bound_us)
        off.append(f"{np.abs(said.log_ratio - told.log_ratio).mean():.4f}")
        by_fold.append(_spread_out(said, held, len(fold_of_unit)))
    log(f"stored students are {', '.join(off)} from their teachers on unseen architectures")
    # every sample has a fold, so that nobody asks what the served one says of them
    nothing = _spread_out(
        UnitPredictions(np.zeros(0), np.zeros(0), np.zeros(0)), np.zeros(0, np.intp), len(fold_of_unit)
    )
    return CrossFit(combine(by_fold, nothing, fold_of_unit), students[-1].to_bytes())


def _spread_out(said: UnitPredictions, held: NDArray[np.intp], count: int) -> UnitPredictions:
    """Predictions of some rows among all rows; the others are 0."""
    columns = [np.zeros(count) for _ in range(3)]
    for column, values in zip(columns, (said.log_ratio, np.asarray(said.power_w), said.spread), strict=True):
        column[held] = values
    return UnitPredictions(*columns)


def _questions(
    samples: Sequence[Sample], folds: NDArray[np.intp], others: Sequence[Path], more: int
) -> tuple[Questions, NDArray[np.intp]]:
    """All questions, and for each the folds of the two architectures that it is about."""
    groups = groups_of(samples)
    fold_of = dict(zip(groups, folds.tolist(), strict=True))
    rows = UnitRows.of(samples)
    fold_of[SPACE] = fold_of[SINGLE] = _OF_NO_FOLD
    features, bound_us, fold = rows.features, rows.bound_us, folds[rows.owner]
    for file in others:
        with np.load(file, allow_pickle=False) as arrays:
            names = [fold_of.get(name, _UNKNOWN) for name in arrays["names"].tolist()]
            features = np.concatenate([features, arrays["features"].T])
            bound_us = np.concatenate([bound_us, arrays["bound_us"]])
            fold = np.concatenate([fold, np.array(names, np.intp)[arrays["architecture"]]])
    kept = distinct(features)
    kept = kept[fold[kept] != _UNKNOWN]
    plain = Questions.of_units(features[kept], bound_us[kept])
    pairs = fold[kept][:, None].repeat(2, axis=1)
    if not more:
        return plain, pairs
    mixed, places = between(plain, more)
    return plain.with_more(mixed), np.concatenate([pairs, fold[kept][places]])


def keep(out: Path, store: Path, device: str, cache: Path, student: int | None) -> None:
    """Put cross-fits into the cache; with ``student``, that student is what ``foretell train`` takes."""
    for file in sorted(out.glob("*.npz")):
        name = file.stem
        if name.startswith(STUDENT):
            continue
        if name == ALL_DATA and student:
            file = out / f"{STUDENT}-{student}.npz"
        target = unit_models.network_files(store, device, cache, [name])[name]
        write_whole(target, file.read_bytes())
        click.echo(f"written: {target}")


def serve(
    student: Path, trees: Path, out: Path, device: str, widen: float = 1.0, teachers: Sequence[Path] = (),
    samples: Sequence[Sample] = (),
) -> Path:  # fmt: skip
    """A predictor with the network of a student and the trees of another fit; ``widen`` scales intervals of latency.

    A student may be better than the folds of the fit that calibrated the trees, or worse: ``widen`` says so. With
    ``teachers``, its output for the spread is fitted to theirs on units of the ``samples``, and on larger ones.
    """
    own, parts = read_parts(student), read_parts(trees)
    network = UnitNetwork.load(own[f"{NETWORK}.npz"])
    if teachers:
        others = [UnitNetwork.load(read_parts(file)[f"{NETWORK}.npz"]) for file in teachers]
        network = with_spread(network, others, _near_and_beyond(samples))
    card, kept = json.loads(own["card.json"]), json.loads(parts["card.json"])
    quantiles = {**kept["quantiles"], "latency_ms": kept["quantiles"]["latency_ms"] * widen}
    facts = {name: card[name] for name in ("held_out", "held_out_by_family")}
    facts |= {"student": True, "quantiles": quantiles}
    data = with_student(parts, network.to_bytes(), facts)
    return unit_models.write_unit_model(out, unit_models.NETWORK, device, data)


def _near_and_beyond(samples: Sequence[Sample]) -> Questions:
    """Measured units, and units with all sizes 1, 2, 4 and 6 octaves larger."""
    rows, random = UnitRows.of(samples), np.random.default_rng(1)
    parts = []
    for octaves, share in _BEYOND.items():
        some = random.choice(len(rows.counts), min(round(share * _SPREAD_ROWS), len(rows.counts)), replace=False)
        parts.append(beyond(rows.features[some], rows.bound_us[some], octaves))
    return functools.reduce(Questions.with_more, parts)


def _write(file: Path, **arrays: NDArray[np.generic]) -> None:
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(file, data.getvalue())


def main() -> None:
    """Read the options, and do one of the five."""
    parser = argparse.ArgumentParser(prog="python -m lab.distil.elsewhere")
    parser.add_argument("verb", choices=("pack", "fit", "splits", "keep", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    parser.add_argument("--device", default="h200")
    parser.add_argument("--widths", default="320,256", help="of the students")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=2.0, help="for the students of one width")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--between", type=int, default=3_000_000)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of the splits")
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--network-epochs", type=int, help="fewer epochs of the networks, for a trial")
    parser.add_argument("--older", type=Path, help="for fit: a fitted predictor that teaches the served student, too")
    parser.add_argument("--student", type=int, help="keep the student of this width")
    parser.add_argument("--widen", type=float, default=1.0, help="for serve: intervals of latency, so many times")
    parser.add_argument("--trees", type=Path, help="for serve: the fit whose trees and quantiles stay")
    parser.add_argument("--teachers", type=Path, nargs="+", help="for serve: fits whose members' spread it learns")
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.store, options.device, options.cache, options.folder)
        return
    if options.verb == "keep":
        keep(options.folder, options.store, options.device, options.cache, options.student)
        return
    if options.verb == "serve":
        samples = sample_files.read_samples(options.store, options.device, options.cache) if options.teachers else []
        teachers = options.teachers or []
        made = serve(options.folder, options.trees, options.out, options.device, options.widen, teachers, samples)
        click.echo(f"written: {made}")
        return
    device = default_device()
    student = Fit(
        blocks=options.blocks, minutes=options.minutes, epochs=options.epochs, batch=options.batch, rate=options.rate,
        report_s=10.0, bf16=device == "cuda", device=device,
    )  # fmt: skip
    settings = Settings(device=options.device, members=options.members, fold_members=FOLD_MEMBERS)
    if options.network_epochs:
        settings = replace(settings, network=replace(settings.network, epochs=options.network_epochs))
    if options.verb == "splits":
        splits(options.folder, options.out, options.seeds, replace(settings, members=SPLIT_MEMBERS))
        return
    widths = [int(width) for width in options.widths.split(",")]
    older = UnitNetwork.load(read_parts(options.older)[f"{NETWORK}.npz"]) if options.older else None
    fit(options.folder, options.out, widths, student, options.between, settings, older)


if __name__ == "__main__":
    main()
