"""Lab: distil: ``python -m lab.distil NEWEST.zip [OLDER.zip …] --out STUDENT.zip``.

Collects rows, asks all teachers about them, and fits one network, which replaces the network of the newest file. Its
trees, its reach and its quantiles stay. ``--minutes`` is the time of one core; 6.5 were not enough
(``docs/lab/0061-fast-again.md``).
"""

import argparse
import io
import json
import zipfile
from pathlib import Path

import click
import numpy as np

from foretell.features.encoded import encode
from foretell.files import write_whole
from foretell.predictors.unit.model import NETWORK, write
from foretell.predictors.unit.network import UnitNetwork
from lab.distil.fit import Fit, ask, distil, started
from lab.distil.rows import SPACE, collect

_HELD_OUT = 25  # one in so many architectures only judges


def main() -> None:
    """Read the options, and distil."""
    parser = argparse.ArgumentParser(prog="python -m lab.distil")
    parser.add_argument("files", type=Path, nargs="+", help="fitted predictors, the newest first")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    parser.add_argument("--device", default="h200")
    parser.add_argument("--width", type=int, default=0, help="of a network from random weights [that of a member]")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=7e-4)
    options = parser.parse_args()
    parts = [_parts(file) for file in options.files]
    newest, *older = [UnitNetwork.load(own[f"{NETWORK}.npz"]) for own in parts]
    rows = collect(options.store, options.device, options.cache, more=2, networks=300)
    answers = ask(rows, newest, older)
    order = np.random.default_rng(0).permutation(len(rows.names))
    held_out = np.isin(rows.architecture, order[: len(order) // _HELD_OUT])
    held_out &= rows.names[rows.architecture] != SPACE
    start = None if options.width else started(newest, 0)
    fit = Fit(options.width or newest.weights["leave"].shape[1], options.blocks, options.minutes, rate=options.rate)
    student = UnitNetwork.load(distil(rows, answers, newest, held_out, fit, start, click.echo).to_bytes())
    told = student.predict(encode(rows.features[held_out]), rows.bound_us[held_out])
    away = np.abs(told.log_ratio - answers.log_ratio[held_out])
    within = np.quantile(away, 0.99)
    click.echo(f"as stored: {away.mean():.4f} from the teachers in log(time), 99 in 100 within {within:.3f}")
    _write(parts[0], student, options.out, [file.name for file in options.files])


def _parts(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write(parts: dict[str, bytes], student: UnitNetwork, out: Path, teachers: list[str]) -> None:
    """The newest file with the student in it, and its teachers in the card."""
    card = {**json.loads(parts["card.json"]), "distilled_from": teachers}
    known = np.load(io.BytesIO(parts["known.npy"]), allow_pickle=False)
    models = {name.removesuffix(".npz"): data for name, data in parts.items() if name.endswith(".npz")}
    write_whole(out, write({**models, NETWORK: student.to_bytes()}, card, known))


if __name__ == "__main__":
    main()
