"""Predictors: the trees of an ONNX model, walked with numpy.

A session of onnxruntime for a hundred thousand nodes takes longer to make than it takes to walk the trees once or
twice. So the first predictions of a process come from here (`foretell.predictors.trees` decides). All rows walk all
trees at the same time, one level a step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.optional import require

_MEMBER = 6  # as the operator numbers it


@dataclass(frozen=True)
class TreeTables:
    """The tables of one ``TreeEnsemble``; a child that is a leaf is stored as −1 − its number."""

    columns: int
    roots: NDArray[np.intp]
    feature: NDArray[np.intp]
    bound: NDArray[np.float32]
    takes_nan: NDArray[np.bool_]
    children: NDArray[np.intp]  # (2, nodes): the child where the test is false, and where it is true
    member: NDArray[np.intp]  # the row of ``members`` that a node tests, −1 for a threshold
    members: NDArray[np.bool_]
    leaves: NDArray[np.float32]

    @classmethod
    def read(cls, data: bytes) -> "TreeTables":
        """The tables of a model that `foretell.predictors.trees.to_onnx` wrote; refuse anything else."""
        onnx = require("onnx", extra="train", purpose="Reading trees")
        try:
            graph = onnx.load_model_from_string(data).graph
            (ensemble,) = graph.node
            values = {item.name: onnx.helper.get_attribute_value(item) for item in ensemble.attribute}
            columns = graph.input[0].type.tensor_type.shape.dim[1].dim_value
            return _tables(columns, {name: _array(onnx, value) for name, value in values.items()})
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"These {len(data)} bytes are not an ONNX model of trees: write them with to_onnx."
            ) from error

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row: the sum over all trees."""
        node = np.broadcast_to(self.roots, (len(rows), len(self.roots))).copy()
        row = np.arange(len(rows))[:, None].repeat(len(self.roots), axis=1)
        total = np.zeros(len(rows))
        node, row = node.ravel(), row.ravel()
        # one entry for each pair of a row and a tree; a pair leaves the arrays when it reaches a leaf
        while len(node):
            values = rows[row, self.feature[node]]
            is_true = np.where(np.isnan(values), self.takes_nan[node], values <= self.bound[node])
            set_row = self.member[node]
            tests_set = set_row >= 0
            is_true[tests_set] = self._in_set(set_row[tests_set], values[tests_set])
            node = self.children[is_true.astype(np.intp), node]
            at_leaf = node < 0
            # `bincount` adds up leaves of the same row; plain indexing would keep only the last
            total += np.bincount(row[at_leaf], self.leaves[-1 - node[at_leaf]], len(rows))
            node, row = node[~at_leaf], row[~at_leaf]
        return total

    def _in_set(self, set_rows: NDArray[np.intp], values: NDArray[np.float32]) -> NDArray[np.bool_]:
        is_code = (values >= 0) & (values < self.members.shape[1]) & (values == np.floor(values))
        code = np.where(is_code, values, 0).astype(np.intp)
        return np.asarray(self.members[set_rows, code] & is_code)


def _array(onnx: Any, value: Any) -> NDArray[Any]:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _tables(columns: int, values: dict[str, NDArray[Any]]) -> TreeTables:
    true_nodes, false_nodes = (values[f"nodes_{side}nodeids"].astype(np.intp) for side in ("true", "false"))
    true_is_leaf, false_is_leaf = (values[f"nodes_{side}leafs"].astype(bool) for side in ("true", "false"))
    children = np.stack(
        [np.where(false_is_leaf, -1 - false_nodes, false_nodes), np.where(true_is_leaf, -1 - true_nodes, true_nodes)]
    )
    tests_set = values["nodes_modes"].astype(int) == _MEMBER
    member = np.where(tests_set, np.cumsum(tests_set) - 1, -1).astype(np.intp)
    tables = TreeTables(
        columns,
        values["tree_roots"].astype(np.intp),
        values["nodes_featureids"].astype(np.intp),
        values["nodes_splits"].astype(np.float32),
        values["nodes_missing_value_tracks_true"].astype(bool),
        children,
        member,
        _members(values.get("membership_values", np.zeros(0, np.float32)), int(tests_set.sum())),
        values["leaf_weights"].astype(np.float32),
    )
    _check(tables)
    return tables


def _members(values: NDArray[np.float32], sets: int) -> NDArray[np.bool_]:
    """One row a set, one column a code; in the file the sets follow each other, each ended by a NaN."""
    ends = np.isnan(values)
    codes = values[~ends].astype(np.intp)
    table = np.zeros((max(sets, 1), int(codes.max(initial=0)) + 1), dtype=bool)
    table[(np.cumsum(ends) - ends)[~ends], codes] = True
    return table


def _check(tables: TreeTables) -> None:
    """Refuse tables in which a walk might not end: children must follow their parents, and leaves must exist."""
    nodes, position = len(tables.feature), np.arange(len(tables.feature))
    is_node = tables.children >= 0
    is_sound = (
        tables.children.shape == (2, nodes)
        and np.all((tables.children > position) | ~is_node)
        and tables.children.max(initial=-1) < nodes
        and tables.children.min(initial=0) >= -len(tables.leaves)
        and 0 <= tables.feature.min(initial=0) <= tables.feature.max(initial=0) < tables.columns
        and 0 <= tables.roots.min(initial=0) <= tables.roots.max(initial=0) < nodes
        and len(tables.members) > tables.member.max(initial=-1)
    )
    if not is_sound:
        raise ModelError("These trees point outside their own tables: the file is damaged; write it again.")
