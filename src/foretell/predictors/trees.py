"""Predictors: an ensemble of regression trees as arrays, walked with numpy. `foretell.predictors.boosting` fits them.

All rows of a block walk all trees at the same time, one level a step. A runtime's session for such trees takes longer
to make than most predictions take, and for ten thousand rows it is hardly faster (``benchmarks/trees.py``).
"""

import io
import zipfile
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError

_BLOCK = 128  # rows: what a step touches then stays in the cache


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees; a child that is a leaf is stored as −1 − its number, and children follow their parents.

    A node tests ``value <= bound``, or membership in a set of codes where ``code_set`` is not −1.
    """

    columns: int  # features of a row
    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    bound: NDArray[np.float32]
    takes_nan: NDArray[np.bool_]  # whether NaN passes the test
    children: NDArray[np.int32]  # (nodes, 2): the child where the test is false, and where it is true
    code_set: NDArray[np.int32]  # the row of ``sets`` that a node tests, or −1
    sets: NDArray[np.bool_]  # (sets, codes)
    leaves: NDArray[np.float32]

    @classmethod
    def load(cls, data: bytes) -> "Trees":
        """Read what `to_bytes` wrote; refuse anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                trees = cls(int(arrays["columns"]), *(arrays[name] for name in list(cls.__annotations__)[1:]))
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not trees: {error}.") from error
        if not trees._is_sound():
            raise ModelError("These trees point outside their own arrays: the file is damaged; write it again.")
        return trees

    def to_bytes(self) -> bytes:
        """The arrays as one .npz file."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **asdict(self))
        return buffer.getvalue()

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row: the sum over all trees."""
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise InputError(f"Got features of shape {features.shape}; these trees take (rows, {self.columns}).")
        rows = np.ascontiguousarray(features, dtype=np.float32)
        total = np.zeros(len(rows))
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            total[block] = self._walk(rows[block])
        return total

    def _walk(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        total = np.zeros(len(rows))
        values_of = rows.ravel()
        any_nan = bool(np.isnan(values_of).any())
        # one entry for each pair of a row and a tree; a pair leaves the arrays when it reaches a leaf
        node = np.tile(self.roots, len(rows))
        row = np.repeat(np.arange(len(rows)), len(self.roots))
        while len(node):
            values = values_of[row * self.columns + self.feature[node]]
            is_true = values <= self.bound[node]
            if any_nan:
                is_true = np.where(np.isnan(values), self.takes_nan[node], is_true)
            code_set = self.code_set[node]
            tests_set = code_set >= 0
            if tests_set.any():
                is_true[tests_set] = self._in_set(code_set[tests_set], values[tests_set])
            node = self.children[node, is_true.astype(np.intp)]
            at_leaf = node < 0
            # `bincount` adds up leaves of the same row; plain indexing would keep only the last
            total += np.bincount(row[at_leaf], self.leaves[-1 - node[at_leaf]], len(rows))
            node, row = node[~at_leaf], row[~at_leaf]
        return total

    def _in_set(self, code_set: NDArray[np.int32], values: NDArray[np.float32]) -> NDArray[np.bool_]:
        is_code = (values >= 0) & (values < self.sets.shape[1]) & (values == np.floor(values))
        code = np.where(is_code, values, 0).astype(np.intp)
        return np.asarray(self.sets[code_set, code] & is_code)

    def _is_sound(self) -> bool:
        """Whether a walk ends and stays inside the arrays: children follow their parents, and leaves exist."""
        nodes, position = len(self.feature), np.arange(len(self.feature))[:, None]
        same_length: tuple[NDArray[Any], ...] = (self.bound, self.takes_nan, self.code_set)
        return bool(
            all(array.shape == (nodes,) for array in same_length)
            and self.children.shape == (nodes, 2)
            and np.all((self.children > position) | (self.children < 0))
            and self.children.max(initial=-1) < nodes
            and self.children.min(initial=0) >= -len(self.leaves)
            and 0 <= self.feature.min(initial=0) <= self.feature.max(initial=0) < self.columns
            and 0 <= self.roots.min(initial=0) <= self.roots.max(initial=0) < nodes
            and self.sets.ndim == 2
            and len(self.sets) > self.code_set.max(initial=-1)
        )
