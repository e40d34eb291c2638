"""Predictors: features that decide whether a unit of work gets slower when it has fewer SMs.

A kernel whose blocks fill the device many times over is spread evenly, so it slows down in proportion. A kernel of a
few blocks, or a launch that mostly waits, does not notice missing SMs. So the features are: how long a launch takes,
how many tiles, rows or elements it has, and how close it is to a bound. All sizes are logarithms to base 2.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, KINDS, SCHEMA
from foretell.units import bytes_from_mib

# only for green contexts: there libraries seem to choose kernels as if for the whole device
GREEN_COLUMNS = ("green", "green_matmul")
SLICE_COLUMNS = (
    "log_launch_us", "product", "product_tiles", "product_depth", "product_compute", "grouped", "attention",
    "attention_tiles", "norm_rows", "norm_traffic", "rest_outputs", "rest_traffic", *GREEN_COLUMNS,
)  # fmt: skip
SLICE_SCHEMA = hashlib.sha256("|".join((SCHEMA, *SLICE_COLUMNS)).encode()).hexdigest()[:16]
_AT = {name: position for position, name in enumerate(COLUMNS)}
_NORMS = tuple(KINDS.index(name) for name in ("normalisation", "reduction"))
_TILE, _QUERIES = 64, 128  # rows and columns of a block of a matrix product, and rows of a block of attention

Values = NDArray[np.float64]


def describe_scaling(features: NDArray[np.float32], unit_us: Values, *, green: bool) -> Values:
    """Rows of `SLICE_COLUMNS`, from rows of units and their times on the whole device."""
    column = {name: features[:, position].astype(np.float64) for name, position in _AT.items()}
    log_us, log_launches = np.log2(unit_us), np.log2(np.maximum(launches_of(features), 1.0))
    kind = column["kind"].astype(int)
    product, attention = kind == KINDS.index("contraction"), kind == KINDS.index("attention")
    norm = np.isin(kind, _NORMS)
    rest = ~(product | attention | norm | (kind == KINDS.index("recurrent")))
    convolution = product & (column["kernel"] > 0)
    m, n, k, many = (_size(column[f"log_{name}"]) for name in ("m", "n", "k", "many"))
    traffic = column["log_memory_us"] - log_us
    values = {
        "log_launch_us": log_us - log_launches,
        "product": product,
        "product_tiles": product * np.log2(np.ceil(m / _TILE) * np.ceil(n / _TILE) * many),
        "product_depth": product * np.log2(k),
        "product_compute": product * (column["log_compute_us"] - log_us),
        "grouped": convolution & (column["groups"] > 1),
        "attention": attention,
        "attention_tiles": attention * np.log2(np.ceil(m / _QUERIES) * many),
        "norm_rows": norm * np.maximum(column["log_rows"], 0.0),
        "norm_traffic": norm * traffic,
        "rest_outputs": rest * (column["log_output"] - log_launches),
        "rest_traffic": rest * traffic,
        "green": np.full(len(features), green),
        "green_matmul": green * (product & ~convolution),
    }
    return np.stack([np.asarray(values[name], np.float64) for name in SLICE_COLUMNS], axis=1)


def traffic_shares(features: NDArray[np.float32], unit_us: Values) -> Values:
    """The share of each unit's time that its traffic needs at the peak bandwidth, at most 1."""
    return np.asarray(np.minimum(np.exp2(features[:, _AT["log_memory_us"]].astype(np.float64)) / unit_us, 1.0))


def fits_cache(features: NDArray[np.float32], l2_mib: float) -> NDArray[np.bool_]:
    """Whether all that a run moves fits into a cache of this size."""
    limit = np.log2(bytes_from_mib(l2_mib)) if l2_mib > 0 else -np.inf
    return np.asarray(features[:, _AT["log_moved_in_all"]] <= limit)


def compute_shares(features: NDArray[np.float32], unit_us: Values) -> Values:
    """The share of each unit's time that its arithmetic needs at the peak rate, at most 1."""
    return np.asarray(np.minimum(np.exp2(features[:, _AT["log_compute_us"]].astype(np.float64)) / unit_us, 1.0))


def launches_of(features: NDArray[np.float32]) -> Values:
    """How many kernels each unit launches."""
    return np.asarray(np.exp2(features[:, _AT["launches"]].astype(np.float64)) - 1.0)


def _size(logarithm: Values) -> Values:
    """The size that a logarithm stands for; 1 where there is none."""
    return np.asarray(np.maximum(np.round(np.exp2(np.maximum(logarithm, 0.0)) - 1.0), 1.0))
