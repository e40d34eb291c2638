"""Lab: distil: ``python -m lab.distil NEWEST.zip [OLDER.zip …] --out STUDENT.zip``.

Collects rows, asks all teachers about them, and fits one network, which replaces the network of the newest file. Its
trees, its reach and its quantiles stay. ``--minutes`` is the time of one core; 6.5 were not enough
(``docs/lab/0061-fast-again.md``). With ``--start STUDENT.zip`` a student that is there goes on.
"""

import argparse
import hashlib
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.unit.model import NETWORK
from foretell.predictors.unit.network import UnitNetwork
from lab.distil.fit import Answers, Fit, ask, distil, started
from lab.distil.fitted import read_parts, with_student
from lab.distil.questions import Questions, between
from lab.distil.rows import SPACE, Rows, collect

_HELD_OUT = 25  # one in so many architectures only judges


def main() -> None:
    """Read the options, and distil."""
    parser = argparse.ArgumentParser(prog="python -m lab.distil")
    parser.add_argument("files", type=Path, nargs="+", help="fitted predictors, the newest first")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    parser.add_argument("--device", default="h200")
    parser.add_argument("--rows", type=Path, help="rows that were collected before [they are collected]")
    parser.add_argument("--start", type=Path, help="a student that goes on [a member of the newest]")
    parser.add_argument("--width", type=int, default=0, help="of a network from random weights [that of a member]")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--bf16", action="store_true", help="products in bf16")
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--between", type=int, default=0, help="so many units between those of the store")
    options = parser.parse_args()
    parts = [read_parts(file) for file in options.files]
    newest, *older = [UnitNetwork.load(own[f"{NETWORK}.npz"]) for own in parts]
    rows, answers = _taught(options, newest, older)
    order = np.random.default_rng(0).permutation(len(rows.names))
    held_out = np.isin(rows.architecture, order[: len(order) // _HELD_OUT])
    held_out &= rows.names[rows.architecture] != SPACE
    questions = Questions.about(rows)
    if options.between:
        questions, answers, held_out = _with_between(options, (newest, older), questions, answers, held_out)
    starts = [] if options.width else [started(newest, 0)]
    if options.start:
        starts = [UnitNetwork.load(read_parts(options.start)[f"{NETWORK}.npz"])]
    width = options.width or newest.weights["leave"].shape[1]
    fit = Fit(width, options.blocks, options.minutes, options.epochs, options.batch, options.rate, bf16=options.bf16)
    (fitted,) = distil(questions, [answers], newest, ~held_out[None], fit, starts, click.echo)
    student = UnitNetwork.load(fitted.to_bytes())
    judged = questions.of(np.flatnonzero(held_out))
    away = np.abs(student.predict(judged.encoded, judged.bound_us).log_ratio - answers.log_ratio[held_out])
    within = np.quantile(away, 0.99)
    click.echo(f"as stored: {away.mean():.4f} from the teachers in log(time), 99 in 100 within {within:.3f}")
    facts: dict[str, object] = {"distilled_from": [file.name for file in options.files]}
    write_whole(options.out, with_student(parts[0], fitted.to_bytes(), facts))


def _taught(options: argparse.Namespace, newest: UnitNetwork, older: list[UnitNetwork]) -> tuple[Rows, Answers]:
    """The rows and what the teachers say of them, kept in the cache by the teachers' files: both take minutes."""
    rows_file = options.rows or options.cache / f"distil-{_key(options)}-rows.npz"
    answers_file = options.cache / f"distil-{_key(options)}-answers.npz"
    if not rows_file.exists():
        collect(options.store, options.device, options.cache, more=5, networks=600).save(rows_file)
    rows = Rows.load(rows_file)
    if not answers_file.exists():
        click.echo(f"asking about {len(rows.bound_us)} rows")
        ask(Questions.about(rows), [newest, *older]).save(answers_file)
    return rows, Answers.load(answers_file)


def _with_between(
    options: argparse.Namespace, teachers: tuple[UnitNetwork, list[UnitNetwork]], questions: Questions,
    answers: Answers, held_out: NDArray[np.bool_],
) -> tuple[Questions, Answers, NDArray[np.bool_]]:  # fmt: skip
    """The questions, and others between those that teach, with their answers; these are kept in the cache."""
    more, _ = between(questions.of(np.flatnonzero(~held_out)), options.between)
    file = options.cache / f"distil-{_key(options)}-between-{options.between}.npz"
    if not file.exists():
        click.echo(f"asking about {len(more)} units between others")
        ask(more, [teachers[0], *teachers[1]]).save(file)
    others = Answers.load(file)
    together = Answers(*(np.concatenate(pair) for pair in zip(answers.columns, others.columns, strict=True)))
    return questions.with_more(more), together, np.concatenate([held_out, np.zeros(len(more), bool)])


def _key(options: argparse.Namespace) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in options.files)).hexdigest()[:16]


if __name__ == "__main__":
    main()
