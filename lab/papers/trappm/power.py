"""Lab: power by a network of its own: TraPPM's regressor by bound, fitted to every workload whose power was measured.

``python -m lab.papers.trappm.power SET --width 96 --epochs 60 --seeds 3 --members 3``. Few workloads have power, and a
network that learns latency beside it is chosen by its latency, so power is told as well by chance. Here all modes teach
together, power alone chooses the epoch, and members that differ in their first weights are averaged.

With ``--arms FILE --times NAME`` its watts times what DIPPM's arm says of latency are energy: both are of the same
split. Workloads of the grids are told apart from those of the store, whose power is of other cards
(`lab.papers.dippm.sittings`).
"""

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.errors import DataError
from foretell.predictors.unit.fit_network import default_device
from foretell.units import KILO
from lab.papers.dippm.grid import workload_of_row
from lab.papers.dippm.grid_set import GRIDS, measured_rows
from lab.papers.dippm.sets import THESIS_FAMILIES, Labelled, family_of, read_set, split_rows
from lab.papers.graph_networks.loop import improvement
from lab.papers.graph_networks.recipes import BY_BOUND, Recipe, find_recipe

_MOST_NODES = 3_000  # 1 in 300 is larger
Values = NDArray[np.float64]


def recipe(width: int, epochs: int) -> Recipe:
    """The network: no encoder, and power alone."""
    return replace(
        find_recipe("trappm"), **BY_BOUND, embedding="none", targets=("power_w",), chosen_by="power_w", batch=32,
        width=width, epochs=epochs, patience=epochs,
    )  # fmt: skip


def told(parts: dict[str, list[Labelled]], network: Recipe, members: int, device: str) -> tuple[Values, list[float]]:
    """The geometric mean of what members say of the test side in watts; and what their last tenths improved."""
    from lab.papers.graph_networks.training import fit

    taught, chosen = ([(row.graph, row.truth) for row in parts[side]] for side in (TRAIN, VALIDATION))
    logs, last = [], []
    for member in range(members):
        fitted = fit(taught, chosen, network, member, device=device, narrow=True)
        logs.append(np.log(fitted.predict([row.graph for row in parts[TEST]], device)["power_w"]))
        last.append(improvement(fitted.history))
    return np.exp(np.mean(logs, axis=0)), last


def judged(
    rows: Sequence[Labelled], told: Values, target: str = "power_w", grid: Collection[str] = ()
) -> dict[str, tuple[int, float]]:  # fmt: skip
    """The number of workloads and the mean error, of all and of the papers' families; what was not told is left out."""
    errors = np.abs(told / np.array([row.truth[target] for row in rows]) - 1)
    of_grid = np.array([row.workload_id in grid for row in rows], bool)
    trained = np.array([row.mode == "training" for row in rows], bool)
    families = np.array([family_of(row.spec, THESIS_FAMILIES) is not None for row in rows], bool)
    parts = {
        "all": np.ones(len(rows), bool), "training steps": trained, "their families": trained & families,
        "inference of the families": ~trained & families,
        "steps of the grid": trained & of_grid, "inference of the grid": ~trained & of_grid,
    }  # fmt: skip
    parts = {name: own & np.isfinite(errors) for name, own in parts.items()}
    return {name: (int(own.sum()), float(errors[own].mean())) for name, own in parts.items() if own.any()}


def times_of(file: Path, arm: str, seed: int) -> dict[str, float]:
    """The latencies in ms that an arm of DIPPM tells of the test side, by workload."""
    with np.load(file, allow_pickle=False) as stored:
        for name in stored.files:
            facts = json.loads(str(stored[name])) if name.endswith("/facts") else {}
            if (facts.get("arm"), facts.get("split"), facts.get("seed")) == (arm, "random", seed):
                own = name.removesuffix("facts")
                return dict(zip(stored[f"{own}ids"].tolist(), stored[f"{own}latency_ms"].tolist(), strict=True))
    raise DataError(f"{file} has no arm {arm!r} of seed {seed}: fit it with python -m lab.papers.dippm.fits.")


def measured_in_grids() -> set[str]:
    """The workloads of the grids whose power was measured."""
    rows = [row for grid in GRIDS.values() if grid.measured for row in measured_rows(grid.measured)]
    return {workload_of_row(row).id for row in rows if "power_w" in row}


def main() -> None:
    """Fit and judge by seed of the split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.grid_set join.")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3, help="Splits [3].")
    parser.add_argument("--members", type=int, default=3, help="Networks that are averaged [3].")
    parser.add_argument("--arms", type=Path, help="The file of python -m lab.papers.dippm.fits, for energy.")
    parser.add_argument("--times", default="dippm by bound and power", help="Its arm that tells latency.")
    options = parser.parse_args()
    grid = measured_in_grids()
    rows = [row for row in read_set(options.set) if np.isfinite(row.truth["power_w"]) and len(row.graph) <= _MOST_NODES]
    for seed in range(options.seeds):
        parts = split_rows(rows, "random", seed)
        watts, last = told(parts, recipe(options.width, options.epochs), options.members, default_device())
        found = judged(parts[TEST], watts, grid=grid)
        _say(f"seed {seed}: power of {_text(found)}; last tenths {', '.join(f'{100 * value:.1f}' for value in last)} %")
        if options.arms:
            times = times_of(options.arms, options.times, seed)
            joules = watts * [times.get(row.workload_id, np.nan) / KILO for row in parts[TEST]]
            _say(f"seed {seed}: energy of {_text(judged(parts[TEST], joules, 'energy_j', grid))}")


def _text(found: Mapping[str, tuple[int, float]]) -> str:
    return ", ".join(f"{name} {100 * error:.1f} % ({count})" for name, (count, error) in found.items())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
