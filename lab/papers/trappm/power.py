"""Lab: power by a network of its own: TraPPM's regressor by bound, fitted to every workload whose power was measured.

``python -m lab.papers.trappm.power SET --width 96 --epochs 60 --seeds 3 --members 3``. Few workloads have power, and a
network that learns latency beside it is chosen by its latency, so power is told as well by chance. Here all modes teach
together, power alone chooses the epoch, and members that differ in their first weights are averaged.

With ``--arms FILES`` latency is known to it as well: as measured where it learns, and where it is judged as arms of
`lab.papers.dippm.fits` and `lab.papers.trappm.encoders` tell it, which were fitted to the same split. Their own watts
are averaged with its watts, and watts times latency are energy. Workloads of the grids are told apart from those of the
store, whose power is of other cards (`lab.papers.dippm.sittings`).
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.errors import DataError
from foretell.predictors.unit.fit_network import default_device
from foretell.units import KILO
from lab.papers.dippm.grid import workload_of_row
from lab.papers.dippm.grid_set import GRIDS, measured_rows
from lab.papers.dippm.sets import THESIS_FAMILIES, Labelled, family_of, read_set, split_rows
from lab.papers.graph_networks.arrays import TIME_COLUMNS
from lab.papers.graph_networks.loop import improvement
from lab.papers.graph_networks.recipes import BY_BOUND, Recipe, find_recipe

TIMES = "dippm by bound and power,dippm by bound and power 128 wide,none"
_MOST_NODES = 3_000  # 1 in 300 is larger
Values = NDArray[np.float64]
Told = Mapping[str, Mapping[str, float]]  # what arms say: by target and workload


def recipe(width: int, epochs: int, *, timed: bool = False) -> Recipe:
    """The network: no encoder, and power alone; a ``timed`` one knows the bound and the latency of a workload."""
    trappm = find_recipe("trappm")
    return replace(
        trappm, **BY_BOUND, embedding="none", targets=("power_w",), chosen_by="power_w", batch=32, width=width,
        epochs=epochs, patience=epochs, whole=(*trappm.whole, *(TIME_COLUMNS if timed else ())),
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
) -> dict[str, tuple[int, float, float]]:  # fmt: skip
    """The number of workloads, the mean and the median error, of all and of the papers' families.

    What was not told or not measured is left out.
    """
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
    return {
        name: (int(own.sum()), float(errors[own].mean()), float(np.median(errors[own])))
        for name, own in parts.items() if own.any()
    }  # fmt: skip


def told_by(files: Sequence[Path], names: Collection[str], seed: int) -> dict[str, dict[str, float]]:
    """What arms say of the test side of a split at random: latency and power by workload, geometric means of all."""
    logs: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        with np.load(file, allow_pickle=False) as stored:
            for own in (name.removesuffix("facts") for name in stored.files if name.endswith("/facts")):
                facts = json.loads(str(stored[f"{own}facts"]))
                if facts["arm"] in names and (facts["split"], facts["seed"]) == ("random", seed) and _has_all(facts):
                    for target in {"latency_ms", "power_w"} & {name.removeprefix(own) for name in stored.files}:
                        values = np.log(stored[f"{own}{target}"]).tolist()
                        for workload_id, value in zip(stored[f"{own}ids"].tolist(), values, strict=True):
                            logs[target][workload_id].append(value)
    if not logs:
        raise DataError(f"No arm {' or '.join(names)} of seed {seed} is in {', '.join(map(str, files))}: fit it first.")
    return {target: {name: float(np.exp(np.mean(own))) for name, own in some.items()} for target, some in logs.items()}


def _has_all(facts: Mapping[str, Any]) -> bool:
    """Whether an arm learned from all labels."""
    return " % of the labels" not in facts["subset"] or facts["subset"].endswith(", 100 % of the labels")


def timed(parts: Mapping[str, Sequence[Labelled]], told: Told) -> dict[str, list[Labelled]]:
    """Workloads that know their latency: measured, but on the test side as told; what was not told is not judged."""
    known = {side: [(row, row.truth["latency_ms"]) for row in rows] for side, rows in parts.items()}
    latencies = told["latency_ms"]
    known[TEST] = [(row, latencies[row.workload_id]) for row in parts[TEST] if row.workload_id in latencies]
    return {side: [replace(row, graph=row.graph.with_time(ms)) for row, ms in rows] for side, rows in known.items()}


def with_others(rows: Sequence[Labelled], watts: Values, told: Told) -> Values:
    """The geometric mean with what arms say of the same workloads."""
    others = np.array([told.get("power_w", {}).get(row.workload_id, np.nan) for row in rows])
    return np.where(np.isfinite(others), np.sqrt(watts * others), watts)


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
    parser.add_argument("--arms", type=Path, nargs="+", default=[], help="Files of arms that tell latency and power.")
    parser.add_argument("--times", default=TIMES, help=f"Their arms, separated by commas [{TIMES}].")
    options = parser.parse_args()
    grid = measured_in_grids()
    rows = [row for row in read_set(options.set) if np.isfinite(row.truth["power_w"]) and len(row.graph) <= _MOST_NODES]
    network = recipe(options.width, options.epochs, timed=bool(options.arms))
    for seed in range(options.seeds):
        parts, others = split_rows(rows, "random", seed), {}
        if options.arms:
            others = told_by(options.arms, options.times.split(","), seed)
            parts = timed(parts, others)
        watts, last = told(parts, network, options.members, default_device())
        watts = with_others(parts[TEST], watts, others)
        found = judged(parts[TEST], watts, grid=grid)
        _say(f"seed {seed}: power of {_text(found)}; last tenths {', '.join(f'{100 * value:.1f}' for value in last)} %")
        if others:
            joules = watts * [others["latency_ms"][row.workload_id] / KILO for row in parts[TEST]]
            _say(f"seed {seed}: energy of {_text(judged(parts[TEST], joules, 'energy_j', grid))}")


def _text(found: Mapping[str, tuple[int, float, float]]) -> str:
    return ", ".join(
        f"{name} {100 * mean:.1f} %, median {100 * median:.1f} ({count})"
        for name, (count, mean, median) in found.items()
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
