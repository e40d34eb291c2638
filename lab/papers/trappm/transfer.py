"""Lab: TraPPM's transfer to another device (Table 5.5): ``lab.papers.trappm.transfer SET CPU-SET OUT ENCODER``.

The thesis starts the network of a V100 from that of an A100, and halves the errors. Here the second device is one core
of a CPU, and the networks are those of timm and torchvision in inference. Arms: the regressor of the H200 trained on
(*transferred*), and regressors from the start with the encoder pre-trained (frozen), random, or none. All have equal
numbers of epochs and one split; errors are of latency, on networks that taught neither regressor.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, architecture_of
from lab.papers.dippm.sets import Labelled, read_set, split_rows, subset
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.trappm.encoders import Plan, read_encoder

ARMS = ("transferred", "pre-trained", "random", "none")


def judge(
    first: Sequence[Labelled], second: Sequence[Labelled], recipe: Recipe, out: Path, encoder: str, seed: int
) -> dict[str, tuple[float, float]]:
    """Mean error and root mean square (ms) of each arm on the test side of the second device's split."""
    from lab.papers.graph_networks.training import fit
    from lab.papers.trappm.pretraining import random_encoder

    parts = split_rows(second, "random", seed)
    samples = {side: [(row.graph, row.truth) for row in parts[side]] for side in (TRAIN, VALIDATION)}
    learned = read_encoder(out, encoder)
    drawn = random_encoder([row.graph for row in parts[TRAIN]], replace(recipe, last_relu=False), seed, "cpu")
    judged = {architecture_of(row.spec) for row in parts[TEST]}
    taught = [(row.graph, row.truth) for row in first if architecture_of(row.spec) not in judged]
    cut = len(taught) // 8
    source = fit(taught[cut:], taught[:cut], recipe, seed, encoder=learned)
    truth = np.array([row.truth["latency_ms"] for row in parts[TEST]])
    errors = {}
    for arm in ARMS:
        own = replace(recipe, embedding="zeros" if arm == "none" else "frozen")
        fitted = fit(
            samples[TRAIN], samples[VALIDATION], own, seed, start=source if arm == "transferred" else None,
            encoder={"pre-trained": learned, "random": drawn}.get(arm),
        )  # fmt: skip
        off = fitted.predict([row.graph for row in parts[TEST]])["latency_ms"] - truth
        errors[arm] = (float(np.mean(np.abs(off) / truth)), float(np.sqrt(np.mean(off**2))))
    return errors


def main() -> None:
    """Print the errors of all arms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="Of the H200: python -m lab.papers.dippm.prepare FILE.")
    parser.add_argument("cpu_set", type=Path, help="The same with --store data-cpu --device cpu.")
    parser.add_argument("out", type=Path, help="The folder of python -m lab.papers.trappm.encoders.")
    parser.add_argument("encoder", help="The name of an encoder, such as linear-0-0.")
    parser.add_argument("--width", type=int, help="Of narrow regressors.")
    parser.add_argument("--encoder-width", type=int, help="Of a narrow encoder.")
    parser.add_argument("--by-bound", action="store_true", help="The encoder reads nodes that know their bound.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    recipe = Plan(options.width, options.encoder_width, by_bound=options.by_bound).recipe()
    recipe = replace(recipe, targets=("latency_ms",), batch=16, epochs=options.epochs, patience=options.epochs)
    first, second = subset(read_set(options.set), "families"), subset(read_set(options.cpu_set), "vision")
    sys.stdout.write(f"{len(first)} workloads of the H200, {len(second)} of the CPU\n")
    found = [judge(first, second, recipe, options.out, options.encoder, seed) for seed in range(options.seeds)]
    for arm in ARMS:
        error, root = np.mean([errors[arm] for errors in found], axis=0)
        spread = f" ± {100 * np.std([errors[arm][0] for errors in found], ddof=1):.1f}" if len(found) > 1 else ""
        sys.stdout.write(f"{arm}: {100 * error:.1f}{spread} %, RMSE {root:.3g} ms\n")


if __name__ == "__main__":
    main()
