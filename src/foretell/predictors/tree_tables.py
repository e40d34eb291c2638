"""predictors: trees of an ONNX model, walked with numpy: for the first answers, before a session would be ready.

Making a session of onnxruntime for a hundred thousand nodes takes longer than walking them once or twice.
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
    children: NDArray[np.intp]  # (2, nodes): where it is false, and where true
    member: NDArray[np.intp]  # which row of ``members`` a node asks for, −1 where it asks for none
    members: NDArray[np.bool_]
    leaves: NDArray[np.float32]

    @classmethod
    def read(cls, data: bytes) -> "TreeTables":
        """The tables of a model that `foretell.predictors.trees.to_onnx` wrote; anything else is refused."""
        onnx = require("onnx", extra="train", purpose="Reading trees")
        try:
            graph = onnx.load_model_from_string(data).graph
            (ensemble,) = graph.node
            values = {each.name: onnx.helper.get_attribute_value(each) for each in ensemble.attribute}
            columns = graph.input[0].type.tensor_type.shape.dim[1].dim_value
            return _tables(columns, {name: _array(onnx, value) for name, value in values.items()})
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"These {len(data)} bytes are no ONNX model of trees: write them with to_onnx.") from error

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row: the sum over trees."""
        place = np.broadcast_to(self.roots, (len(rows), len(self.roots))).copy()
        each = np.arange(len(rows))[:, None].repeat(len(self.roots), axis=1)
        total = np.zeros(len(rows))
        place, each = place.ravel(), each.ravel()
        while len(place):
            asked = rows[each, self.feature[place]]
            goes = np.where(np.isnan(asked), self.takes_nan[place], asked <= self.bound[place])
            of_set = self.member[place]
            sets = of_set >= 0
            goes[sets] = self._in_set(of_set[sets], asked[sets])
            place = self.children[goes.astype(np.intp), place]
            ended = place < 0
            total += np.bincount(each[ended], self.leaves[-1 - place[ended]], len(rows))
            place, each = place[~ended], each[~ended]
        return total

    def _in_set(self, which: NDArray[np.intp], asked: NDArray[np.float32]) -> NDArray[np.bool_]:
        known = (asked >= 0) & (asked < self.members.shape[1]) & (asked == np.floor(asked))
        code = np.where(known, asked, 0).astype(np.intp)
        return np.asarray(self.members[which, code] & known)


def _array(onnx: Any, value: Any) -> NDArray[Any]:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _tables(columns: int, values: dict[str, NDArray[Any]]) -> TreeTables:
    of_true, of_false = (values[f"nodes_{side}nodeids"].astype(np.intp) for side in ("true", "false"))
    leaf_true, leaf_false = (values[f"nodes_{side}leafs"].astype(bool) for side in ("true", "false"))
    children = np.stack([np.where(leaf_false, -1 - of_false, of_false), np.where(leaf_true, -1 - of_true, of_true)])
    asks = values["nodes_modes"].astype(int) == _MEMBER
    member = np.where(asks, np.cumsum(asks) - 1, -1).astype(np.intp)
    tables = TreeTables(
        columns,
        values["tree_roots"].astype(np.intp),
        values["nodes_featureids"].astype(np.intp),
        values["nodes_splits"].astype(np.float32),
        values["nodes_missing_value_tracks_true"].astype(bool),
        children,
        member,
        _members(values.get("membership_values", np.zeros(0, np.float32)), int(asks.sum())),
        values["leaf_weights"].astype(np.float32),
    )
    _check(tables)
    return tables


def _members(values: NDArray[np.float32], sets: int) -> NDArray[np.bool_]:
    """One row a set, one column a code; the sets stand one after the other, each ended by a NaN."""
    ends = np.isnan(values)
    codes = values[~ends].astype(np.intp)
    table = np.zeros((max(sets, 1), int(codes.max(initial=0)) + 1), dtype=bool)
    table[(np.cumsum(ends) - ends)[~ends], codes] = True
    return table


def _check(tables: TreeTables) -> None:
    """Every walk ends: children stand behind their parents, leaves exist."""
    nodes, place = len(tables.feature), np.arange(len(tables.feature))
    inner = tables.children >= 0
    sound = (
        tables.children.shape == (2, nodes)
        and np.all((tables.children > place) | ~inner)
        and tables.children.max(initial=-1) < nodes
        and tables.children.min(initial=0) >= -len(tables.leaves)
        and 0 <= tables.feature.min(initial=0) <= tables.feature.max(initial=0) < tables.columns
        and 0 <= tables.roots.min(initial=0) <= tables.roots.max(initial=0) < nodes
        and len(tables.members) > tables.member.max(initial=-1)
    )
    if not sound:
        raise ModelError("These trees point outside their own tables: the file is damaged; write it again.")
