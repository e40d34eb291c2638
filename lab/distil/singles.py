"""Lab: distil: single operators of random sizes, which no model has, for a student to be asked about.

Public tables of other GPUs time single products and single attentions (`lab.transfer.tables`). A student that was asked
about units of networks alone is farther from its teachers there. Sizes are drawn evenly over the octaves, not from the
tables, so that the tables still judge. Half of them are multiples of 64, which choose other kernels.
"""

import math
import random
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.records import Target, Workload
from lab.distil.rows import DTYPES, SINGLE, Rows, distinct
from lab.transfer.tables import attention, batched_product, convolution, elementwise, norm, product, softmax

_ELEMENTWISE = {"Add": 2, "Mul": 2, "Div": 2, "Relu": 1, "Gelu": 1, "Tanh": 1}
_LONGEST_US = 200_000.0  # of the bound
_HEAD_SIZES = (64, 80, 96, 128, 192, 256)
Draw = random.Random


def size(draw: Draw, least: int, most: int) -> int:
    """A size between two, evenly over the octaves."""
    value = round(least * math.pow(most / least, draw.random()))
    return -(-value // 64) * 64 if value >= 64 and draw.random() < 0.5 else value


def _product(draw: Draw, dtype: str) -> Graph:
    rows, inner, columns = size(draw, 1, 65_536), size(draw, 16, 65_536), size(draw, 16, 131_072)
    return product(rows, inner, columns, dtype, bias=draw.random() < 0.5)


def _batched(draw: Draw, dtype: str) -> Graph:
    return batched_product(
        size(draw, 1, 2_048), size(draw, 1, 4_096), size(draw, 8, 8_192), size(draw, 1, 8_192), dtype
    )


def _convolution(draw: Draw, dtype: str) -> Graph:
    return convolution(size(draw, 1, 256), size(draw, 1, 2_048), size(draw, 8, 2_048), size(draw, 4, 256), dtype)


def _attention(draw: Draw, dtype: str) -> Graph:
    groups = size(draw, 1, 32)
    heads = groups * draw.choice((1, 1, 2, 4, 8))
    length = size(draw, 1, 32_768)
    queries = 1 if draw.random() < 0.5 else length
    return attention(size(draw, 1, 512), heads, groups, queries, length, draw.choice(_HEAD_SIZES), dtype)


def _on_elements(draw: Draw, dtype: str) -> Graph:
    name = draw.choice(sorted(_ELEMENTWISE))
    return elementwise(name, _ELEMENTWISE[name], (size(draw, 1, 65_536), size(draw, 1, 65_536)), dtype)


def _softmax(draw: Draw, dtype: str) -> Graph:
    return softmax(size(draw, 1, 65_536), size(draw, 8, 65_536), dtype)


def _norm(draw: Draw, dtype: str) -> Graph:
    return norm(size(draw, 1, 65_536), size(draw, 8, 65_536), dtype)


KINDS: Mapping[Callable[[Draw, str], Graph], float] = {
    _product: 0.4, _batched: 0.15, _convolution: 0.1, _attention: 0.2, _on_elements: 0.07, _softmax: 0.04, _norm: 0.04,
}  # fmt: skip


def single_operators(device: str, count: int, seed: int = 0) -> Rows:
    """The units of so many single operators that the device could run in a fifth of a second."""
    draw, target = random.Random(seed), Target(find_device(device))
    features, bound_us = list[NDArray[np.float32]](), list[NDArray[np.float64]]()
    while len(features) < count:
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        dtype = draw.choice(DTYPES)
        try:
            units = DistinctUnits.of(extract_units(Workload(kind(draw, dtype), target, dtype)))
        except ForetellError:
            continue  # not every size can be run
        if len(units) and units.bound_us.max() < _LONGEST_US:
            features.append(units.features)
            bound_us.append(units.bound_us)
    every, bounds = np.concatenate(features), np.concatenate(bound_us)
    kept = distinct(every)
    nobody = np.zeros(len(kept), np.int64)
    return Rows(every[kept], bounds[kept], nobody, nobody.astype(bool), np.array([SINGLE]))
