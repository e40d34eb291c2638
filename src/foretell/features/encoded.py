"""Features: encodes the rows of units for a neural network: numbers of similar size, flags, and the operator's code.

A decision tree only compares a size with a threshold, so it takes the raw columns. A network needs more help: the
logarithms of sizes, flags for the divisors that kernels care about, how well a size fills tiles, and how full the last
wave of tiles is.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, DTYPES, KINDS, PHASES
from foretell.frozen import dataclass
from foretell.units import MIB

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
CATEGORIES_WIDTH = len(_PRESENT) + sum(_CODED.values())  # the last columns: which sizes there are, and categories
ENCODED_WIDTH = (
    len(PLAIN) + len(_COUNTS) + len(_DIVIDED) * len(_DIVISORS) + len(_TILED) * len(_TILE_SIZES) + 2 * len(_TILES)
    + CATEGORIES_WIDTH
)  # fmt: skip

_PLAIN_AT, _COUNTS_AT, _DIVIDED_AT, _PRESENT_AT = (
    [_AT[name] for name in names] for names in (PLAIN, _COUNTS, _DIVIDED, _PRESENT)
)
_SIZES_AT = [_AT[name] for name in (*_TILED, "log_many")]
_DIVISORS_OF, _TILE_SIZES_OF = (np.array(values, np.float64)[:, None] for values in (_DIVISORS, _TILE_SIZES))
_TILE_HEIGHTS, _TILE_WIDTHS = (np.array(values, np.float64)[:, None] for values in zip(*_TILES, strict=True))

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Encoded:
    """The numbers of each unit, the code of its operator (0 if unknown), and its launches."""

    numbers: Numbers
    operators: NDArray[np.int64]
    launches: Numbers

    def __len__(self) -> int:
        return len(self.operators)


_LARGEST_KEPT = MIB  # of rows
_last: list[tuple[bytes, Encoded]] = []


def encode(features: Numbers) -> Encoded:
    """Encode rows of `foretell.features.COLUMNS` for a network.

    The last rows are kept: several networks are asked about the same ones, one after the other.
    """
    if features.nbytes > _LARGEST_KEPT:
        return _encode(features)
    key = features.tobytes()
    for known, encoded in _last:
        if known == key:
            return encoded
    encoded = _encode(features)
    _last[:] = [(key, encoded)]
    return encoded


def _encode(features: Numbers) -> Encoded:
    columns = features.T.astype(np.float64)  # a row for each column, so that what follows works on whole rows
    count = features.shape[0]
    # logarithms and shares as they are; counts as logarithms, with the sign of an absent −1
    counts = columns[_COUNTS_AT]
    parts = [columns[_PLAIN_AT], np.sign(counts) * np.log2(1.0 + np.abs(counts))]
    # vectorised loads and tensor cores want sizes that are multiples of small powers of two
    divided = np.maximum(columns[_DIVIDED_AT], 0.0)[:, None]
    parts.append(((divided > 0) & (divided % _DIVISORS_OF == 0)).reshape(-1, count))
    # the share of a tile that is useful, for every tile size that libraries have
    sizes = _size(columns[_SIZES_AT])
    tiled = sizes[: len(_TILED), None]
    parts.append((tiled / np.maximum(np.ceil(tiled / _TILE_SIZES_OF) * _TILE_SIZES_OF, 1.0)).reshape(-1, count))
    # waves = tiles / SMs, so the number of SMs follows from the two columns
    sms = _size(columns[_AT["log_tiles"]]) / np.maximum(columns[_AT["waves"]], 1e-6)
    # how full the last wave is: 133 tiles on 132 SMs take as long as 264
    m, n, _, many = sizes
    tiles = np.ceil(m / _TILE_HEIGHTS) * np.ceil(n / _TILE_WIDTHS) * many
    waves = tiles / np.maximum(np.round(sms), 1.0)
    pairs = np.stack([waves / np.maximum(np.ceil(waves), 1.0), np.log2(1.0 + waves)], axis=1)
    parts += [pairs.reshape(-1, count), columns[_PRESENT_AT] != -1.0]
    parts += [columns[_AT[name]] == np.arange(codes)[:, None] for name, codes in _CODED.items()]
    # an unknown operator is −1 in the columns and 0 here; the launches are no longer a logarithm
    return Encoded(
        np.ascontiguousarray(np.concatenate(parts).T, dtype=np.float32),
        np.maximum(columns[_AT["operator"]] + 1, 0).astype(np.int64),
        (np.exp2(columns[_AT["launches"]]) - 1.0).astype(np.float32),
    )


def _size(logarithm: NDArray[np.float64]) -> NDArray[np.float64]:
    """The size behind a column log2(size + 1); 0 if the unit has none."""
    return np.asarray(np.round(np.maximum(np.exp2(logarithm) - 1.0, 0.0)), np.float64)
