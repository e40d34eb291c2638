"""Features: encodes the rows of units for a neural network: numbers of similar size, flags, and the operator's code.

A decision tree only compares a size with a threshold, so it takes the raw columns. A network needs more help: the
logarithms of sizes, flags for the divisors that kernels care about, how well a size fills tiles, and how full the last
wave of tiles is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, DTYPES, KINDS, PHASES

_AT = {name: position for position, name in enumerate(COLUMNS)}
_CODED = {"kind": len(KINDS), "phase": len(PHASES), "dtype": len(DTYPES), "variant": 5}
_UNCHANGED = (
    "tensor_core_share",
    "wave_fill",
    "last_alignment",
    "n_alignment",
    "k_alignment",
    "key_alignment",
    "fused",
    "run_alignment",
    "vectorised",
    "second_stride",
)
PLAIN = tuple(name for name in COLUMNS if name.startswith("log_") or name in _UNCHANGED)
_COUNTS = tuple(name for name in COLUMNS if name not in PLAIN and name != "operator" and name not in _CODED)
_DIVIDED = (
    "channels", "group_inputs", "group_outputs", "head_size", "keys", "queries", "side", "input_last", "output_last",
)  # fmt: skip
_DIVISORS = (4, 8, 16, 32, 64)
_TILED = ("log_m", "log_n", "log_k")
_TILE_SIZES = (8, 16, 32, 64, 128, 256)
_TILES = ((64, 64), (128, 64), (64, 128), (128, 256), (256, 128), (32, 32))
# a unit that has no such size has −1 there; each of these columns gets a flag that says whether it is present
_PRESENT = ("log_second", "log_m", "kernel", "queries", "steps", "log_rows", "window", "log_run", "gradients")
MEASURED_WIDTH = len(PLAIN) + len(_COUNTS)  # the first columns are sizes; those after them are shares and flags
ENCODED_WIDTH = (
    len(PLAIN) + len(_COUNTS) + len(_DIVIDED) * len(_DIVISORS) + len(_TILED) * len(_TILE_SIZES) + 2 * len(_TILES)
    + len(_PRESENT) + sum(_CODED.values())
)  # fmt: skip

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Encoded:
    """The numbers of each unit, the code of its operator (0 if unknown), and its launches."""

    numbers: Numbers
    operators: NDArray[np.int64]
    launches: Numbers

    def __len__(self) -> int:
        return len(self.operators)


def encode(features: Numbers) -> Encoded:
    """Encode rows of `foretell.features.COLUMNS` for a network."""
    columns = {name: features[:, position].astype(np.float64) for name, position in _AT.items()}
    # logarithms and shares as they are; counts as logarithms, with the sign of an absent −1
    parts = [columns[name] for name in PLAIN]
    parts += [np.sign(columns[name]) * np.log2(1.0 + np.abs(columns[name])) for name in _COUNTS]
    # vectorised loads and tensor cores want sizes that are multiples of small powers of two
    for name in _DIVIDED:
        size = np.maximum(columns[name], 0.0)
        parts += [(size > 0) & (size % divisor == 0) for divisor in _DIVISORS]
    sizes = {name: _size(columns[name]) for name in (*_TILED, "log_many")}
    # the share of a tile that is useful, for every tile size that libraries have
    for name in _TILED:
        parts += [sizes[name] / np.maximum(np.ceil(sizes[name] / tile) * tile, 1.0) for tile in _TILE_SIZES]
    # waves = tiles / SMs, so the number of SMs follows from the two columns
    sms = _size(columns["log_tiles"]) / np.maximum(columns["waves"], 1e-6)
    # how full the last wave is: 133 tiles on 132 SMs take as long as 264
    for height, width in _TILES:
        tiles = np.ceil(sizes["log_m"] / height) * np.ceil(sizes["log_n"] / width) * sizes["log_many"]
        waves = tiles / np.maximum(np.round(sms), 1.0)
        parts += [waves / np.maximum(np.ceil(waves), 1.0), np.log2(1.0 + waves)]
    parts += [columns[name] != -1.0 for name in _PRESENT]
    for name, codes in _CODED.items():
        parts += [columns[name] == code for code in range(codes)]
    # an unknown operator is −1 in the columns and 0 here; the launches are no longer a logarithm
    return Encoded(
        np.stack(parts, axis=1).astype(np.float32),
        np.maximum(columns["operator"] + 1, 0).astype(np.int64),
        (np.exp2(columns["launches"]) - 1.0).astype(np.float32),
    )


def _size(logarithm: NDArray[np.float64]) -> NDArray[np.float64]:
    """The size behind a column log2(size + 1); 0 if the unit has none."""
    return np.asarray(np.round(np.maximum(np.exp2(logarithm) - 1.0, 0.0)), np.float64)
