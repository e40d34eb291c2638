"""Lab: power by a network of its own: TraPPM's regressor by bound, fitted to every workload whose power was measured.

``python -m lab.papers.trappm.power SET --width 96 --epochs 60 --seeds 3 --members 3``. Few workloads have power, and a
network that learns latency beside it is chosen by its latency, so power is told as well by chance. Here all modes teach
together, power alone chooses the epoch, and members that differ in their first weights are averaged.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.predictors.unit.fit_network import default_device
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


def judged(rows: Sequence[Labelled], watts: Values) -> dict[str, tuple[int, float]]:
    """The number of workloads and the mean error, of all and of the papers' families."""
    errors = np.abs(watts / np.array([row.truth["power_w"] for row in rows]) - 1)
    trained = np.array([row.mode == "training" for row in rows], bool)
    families = np.array([family_of(row.spec, THESIS_FAMILIES) is not None for row in rows], bool)
    parts = {
        "all": np.ones(len(rows), bool), "training steps": trained, "their families": trained & families,
        "inference of the families": ~trained & families,
    }  # fmt: skip
    return {name: (int(own.sum()), float(errors[own].mean())) for name, own in parts.items() if own.any()}


def main() -> None:
    """Fit and judge by seed of the split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.grid_set join.")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3, help="Splits [3].")
    parser.add_argument("--members", type=int, default=3, help="Networks that are averaged [3].")
    options = parser.parse_args()
    rows = [row for row in read_set(options.set) if np.isfinite(row.truth["power_w"]) and len(row.graph) <= _MOST_NODES]
    for seed in range(options.seeds):
        parts = split_rows(rows, "random", seed)
        watts, last = told(parts, recipe(options.width, options.epochs), options.members, default_device())
        found = judged(parts[TEST], watts)
        text = ", ".join(f"{name} {100 * error:.1f} % ({count})" for name, (count, error) in found.items())
        sys.stdout.write(f"seed {seed}: {text}; last tenths {', '.join(f'{100 * value:.1f}' for value in last)} %\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
