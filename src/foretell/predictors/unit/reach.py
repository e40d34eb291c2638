"""Predictors: the reach of the measurements: which operators were measured, in which precisions, and up to which sizes.

Idea. A network on units interpolates well and extrapolates badly. So the fit keeps, for each operator, phase, dtype and
rank of its input, the smallest and the largest value of each size that was measured. A unit is new where there is no
such entry, or where a size lies beyond its range by more than half an octave (a factor of 1.4). How far it is beyond,
in octaves, widens the interval, and the warning names the operators and the sizes that are new.

The two half precisions stand for each other: an operator that was measured in bf16 alone is not new in fp16.

Limits: ranges are kept one size at a time. A combination of sizes that were measured only apart counts as measured.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features.units import COLUMNS, DTYPES, KINDS
from foretell.frozen import dataclass
from foretell.predictors.arrays import read_arrays

_AT = {name: position for position, name in enumerate(COLUMNS)}
# the sizes that are compared, as a reader knows them; those that are no logarithms yet become some
SIZES: Mapping[str, str] = MappingProxyType(
    {
        "log_input": "elements of its input", "log_output": "elements of its result",
        "log_second": "elements of its second operand", "log_m": "rows (M)", "log_n": "columns (N)",
        "log_k": "inner size (K)", "log_many": "products in a batch", "kernel": "window", "groups": "groups",
        "dilation": "dilation", "steps": "time steps", "head_size": "head size", "log_rows": "rows",
        "log_row": "elements in a row", "window": "window of its pool",
    }
)  # fmt: skip
_SIZE_COLUMNS = [_AT[name] for name in SIZES]
_IS_COUNT = np.array([not name.startswith("log_") for name in SIZES])
# kernels for images and for volumes differ: the ranges of these kinds are kept by rank
_IS_BY_RANK = np.array([kind in ("contraction", "normalisation", "pooling") for kind in KINDS])
_MARGIN = 0.5  # octaves beyond a range that still count as measured
_UNSEEN = 8.0  # octaves that an operator counts which was never measured in this phase and dtype
_MOST = 8.0
_DTYPE = 2  # the place of the dtype in a key
_OTHER_HALF = {DTYPES.index("fp16"): DTYPES.index("bf16"), DTYPES.index("bf16"): DTYPES.index("fp16")}

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Reach:
    """The range of every size by key: operator, phase, dtype and rank, one row each."""

    keys: NDArray[np.int16]
    lows: NDArray[np.float32]
    highs: NDArray[np.float32]

    @classmethod
    def of(cls, features: Rows) -> "Reach":
        """The reach of the units that a model learns from."""
        keys, member = np.unique(_keys(features), axis=0, return_inverse=True)
        sizes = _sizes(features)
        lows = np.full((len(keys), sizes.shape[1]), np.inf, np.float32)
        highs = np.full_like(lows, -np.inf)
        np.minimum.at(lows, member.ravel(), sizes)
        np.maximum.at(highs, member.ravel(), sizes)
        return cls(keys, lows, highs)

    def beyond(self, features: Rows) -> NDArray[np.float64]:
        """How many octaves each unit lies beyond what was measured; 0 within."""
        return np.asarray(self._excess(features).max(axis=1), np.float64)

    def describe(self, row: Rows) -> str:
        """What is new about one unit, as a part of a sentence; empty where nothing is.

        It names the size that is farthest beyond its range.
        """
        (key,) = self._found(row[None])
        if key < 0:
            return self._unseen(row)
        excess = self._excess(row[None])[0]
        size = int(np.argmax(excess))
        if not excess[size]:
            return ""
        value = float(_sizes(row[None])[0, size])
        is_above = value > self.highs[key, size]
        limit = self.highs[key, size] if is_above else self.lows[key, size]
        name = list(SIZES.values())[size]
        return f"{name} {_count(value)}, measured {'up to' if is_above else 'from'} {_count(float(limit))}"

    def _unseen(self, row: Rows) -> str:
        """What is new about a unit whose key was never measured: its dtype, its axes, or all of it."""
        operator, phase, dtype, rank = _keys(row[None])[0].tolist()
        known = {tuple(key) for key in self.keys.tolist() if key[:2] == [operator, phase]}
        if dtype >= 0 and any(other[3] == rank for other in known):
            return f"never measured in {DTYPES[dtype]}"
        if any(other[2] == dtype for other in known):
            return f"never measured with {rank} axes"
        return "never measured"

    def _found(self, features: Rows) -> NDArray[np.intp]:
        """The row of each unit's key, or that of the other half precision; −1 where it has neither."""
        positions = self._positions
        keys = _keys(features).tolist()
        found = [positions.get(tuple(key), -1) for key in keys]
        return np.array(
            [at if at >= 0 else positions.get(_in_other_half(key), -1) for at, key in zip(found, keys, strict=True)],
            np.intp,
        )

    @cached_property
    def _positions(self) -> dict[tuple[int, ...], int]:
        return {tuple(key): position for position, key in enumerate(self.keys.tolist())}

    def _excess(self, features: Rows) -> NDArray[np.float32]:
        """By unit and size the octaves beyond the range, with the margin taken off."""
        found, sizes = self._found(features), _sizes(features)
        if not len(self.keys):
            return np.full(sizes.shape, _UNSEEN, np.float32)
        excess = np.maximum(self.lows[found] - sizes, sizes - self.highs[found]) - np.float32(_MARGIN)
        return np.where(found[:, None] < 0, np.float32(_UNSEEN), np.clip(excess, 0.0, _MOST))

    def to_bytes(self) -> bytes:
        """The reach as one .npz file."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, keys=self.keys, lows=self.lows, highs=self.highs)
        return buffer.getvalue()

    @classmethod
    def load(cls, data: bytes) -> "Reach":
        """Read what `to_bytes` wrote."""
        try:
            arrays = read_arrays(data)
            return cls(arrays["keys"], arrays["lows"], arrays["highs"])
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a reach of measurements: {error}.") from error


def _keys(features: Rows) -> NDArray[np.int16]:
    columns = [features[:, _AT[name]] for name in ("operator", "phase", "dtype", "input_rank")]
    columns[3] = np.where(_IS_BY_RANK[features[:, _AT["kind"]].astype(np.intp)], columns[3], 0)
    return np.stack(columns, axis=1).astype(np.int16)


def _in_other_half(key: list[int]) -> tuple[int, ...]:
    """The key in the other half precision; the same key where the dtype is no half precision."""
    return (*key[:_DTYPE], _OTHER_HALF.get(key[_DTYPE], key[_DTYPE]), *key[_DTYPE + 1 :])


def _sizes(features: Rows) -> NDArray[np.float32]:
    """The sizes as logarithms; an absent one is −1 and stays it."""
    sizes = features[:, _SIZE_COLUMNS]
    logarithms = np.log2(1.0 + np.maximum(sizes, 0.0))
    return np.where((sizes >= 0) & _IS_COUNT, logarithms, sizes).astype(np.float32)


def _count(logarithm: float) -> str:
    return f"{max(round(2.0**logarithm - 1.0), 0):,}"
