"""Predictors: a network that gives each class of kernel a probability for a unit of work.

It is a residual network as in `foretell.predictors.unit.network`, with one output a class. A class with a tile gets an
extra score: a description of how the tile would cover the unit (`foretell.predictors.kernels.inputs.describe_tiles`),
weighted by what the network computes from the unit. This follows the heuristics of the libraries, which rank tiles by
such sums, and it generalises to sizes that were not traced. Classes that were never seen with a unit of this kind and
phase have the probability 0. Members are averaged.

Numpy runs the network (`foretell.predictors.kernels.fit` fits it). Limit: a class that no trace of the device has is
never predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.kernels.inputs import KernelInputs, describe_tiles

CLIP_AT = 6.0  # scaled numbers are clipped to this many standard deviations
_TINY = 1e-6
_SLICE = 1024  # rows at a time: their descriptions of all tiles are in memory together

Values = NDArray[np.float32]


def weight_names(blocks: int) -> tuple[str, ...]:
    """The names of a network's arrays; the first axis of each array is the member."""
    inner = [f"{name}{block}" for block in range(blocks) for name in ("scale", "up", "up_bias", "down", "down_bias")]
    ends = ("last_scale", "leave", "leave_bias", "weigh", "weigh_bias")
    return ("embedding", "enter", "enter_code", "enter_bias", *inner, *ends)


@dataclass(frozen=True)
class KernelNetwork:
    """The members of one fit.

    ``classes`` are the numbers of the classes that it predicts and ``tiles`` their heights and widths (0 where a class
    has none). ``allowed`` says for each group of units which classes are possible. ``sms`` is the number of SMs of the
    device.
    """

    weights: Mapping[str, Values]
    middle: Values
    spread: Values
    classes: NDArray[np.int64]
    tiles: Values
    allowed: NDArray[np.bool_]
    sms: int

    @property
    def blocks(self) -> int:
        """How many blocks of two layers there are."""
        return sum(name.startswith("up_bias") for name in self.weights)

    def probabilities(self, units: KernelInputs) -> Values:
        """The probability of each of ``classes`` for each unit."""
        return np.concatenate([self._probabilities(part) for part in _slices(units)])

    def _probabilities(self, units: KernelInputs) -> Values:
        numbers = np.clip((units.numbers - self.middle) / self.spread, -CLIP_AT, CLIP_AT)
        codes = np.minimum(units.operators, self.weights["embedding"].shape[1] - 1)
        # many classes share a tile: each distinct tile is described once
        shapes, of_class = np.unique(self.tiles, axis=0, return_inverse=True)
        rows = np.flatnonzero(units.is_product) if shapes.any() else np.zeros(0, np.intp)
        covered = describe_tiles(units.of(rows), shapes, self.sms)
        members, total = len(self.weights["embedding"]), np.zeros((len(units), len(self.classes)), np.float32)
        for member in range(members):
            own = {name: array[member] for name, array in self.weights.items()}
            state = numbers @ own["enter"] + own["embedding"][codes] @ own["enter_code"] + own["enter_bias"]
            for block in range(self.blocks):
                inner = _silu(_normed(state) * own[f"scale{block}"] @ own[f"up{block}"] + own[f"up_bias{block}"])
                state = state + inner @ own[f"down{block}"] + own[f"down_bias{block}"]
            last = _silu(_normed(state) * own["last_scale"])
            scores = last @ own["leave"] + own["leave_bias"]
            if len(rows):
                tile_scores = np.einsum("utw,uw->ut", covered, last[rows] @ own["weigh"] + own["weigh_bias"])
                scores[rows] += tile_scores[:, of_class.ravel()]
            # members are averaged as probabilities, not as scores
            total += _softmax(np.where(self.allowed[units.groups], scores, -np.inf)) / members
        return total


def _slices(units: KernelInputs) -> Iterator[KernelInputs]:
    for start in range(0, max(len(units), 1), _SLICE):
        yield units.of(slice(start, start + _SLICE))


def _softmax(scores: Values) -> Values:
    if not len(scores):
        return scores
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float32)


def _silu(values: Values) -> Values:
    with np.errstate(over="ignore"):
        return np.asarray(values / (1.0 + np.exp(-values)), np.float32)


def _normed(state: Values) -> Values:
    return np.asarray(state / np.sqrt((state * state).mean(axis=-1, keepdims=True) + np.float32(_TINY)))
