"""Lab: the weights of graph networks: their names, shapes and initial values."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.arrays import SHARES
from lab.papers.graph_networks.forward import ENCODER
from lab.papers.graph_networks.recipes import NODE_WIDTHS, Recipe

Weights = dict[str, NDArray[np.float32]]
_FIXED = ("logged", "shift", "scale", "mean", "variance")


def is_learned(name: str) -> bool:
    """Whether a weight is changed by gradients."""
    return name.rpartition(".")[2] not in _FIXED


@dataclass(frozen=True)
class _Drawing:
    """Initial weights: uniform in ±1/√fan-in, and scales that change nothing.

    Biases are 0: rows of length 1 have entries of about 1/√width, and a random bias of that size would dominate them.
    """

    draw: np.random.Generator
    weights: Weights

    def dense(self, name: str, in_width: int, out_width: int, bias: bool = True) -> None:
        reach = 1 / math.sqrt(max(in_width, 1))
        self.weights[f"{name}.weight"] = self.draw.uniform(-reach, reach, (in_width, out_width)).astype(np.float32)
        if bias:
            self.weights[f"{name}.bias"] = np.zeros(out_width, np.float32)

    def norm(self, name: str, width: int) -> None:
        self.weights[f"{name}.gain"] = np.ones(width, np.float32)
        self.weights[f"{name}.bias"] = np.zeros(width, np.float32)

    def identity(self, name: str, width: int) -> None:
        for constant in ("logged", "shift"):
            self.weights[f"{name}.{constant}"] = np.zeros(width, np.float32)
        self.weights[f"{name}.scale"] = np.ones(width, np.float32)


def initial_weights(recipe: Recipe, seed: int) -> Weights:
    """The weights of a network before training, without those of an encoder."""
    drawn = _Drawing(np.random.default_rng((seed, 1)), {})
    width, pooled = NODE_WIDTHS[recipe.nodes], 0
    if recipe.block != "none":
        drawn.identity("nodes", width)
        for block in range(recipe.blocks):
            for layer in range(recipe.layers):
                _draw_layer(drawn, recipe, f"block.{block}.{layer}", width)
                width = pooled = recipe.width
        drawn.weights["readout.scale"] = np.ones(1, np.float32)
        pooled *= 1 + SHARES if recipe.readout == "bound" else 1
    if recipe.block == "brp":
        drawn.dense("global", 1, recipe.width, bias=False)
    if recipe.embedding != "none":
        pooled += recipe.encoder_widths[-1]
        drawn.identity("embedding", recipe.encoder_widths[-1])
    width = pooled + len(recipe.columns)
    drawn.identity("whole", len(recipe.columns))
    for number in range(recipe.dense):
        drawn.dense(f"dense.{number}", width, recipe.width)
        width = recipe.width
    drawn.dense("out", width, len(recipe.targets))
    drawn.weights["targets.scale"] = np.ones(len(recipe.targets), np.float32)
    drawn.weights["targets.shift"] = np.zeros(len(recipe.targets), np.float32)
    return drawn.weights


def _draw_layer(drawn: _Drawing, recipe: Recipe, name: str, width: int) -> None:
    # in GIN the second layer of its MLP has this name; the first has its own
    drawn.dense(name, recipe.width if recipe.block == "gin" else width, recipe.width)
    if recipe.block == "sage":
        drawn.dense(f"{name}.own", width, recipe.width, bias=False)
    elif recipe.block == "gin":
        drawn.dense(f"{name}.first", width, recipe.width)
    elif recipe.block == "gat":
        drawn.dense(f"{name}.sent", recipe.width, recipe.heads, bias=False)
        drawn.dense(f"{name}.heard", recipe.width, recipe.heads, bias=False)
    elif recipe.block == "brp":
        drawn.norm(f"{name}.norm", recipe.width)


def initial_encoder(recipe: Recipe, seed: int) -> Weights:
    """The weights of TraPPM's encoder before training."""
    drawn = _Drawing(np.random.default_rng((seed, 2)), {})
    width = NODE_WIDTHS[recipe.nodes]
    drawn.identity(f"{ENCODER}.nodes", width)
    for number, out_width in enumerate(recipe.encoder_widths):
        name = f"{ENCODER}.{number}"
        drawn.dense(name, width, out_width)
        drawn.dense(f"{name}.own", width, out_width, bias=False)
        drawn.norm(f"{name}.norm", out_width)
        drawn.weights[f"{name}.norm.mean"] = np.zeros(out_width, np.float32)
        drawn.weights[f"{name}.norm.variance"] = np.ones(out_width, np.float32)
        width = out_width
    return drawn.weights
