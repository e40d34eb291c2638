"""Predictors: a residual network on units of work; it predicts how much longer than its bound each unit takes.

A member of the ensemble takes the numbers that describe a unit (scaled, with their bins beside them:
`foretell.predictors.unit.bins`) and an embedding of the operator. Pre-normalised residual blocks of two layers follow
(RMS norm, SiLU). There are three outputs: the logarithm of kernel time over bound; the gap between kernels, for each
launch; and, where power was measured, the power of the device while the unit runs. The predictions of several members
of equal shape are averaged.

The time of a unit is bound · exp(output 0) + launches · softplus(output 1). Kernel time and gaps have outputs of their
own because a gap does not grow with the size of a tensor.

The file has arrays only, and numpy runs the network, which starts faster than a session of a runtime. Large matrices
are stored as int8 with one scale a column. `foretell.predictors.unit.fit_network` fits the network.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features.encoded import ENCODED_WIDTH, Encoded
from foretell.frozen import dataclass
from foretell.predictors.arrays import read_arrays
from foretell.predictors.unit.bins import Bins

KERNEL_LIMITS = (-4.0, 6.0)  # of the logarithm of kernel time over bound
CLIP_AT = 6.0  # scaled numbers are clipped to this many standard deviations
_MAX_LOGIT = 30.0
_TINY = 1e-6
LEAST_SPREAD = 0.005  # is added before a logarithm is learned: where members agree, how closely does not matter
_SPREAD = 3  # the output of a distilled network that is the logarithm of its teachers' spread
_SLICE = 4096  # rows at a time, so that the activations of a member fit into a cache
_LARGE = 64  # matrices with at least so many rows and columns are stored as int8

Weights = Mapping[str, NDArray[np.float32]]


def weight_names(blocks: int) -> tuple[str, ...]:
    """The names of a network's arrays; the first axis of each array is the member."""
    inner = [f"{name}{block}" for block in range(blocks) for name in ("scale", "up", "up_bias", "down", "down_bias")]
    return ("embedding", "enter", "enter_code", "enter_bias", *inner, "last_scale", "leave", "leave_bias")


@dataclass(frozen=True)
class UnitPredictions:
    """What networks predict for each unit: log(time / bound), and the power where it was learned.

    ``spread`` is the standard deviation of log(time / bound) over the members: where they differ, little was measured.
    """

    log_ratio: NDArray[np.float64]
    power_w: NDArray[np.float64] | None
    spread: NDArray[np.float64]

    @classmethod
    def mean_of(
        cls, log_ratios: Sequence[NDArray[np.float64]], powers_w: Sequence[NDArray[np.float64]]
    ) -> "UnitPredictions":
        """The mean of some members. Times are averaged in logarithms: their errors are ratios."""
        stacked = np.stack(log_ratios)
        power_w = np.mean(powers_w, axis=0) if len(powers_w) else None
        # one member has no spread
        spread = stacked.std(axis=0, ddof=1) if len(stacked) > 1 else np.zeros(stacked.shape[1])
        return cls(stacked.mean(axis=0), power_w, spread)

    def of(self, rows: NDArray[np.intp]) -> "UnitPredictions":
        """The predictions of some rows."""
        power_w = None if self.power_w is None else self.power_w[rows]
        return UnitPredictions(self.log_ratio[rows], power_w, self.spread[rows])


class UnitNetwork:
    """The members of one fit; ``middle`` and ``spread`` standardise the encoded numbers and their bins.

    ``most_w`` is a power that no unit draws, the upper end of the power output; None where no power was learned.
    """

    def __init__(
        self,
        weights: Weights,
        bins: Bins,
        middle: NDArray[np.float32],
        spread: NDArray[np.float32],
        most_w: float | None = None,
    ) -> None:
        self.weights = weights
        self.bins = bins
        self.middle = middle
        self.spread = spread
        self.most_w = most_w
        self.blocks = sum(name.startswith("up_bias") for name in weights)

    @property
    def members(self) -> int:
        """How many networks are averaged."""
        return len(self.weights["embedding"])

    @property
    def operators(self) -> int:
        """How many codes of operators the embedding has."""
        return int(self.weights["embedding"].shape[1])

    @property
    def is_distilled(self) -> bool:
        """Whether it is one network that learned from several, and says itself how far they are apart."""
        return bool(self.weights["leave"].shape[-1] > _SPREAD)

    def predict(self, units: Encoded, bound_us: NDArray[np.float64]) -> UnitPredictions:
        """The time of every unit over its bound, and its power."""
        log_ratios = np.zeros((self.members, len(units)))
        powers_w = np.zeros((self.members if self.most_w is not None else 0, len(units)))
        spreads = np.zeros(len(units))
        for start in range(0, len(units), _SLICE):
            part = slice(start, start + _SLICE)
            numbers = scaled(self.bins.with_positions(units.numbers[part]), self.middle, self.spread)
            # operators whose code is beyond the embedding share its last row
            codes = np.minimum(units.operators[part], self.operators - 1)
            launches = units.launches[part] / bound_us[part]
            for member in range(self.members):
                outputs = self.forward(member, numbers, codes)
                gap_ratio = np.logaddexp(0.0, outputs[:, 1]) * launches
                log_ratios[member, part] = np.log(np.exp(np.clip(outputs[:, 0], *KERNEL_LIMITS)) + gap_ratio)
                if self.most_w is not None:
                    clipped = np.clip(outputs[:, 2], -_MAX_LOGIT, _MAX_LOGIT)
                    powers_w[member, part] = self.most_w / (1.0 + np.exp(-clipped))
                if self.is_distilled:
                    spreads[part] = np.maximum(np.exp(np.minimum(outputs[:, _SPREAD], 1.0)) - LEAST_SPREAD, 0.0)
        predictions = UnitPredictions.mean_of(list(log_ratios), list(powers_w))
        return replace(predictions, spread=spreads) if self.is_distilled else predictions

    def forward(self, member: int, numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """The outputs of one member for scaled numbers with their bins."""
        leave, bias = self.weights["leave"][member], self.weights["leave_bias"][member]
        return np.asarray(self.hidden(member, numbers, codes) @ leave + bias)

    def hidden(self, member: int, numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.float32]:
        """The last layer of one member, which the outputs are linear in."""
        own = {name: array[member] for name, array in self.weights.items()}
        # exp overflows to infinity for very negative values, and x / infinity is the right limit of SiLU, 0
        with np.errstate(over="ignore"):
            state = numbers @ own["enter"] + own["embedding"][codes] @ own["enter_code"] + own["enter_bias"]
            for block in range(self.blocks):
                inner = _silu(_normed(state) * own[f"scale{block}"] @ own[f"up{block}"] + own[f"up_bias{block}"])
                state = state + inner @ own[f"down{block}"] + own[f"down_bias{block}"]
            return _silu(_normed(state) * own["last_scale"])

    def to_bytes(self) -> bytes:
        """The network as one .npz file: large matrices as int8 with a scale a column, the rest as float16."""
        arrays: dict[str, NDArray[Any]] = {"columns": self.bins.columns, "lows": self.bins.lows}
        arrays |= {"widths": self.bins.widths, "middle": self.middle, "spread": self.spread}
        if self.most_w is not None:
            arrays["most_w"] = np.array(self.most_w, np.float32)
        for name, array in self.weights.items():
            if min(array.shape[1:]) < _LARGE:
                arrays[name] = array.astype(np.float16)
                continue
            # symmetric quantisation: the largest weight of a column becomes ±127
            step = np.maximum(np.abs(array).max(axis=1, keepdims=True), _TINY) / np.float32(127)
            arrays |= {name: np.rint(array / step).astype(np.int8), f"{name}_step": step}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    @classmethod
    def load(cls, data: bytes) -> "UnitNetwork":
        """Read what `to_bytes` wrote."""
        try:
            arrays = read_arrays(data)
            # int8 matrices: multiply by the scale of each column
            for name in arrays:
                step = arrays.get(f"{name}_step")
                arrays[name] = (
                    np.asarray(arrays[name], np.float32)
                    if step is None
                    else np.multiply(arrays[name], step, dtype=np.float32)
                )
            middle, spread = arrays["middle"], arrays["spread"]
            bins = Bins(arrays["columns"].astype(np.int64), arrays["lows"], arrays["widths"])
            most_w = float(arrays["most_w"]) if "most_w" in arrays else None
            blocks = sum(name.startswith("up_bias") for name in arrays)
            weights = {name: arrays[name] for name in weight_names(blocks)}
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a network on units: {error}.") from error
        if len(middle) != ENCODED_WIDTH + len(bins):
            raise ModelError("This network was fitted to other features than today's; fit it again: foretell train.")
        return cls(weights, bins, middle, spread, most_w)


def scaled(
    numbers: NDArray[np.float32], middle: NDArray[np.float32], spread: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Standardised numbers, clipped so that an outlier does not take over."""
    found = np.asarray(numbers - middle, np.float32)
    found /= spread
    return np.clip(found, -CLIP_AT, CLIP_AT, out=found)


def _silu(values: NDArray[Any]) -> NDArray[np.float32]:
    found = np.exp(-values)
    found += 1.0
    return np.asarray(np.divide(values, found, out=found), np.float32)


def _normed(state: NDArray[np.float32]) -> NDArray[np.float32]:
    squares = np.add.reduce(state * state, axis=-1, keepdims=True) / np.float32(state.shape[-1])
    return np.asarray(state / np.sqrt(squares + np.float32(_TINY)))
