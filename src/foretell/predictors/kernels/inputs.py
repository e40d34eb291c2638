"""Predictors: the inputs of a classifier of kernels, and how a tile would cover the product that a unit is.

Libraries choose a kernel by sizes, alignments and types, before anything runs. So columns about caches are set to 0,
and divisibility by powers of two is added. A product of matrices has its columns along the width of a tile. A
convolution runs as one product for each image with the pixels of the result there, unless the channels of its image are
innermost (channels last); then it is one product over all images.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import ENCODED_WIDTH, encode
from foretell.features.layouts import LAYOUT_COLUMNS
from foretell.features.reuse import REUSE_COLUMNS
from foretell.features.units import COLUMNS, KINDS, PHASES

_AT = {name: position for position, name in enumerate(COLUMNS)}
_DIVISORS = (2, 4, 8, 16, 32, 64, 128, 256)
_PIXEL_DIVISORS, _PIXEL_TILES = (2, 4, 8), (64, 128, 192, 256)
_TILE = 128
GROUPS = len(KINDS) * len(PHASES)
INPUT_WIDTH = (
    ENCODED_WIDTH + 7 + len(_PIXEL_DIVISORS) + len(_PIXEL_TILES) + 3 * len(_DIVISORS) + len(LAYOUT_COLUMNS) + 2
)
TILE_WIDTH = 6
_MAX_LOG_RATIO = 8.0  # limit of log2(elements that the tiles compute / elements of the result)

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class KernelInputs:
    """The numbers of each unit, the code of its operator, and the group that its kind and phase form.

    For a product, ``along`` and ``across`` are the sizes that the two sides of a tile cover, and ``many`` is the number
    of products. For other units ``is_product`` is false.
    """

    numbers: Numbers
    operators: NDArray[np.int64]
    groups: NDArray[np.int64]
    is_product: NDArray[np.bool_]
    along: Numbers
    across: Numbers
    many: Numbers

    def __len__(self) -> int:
        return len(self.operators)

    def of(self, rows: Any) -> "KernelInputs":
        """Some of the units."""
        return KernelInputs(*(values[rows] for values in vars(self).values()))


def kernel_inputs(features: Numbers, layouts: Numbers, training: NDArray[np.bool_] | bool) -> KernelInputs:
    """Inputs from rows of `foretell.features.COLUMNS` and of `LAYOUT_COLUMNS`.

    ``training`` says for each row, or for all, whether the model is being trained.
    """
    without_reuse = features.copy()
    without_reuse[:, [_AT[name] for name in REUSE_COLUMNS]] = 0.0
    encoded = encode(without_reuse)
    columns = {name: features[:, position].astype(np.float64) for name, position in _AT.items()}
    m, n, k, many = (_size(columns[name]) for name in ("log_m", "log_n", "log_k", "log_many"))
    images = np.maximum(columns["batch"], 1.0)
    # `foretell.features.shapes` stores log2(1 + stride): a stride of 1 is 1.0
    # with channels last the images of a batch are one tall product; otherwise there is one product for each image
    by_image = (columns["kernel"] > 0) & (columns["innermost_stride"] == 1.0) & (m > images)
    pixels, products = np.where(by_image, m / images, m), np.where(by_image, many * images, many)
    parts = [_log(pixels), _log(products), np.log2(1.0 + products * pixels * n / _TILE**2), m == 1]
    parts += [_log(m * many), _log(m * n * many), _log(n) - _log(m)]
    parts += [pixels % divisor == 0 for divisor in _PIXEL_DIVISORS]
    parts += [pixels / np.maximum(np.ceil(pixels / tile) * tile, 1.0) for tile in _PIXEL_TILES]
    parts += [(size > 0) & (size % divisor == 0) for size in (m, n, k) for divisor in _DIVISORS]
    parts += [by_image, *layouts.T]
    parts.append(np.broadcast_to(np.asarray(training, bool), len(features)))
    kind, phase = columns["kind"].astype(np.int64), columns["phase"].astype(np.int64)
    return KernelInputs(
        np.concatenate([encoded.numbers, np.stack(parts, axis=1).astype(np.float32)], axis=1),
        encoded.operators,
        kind * len(PHASES) + phase,
        (columns["log_m"] != -1.0) & (many > 0),
        np.where(by_image, pixels, n).astype(np.float32),
        np.where(by_image, n, pixels).astype(np.float32),
        products.astype(np.float32),
    )


def describe_tiles(units: KernelInputs, tiles: Numbers, sms: int) -> Numbers:
    """How each tile (height, width) would cover each unit: (units, tiles, `TILE_WIDTH`); 0 for what is no product.

    The columns: waves of tiles over the SMs, how full the last wave is, how much of each side of the tiles is used,
    elements computed over elements needed, and whether one wave is enough. Libraries weigh the same quantities when
    they choose a tile.
    """
    height, width = np.maximum(tiles, 1.0).T
    along, across = np.maximum(units.along, 1.0)[:, None], np.maximum(units.across, 1.0)[:, None]
    covered_height, covered_width = np.ceil(along / height), np.ceil(across / width)
    waves = covered_height * covered_width * (units.many / sms)[:, None]
    full_waves = np.maximum(np.ceil(waves), 1.0)
    log_needed = np.log2(along * across * np.maximum(units.many, 1.0)[:, None])
    # every wave occupies all SMs for a whole tile, also where it is not full
    over = np.clip(np.log2(full_waves) + np.log2(height * width * sms) - log_needed, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    covered_height *= height
    covered_width *= width
    columns = (
        np.log2(1.0 + waves) / 4,
        waves / full_waves,
        along / covered_height,
        across / covered_width,
        over / 4,
        waves <= 1.0,
    )
    applies = units.is_product[:, None] & (tiles[:, 0] > 0)
    return np.stack(columns, axis=-1).astype(np.float32) * applies[..., None].astype(np.float32)


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.log2(np.maximum(values, 1.0)))


def _size(logarithm: NDArray[np.float64]) -> NDArray[np.float64]:
    """The size that a logarithm stands for; 0 where there is none."""
    return np.asarray(np.round(np.maximum(np.exp2(logarithm) - 1.0, 0.0)))
