"""Predictors: an ensemble of regression trees as arrays, walked with numpy. `foretell.predictors.boosting` fits them.

All rows of a block walk all trees at the same time, one level a step. A runtime's session for such trees takes longer
to make than most predictions take, and for ten thousand rows it is hardly faster (``benchmarks/trees.py``).
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError
from foretell.frozen import dataclass
from foretell.predictors.arrays import read_arrays

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
            arrays = read_arrays(data)
            arrays.setdefault("children", _children(arrays.pop("steps", np.zeros((0, 2), np.int32))))
            arrays["feature"] = arrays["feature"].astype(np.int32)
            trees = cls(int(arrays.pop("columns")), **arrays)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not trees: {error}.") from error
        if not trees._is_sound():
            raise ModelError("These trees point outside their own arrays: the file is damaged; write it again.")
        return trees

    def to_bytes(self) -> bytes:
        """The arrays as one .npz file.

        Leaves are numbered in the order in which nodes name them, so that their numbers need not be written; of another
        child the distance from its parent is. That compresses six times better than the children themselves.
        """
        arrays = asdict(self)
        children = arrays.pop("children")
        is_leaf = children < 0
        steps = np.where(is_leaf, 0, children - np.arange(len(children))[:, None])
        arrays |= {"steps": _narrow(steps), "leaves": self.leaves[-1 - children[is_leaf]]}
        arrays["feature"] = _narrow(self.feature)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        return buffer.getvalue()

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row: the sum over all trees."""
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise InputError(f"Got features of shape {features.shape}; these trees take (rows, {self.columns}).")
        return np.asarray(self._walk_blocks(features, np.zeros(len(self.roots), np.intp), 1)[:, 0])

    def _walk_blocks(self, features: NDArray[np.float32], group: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
        """The sum over the trees of each group, a row for each row; ``group`` has the group of each tree."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        total = np.zeros((len(rows), groups))
        for start in range(0, len(rows), _BLOCK):
            block = slice(start, start + _BLOCK)
            total[block] = self._walk(rows[block], group, groups)
        return total

    def _walk(self, rows: NDArray[np.float32], group: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
        total = np.zeros(len(rows) * groups)
        values_of = rows.ravel()
        any_nan = bool(np.isnan(values_of).any())
        # one entry for each pair of a row and a tree; a pair leaves the arrays when it reaches a leaf
        node = np.tile(self.roots.astype(np.intp), len(rows))
        row = np.repeat(np.arange(len(rows)), len(self.roots))
        place = row * groups + np.tile(group, len(rows)) if groups > 1 else row
        first = row * self.columns
        feature, children = self._feature, self._children  # `take` of flat arrays is three times as fast as brackets
        while len(node):
            values = values_of.take(first + feature.take(node))
            is_true = values <= self.bound.take(node)
            if any_nan:
                is_true = np.where(np.isnan(values), self.takes_nan[node], is_true)
            if self._tests_sets:
                code_set = self.code_set.take(node)
                tests_set = np.flatnonzero(code_set >= 0)
                is_true[tests_set] = self._in_set(code_set[tests_set], values[tests_set])
            node = children.take(2 * node + is_true)
            at_leaf = np.flatnonzero(node < 0)
            if len(at_leaf):
                # `bincount` adds up leaves of the same row; plain indexing would keep only the last
                total += np.bincount(place.take(at_leaf), self.leaves.take(-1 - node.take(at_leaf)), len(total))
                goes_on = np.flatnonzero(node >= 0)
                node, first, place = node.take(goes_on), first.take(goes_on), place.take(goes_on)
        return total.reshape(len(rows), groups)

    @cached_property
    def _feature(self) -> NDArray[np.intp]:
        return self.feature.astype(np.intp)

    @cached_property
    def _children(self) -> NDArray[np.intp]:
        """Of each node the child where the test is false, then the one where it is true."""
        return self.children.astype(np.intp).ravel()

    @cached_property
    def _tests_sets(self) -> bool:
        return bool((self.code_set >= 0).any())

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


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """The same whole numbers, none negative, in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _children(steps: NDArray[Any]) -> NDArray[np.int32]:
    """The children of nodes, from what `Trees.to_bytes` writes of them."""
    children = steps.astype(np.int32) + np.arange(len(steps), dtype=np.int32)[:, None]
    is_leaf = steps == 0
    children[is_leaf] = -1 - np.arange(np.count_nonzero(is_leaf))
    return children


class Forest:
    """Several ensembles on the same features, walked together: a step costs little more for all than for one."""

    def __init__(self, ensembles: Mapping[str, Trees]) -> None:
        self.names = tuple(ensembles)
        each = list(ensembles.values())
        nodes, leaves, sets = (
            [0, *np.cumsum([len(array) for array in arrays])[:-1].tolist()]
            for arrays in ([t.feature for t in each], [t.leaves for t in each], [t.sets for t in each])
        )
        codes = max((trees.sets.shape[1] for trees in each), default=0)
        starts = zip(each, nodes, leaves, sets, strict=True)
        moved = [
            # a leaf is stored as −1 − its number, an absent set as −1
            (
                trees.roots + node,
                np.where(trees.children < 0, trees.children - leaf, trees.children + node),
                np.where(trees.code_set < 0, -1, trees.code_set + first_set),
                np.pad(trees.sets, ((0, 0), (0, codes - trees.sets.shape[1]))),
            )
            for trees, node, leaf, first_set in starts
        ]
        self._trees = Trees(
            each[0].columns,
            np.concatenate([roots for roots, _, _, _ in moved]),
            np.concatenate([trees.feature for trees in each]),
            np.concatenate([trees.bound for trees in each]),
            np.concatenate([trees.takes_nan for trees in each]),
            np.concatenate([children for _, children, _, _ in moved]),
            np.concatenate([code_set for _, _, code_set, _ in moved]),
            np.concatenate([own for _, _, _, own in moved]),
            np.concatenate([trees.leaves for trees in each]),
        )
        self._group = np.repeat(np.arange(len(each)), [len(trees.roots) for trees in each])

    def predict(self, features: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        """The values of each ensemble, one a row."""
        found = self._trees._walk_blocks(features, self._group, len(self.names))
        return dict(zip(self.names, found.T, strict=True))
