"""Lab: DIPPM's arms fitted side by side on one GPU, each in a process of its own, until the time is over.

``python -m lab.papers.dippm.fits SET OUT --seconds 430 --processes 14`` fits all arms that OUT does not have yet. Each
leaves a file with its predictions of the test side and its curve. A fit that was stopped goes on from its checkpoint.
A cosine ends with the epochs or with the seconds of an arm, whichever is first; the file says which.

A CPU fits narrow copies: ``--width 64 --whole --processes 1``. With ``--whole`` every arm runs all of its epochs: what
the end of a sitting interrupts is finished by the same command later.
"""

import argparse
import gc
import io
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.files import write_whole
from foretell.predictors.unit.fit_network import default_device
from foretell.units import KILO
from lab.papers.dippm.arms import Arm, arms, measured_targets, narrowed
from lab.papers.dippm.sets import Labelled, read_set, split_rows, subset

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Fitted

Thing = TypeVar("Thing")
PARTS = ("best", "table-4", "published")
_SAVE_EVERY_S = 120.0
_LEAST_S = 12.0  # a fit that would have less time is left for another sitting
_CURVE = 250  # points of a curve that are kept
_rows: list[Labelled] = []  # of each process: reading takes seconds, and a process fits many arms


def main() -> None:
    """Fit the arms that are missing, and collect their files into one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.prepare.")
    parser.add_argument("out", type=Path, help="The folder of the results.")
    parser.add_argument("--parts", default=",".join(PARTS), help="Parts of the study [all].")
    parser.add_argument("--only", default="", help="Arms whose names begin so, separated by commas [all].")
    parser.add_argument("--seconds", type=float, default=430.0, help="For all of them [430].")
    parser.add_argument("--processes", type=int, default=14, help="Fits at the same time [14].")
    parser.add_argument("--epochs", type=int, help="Fewer epochs, to try the command.")
    parser.add_argument("--width", type=int, help="Narrow copies: the width of all layers.")
    parser.add_argument("--limit-seconds", type=float, help="The most for one arm.")
    parser.add_argument("--whole", action="store_true", help="All epochs of an arm, in several sittings if need be.")
    parser.add_argument("--bf16", action="store_true", help="Nodes in 16 bits on a CPU, too, if it multiplies them.")
    parser.add_argument("--device", default=default_device(), help="cpu or cuda [what there is].")
    parser.add_argument("--untested", action="store_true", help="Capture steps without comparing them first.")
    parser.add_argument("--self-test", action="store_true", help="Only compare captured steps with plain ones.")
    options = parser.parse_args()
    if options.self_test:
        self_test(read_set(options.set))
        return
    end = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    begins = tuple(options.only.split(","))
    planned = [arm for part in options.parts.split(",") for arm in arms(part) if arm.key.startswith(begins)]
    if options.epochs:
        planned = [
            replace(arm, steps=None, recipe=replace(arm.recipe, epochs=min(options.epochs, arm.recipe.epochs)))
            for arm in planned
        ]
    if options.limit_seconds:
        planned = [replace(arm, seconds=min(arm.seconds, options.limit_seconds)) for arm in planned]
    if options.width:
        planned = [narrowed(arm, options.width) for arm in planned]
    how = {"whole": options.whole, "narrow": options.bf16 or None, "tested": not options.untested}
    run(planned, options.set, options.out, end, options.processes, options.device, **how)
    collect(options.out)


def run(
    planned: Sequence[Arm], file: Path, out: Path, end: float, processes: int, device: str, *, whole: bool = False,
    narrow: bool | None = None, tested: bool = True,
) -> None:  # fmt: skip
    """Fit arms until a moment; the first ones are started first."""
    waiting = [arm for arm in planned if not _file(out, arm).exists()]
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(processes, context, open_set, (file,)) as pool:
        for _ in range(processes):
            pool.submit(_wait)  # processes read the set while captures are tried
        captured = device == "cuda" and (not tested or captures_work(file))
        say(f"steps are {'captured' if captured else 'plain'}")
        fits = {pool.submit(fit_arm, arm, out, end, captured, device, whole, narrow): arm for arm in waiting}
        for future in as_completed(fits):
            try:
                say(f"{end - time.time():.0f} s left, {fits[future].key}: {future.result()}")
            except Exception as error:  # noqa: BLE001 - whatever ends one arm must not end the others
                say(f"{fits[future].key} failed: {type(error).__name__}: {error}")


def fit_arm(
    arm: Arm, out: Path, end: float, captured: bool, device: str = "cpu", whole: bool = False,
    narrow: bool | None = None,
) -> str:  # fmt: skip
    """Fit one arm, and write what it predicts for the test side; one line about it.

    A ``whole`` arm is not limited in its seconds: the end of the sitting leaves a checkpoint, and no result.
    """
    from lab.papers.graph_networks.training import fit

    began = time.time()
    parts = split_rows(subset(_rows, arm.subset), arm.split, arm.seed)
    seconds = min(arm.seconds, end - time.time() - _LEAST_S / 2)
    if seconds < _LEAST_S / 2:
        return "no time left"
    samples = {side: [(row.graph, row.truth) for row in parts[side]] for side in (TRAIN, VALIDATION)}
    recipe = measured_targets(arm.sized(len(parts[TRAIN])), [row.truth for row in parts[TRAIN]])
    checkpoint = out / "checkpoints" / f"{arm.key}.pt"

    def fit_by(captured: bool, narrow: bool | None) -> "Fitted":
        return fit(
            samples[TRAIN], samples[VALIDATION], recipe, arm.seed, stop_at(end) if whole else _go_on, device=device,
            seconds=None if whole else seconds, checkpoint=checkpoint, save_every_s=_SAVE_EVERY_S,
            captured=captured, narrow=narrow,
        )  # fmt: skip

    try:
        fitted, captured, narrow = first_finite(fit_by, captured, narrow)
    except InterruptedError as interruption:
        return f"{interruption} of {recipe.epochs}; the next sitting goes on"
    facts = {
        "arm": arm.name, "subset": arm.subset, "split": arm.split, "seed": arm.seed, "device": device,
        "captured": captured, "narrow": narrow, "spent_s": round(time.time() - began, 1),
    }  # fmt: skip
    line = save(_file(out, arm), fitted, len(parts[TRAIN]), parts[TEST], facts)
    checkpoint.unlink(missing_ok=True)
    return line


def first_finite(
    fit_by: Callable[[bool, bool | None], Thing], captured: bool, narrow: bool | None
) -> tuple[Thing, bool, bool | None]:
    """A fit with captured steps or not, with nodes in 16 bits or not: as asked, or plainer where no error is finite."""
    from lab.papers.graph_networks.loop import NoFiniteError

    ways = list(dict.fromkeys([(captured, narrow), (False, narrow), (False, False)]))
    for place, way in enumerate(ways):
        try:
            return fit_by(*way), *way
        except NoFiniteError as error:
            say(f"captured {way[0]}, 16 bits {way[1]}: {error}")
            if place + 1 == len(ways):
                raise
    raise AssertionError


def stop_at(end: float) -> Callable[[int, dict[str, float]], None]:
    """A function that interrupts a fit after the first epoch that ends later; its checkpoint is written by then."""

    def check(epoch: int, _record: dict[str, float]) -> None:
        if time.time() > end:
            raise InterruptedError(f"interrupted after {epoch + 1} epochs")

    return check


def _go_on(_epoch: int, _record: dict[str, float]) -> None:
    pass


def save(file: Path, fitted: "Fitted", graphs: int, test: Sequence[Labelled], facts: Mapping[str, object]) -> str:
    """Write what a fitted network predicts for the test side, with its curve; one line about it."""
    from lab.papers.graph_networks.loop import improvement

    recipe, history = fitted.recipe, fitted.history
    predicted = fitted.predict([row.graph for row in test], str(facts.get("device", default_device())))
    if "power_w" in predicted and "energy_j" not in predicted:
        predicted["energy_j"] = predicted["power_w"] * predicted["latency_ms"] / KILO
    told = {
        **facts, "graphs": graphs, "epochs": len(history), "planned_epochs": recipe.epochs, "batch": recipe.batch,
        "steps": len(history) * -(-graphs // recipe.batch), "improvement_of_last_tenth": improvement(history),
        "validation": fitted.metrics, "recipe": json.loads(recipe.to_json()), "curve": thin(history),
    }  # fmt: skip
    data = io.BytesIO()
    np.savez_compressed(
        data, allow_pickle=False, ids=np.array([row.workload_id for row in test]), facts=np.array(json.dumps(told)),
        **{name: values.astype(np.float32) for name, values in predicted.items()},
    )  # fmt: skip
    write_whole(file, data.getvalue())
    errors = [abs(value / row.truth["latency_ms"] - 1) for row, value in zip(test, predicted["latency_ms"])]
    return (
        f"{len(history)} of {recipe.epochs} epochs in {facts['spent_s']} s, test latency {np.mean(errors):.1%}, "
        f"last tenth {told['improvement_of_last_tenth']:.1%}"
    )


def thin(history: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """At most `_CURVE` epochs of a curve, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(history) - 1, min(len(history), _CURVE)).round().astype(int))
    return [{"epoch": int(i) + 1} | {k: round(v, 5) for k, v in history[i].items()} for i in chosen]


def self_test(rows: Sequence[Labelled]) -> None:
    """Captured steps must learn what plain steps learn; an exit code other than 0 says that they do not."""
    from lab.papers.graph_networks.training import fit

    parts = split_rows(subset(rows, "families"), "random", 0)
    samples = [(row.graph, row.truth) for row in parts[TRAIN][:96]]
    for name in ("dippm", "gat"):
        arm = next(arm for arm in arms("best") if arm.name == name)
        recipe = measured_targets(replace(arm.recipe, epochs=3, dropout=0.0), [truth for _, truth in samples])
        plain, captured = (
            fit(samples, samples, recipe, device=default_device(), captured=how).history[-1]["loss"]
            for how in (False, True)
        )
        say(f"{name}: loss {plain:.4f} by plain steps, {captured:.4f} by captured ones")
        if not abs(captured / plain - 1) < 0.1:  # 16 bits, and another order of sums
            sys.exit(f"captured steps of {name} learn something else")


def captures_work(file: Path) -> bool:
    """Whether a process of its own passes `self_test`: a failed capture can leave a process useless."""
    command = [sys.executable, "-m", __spec__.name, str(file), ".", "--self-test"]
    try:
        return subprocess.run(command, timeout=100, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def collect(out: Path, name: str = "dippm-arms.npz") -> None:
    """All finished arms as one file."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for file in sorted((out / "arms").glob("*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            arrays |= {f"{file.stem}/{name}": stored[name] for name in stored.files}
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(out / name, data.getvalue())


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _file(out: Path, arm: Arm) -> Path:
    return out / "arms" / f"{arm.key}.npz"


def rows() -> Sequence[Labelled]:
    """The set that this process has read."""
    return _rows


def open_set(file: Path) -> None:
    """Read a set once; every fit of this process uses it."""
    _rows.extend(read_set(file))
    gc.freeze()  # every capture collects garbage: a million arrays need not be looked at again


def _wait() -> None:
    """Keep a process busy for a moment, so that the pool starts all of them at once."""
    time.sleep(0.5)


if __name__ == "__main__":
    main()
