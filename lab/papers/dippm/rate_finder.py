"""Lab: the rate finder of DIPPM's Table 3, run again: ``python -m lab.papers.dippm.rate_finder SET``.

The paper's code calls PyTorch Lightning's finder: a hundred steps whose rate grows from 1e-8 to 1, ten-fold every 12.5
steps; the suggestion is the rate at which the smoothed loss falls most steeply, without the first ten steps and the
last. 2.754e-5, which the paper takes, is the 43rd of these rates.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TRAIN
from lab.papers.dippm.sets import read_set, split_rows, subset
from lab.papers.graph_networks.forward import forward
from lab.papers.graph_networks.recipes import Recipe, find_recipe
from lab.papers.graph_networks.scales import Sample, log_truths, sample_scales
from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations, to_tensors, torch
from lab.papers.graph_networks.training import target_losses
from lab.papers.graph_networks.weights import initial_weights

LOWEST, HIGHEST, STEPS = 1e-8, 1.0, 100
_SMOOTHING, _SKIPPED = 0.98, 10
_DIVERGED = 4.0  # times the best loss: the finder stops
PUBLISHED = 2.754e-5


def rate_of(step: int) -> float:
    """The rate of a step.

    >>> f"{rate_of(43):.3e}"
    '2.754e-05'
    """
    return LOWEST * math.pow(HIGHEST / LOWEST, step / STEPS)


def suggestion(losses: Sequence[float]) -> float:
    """The rate at which a smoothed curve falls most steeply; NaN where it is too short.

    >>> round(math.log10(suggestion([1.0] * 40 + [1.0, 0.9, 0.5, 0.4] + [0.4] * 30)), 1)
    -4.7
    """
    if len(losses) <= _SKIPPED + 2:
        return math.nan
    return rate_of(_SKIPPED + int(np.argmin(np.gradient(np.array(losses[_SKIPPED:-1])))))


def curve(samples: Sequence[Sample], recipe: Recipe, seed: int) -> list[float]:
    """The smoothed loss after each step of the finder, on a CPU."""
    tensors = to_tensors(initial_weights(recipe, seed) | sample_scales(samples, recipe), "cpu")
    graphs = DeviceGraphs.place([graph for graph, _ in samples], recipe, "cpu", merged=True)
    logs = torch.tensor(log_truths(samples, recipe), dtype=torch.float32)
    learned = [tensor for tensor in tensors.values() if tensor.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=LOWEST)
    torch.manual_seed(seed)
    order: NDArray[np.int64] = np.random.default_rng(seed).permutation(len(samples)).astype(np.int64)
    ops, smoothed, losses = TorchOperations(tensors, dropping=True), 0.0, list[float]()
    for step in range(STEPS):
        batch = np.take(order, range(step * recipe.batch, (step + 1) * recipe.batch), mode="wrap")
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.zero_grad(set_to_none=True)
        own = logs[torch.from_numpy(batch)]
        known = torch.isfinite(own)
        loss = target_losses(ops, recipe, forward(ops, recipe, graphs.pick(batch)), own)[known].mean()
        if not torch.isfinite(loss):
            break
        loss.backward()
        optimizer.step()
        smoothed = _SMOOTHING * smoothed + (1 - _SMOOTHING) * float(loss.detach())
        losses.append(smoothed / (1 - _SMOOTHING ** (step + 1)))
        if step > 1 and losses[-1] > _DIVERGED * min(losses):
            break
    return losses


def main() -> None:
    """Print the suggestion for some seeds, as published and at its best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.prepare.")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows = split_rows(subset(read_set(options.set), "families"), "random", 0)[TRAIN]
    samples = [(row.graph, row.truth) for row in rows]
    for title, recipe in (("published", find_recipe("dippm", published=True)), ("best", find_recipe("dippm"))):
        rates = [suggestion(curve(samples, recipe, seed)) for seed in range(options.seeds)]
        sys.stdout.write(f"{title}: {', '.join(f'{rate:.2e}' for rate in rates)} (the paper: {PUBLISHED:.3e})\n")


if __name__ == "__main__":
    main()
