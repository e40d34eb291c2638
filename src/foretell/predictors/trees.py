"""predictors: gradient-boosted trees, fitted with LightGBM and served as ONNX without it.

G. Ke et al.: LightGBM, NeurIPS 2017. A booster becomes one ``TreeEnsembleRegressor`` whose nodes all ask ``x <= bound``
in float32. Thresholds are rounded down, so that every float32 falls on the same side as in LightGBM. A set of
categories becomes the bounds of its runs of neighbours: the code 2 alone is "not up to just below 2, but up to just
below 3". The nodes of such a chain share their children, as onnxruntime allows and other converters do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError
from foretell.optional import require

# those whose raw score is the prediction
OBJECTIVES = ("regression", "regression_l1", "huber", "fair", "quantile", "mape")
_ZERO = float(np.float32(1e-35))  # LightGBM calls what is not further from 0 than this a zero
_OPSETS = {"": 17, "ai.onnx.ml": 3}
_IR_VERSION = 8


class Booster(Protocol):
    """What of a LightGBM booster is used here."""

    def dump_model(self) -> dict[str, Any]:
        """The trees as nested dictionaries."""
        ...

    def predict(self, data: Any) -> Any:
        """Its own predictions."""
        ...


@dataclass(frozen=True)
class TreeFit:
    """How trees are fitted; ``others`` are further parameters of LightGBM. The same data and seed give the same trees."""

    rounds: int = 200
    leaves: int = 63
    learning_rate: float = 0.1
    least_in_leaf: int = 20
    objective: str = "regression"
    seed: int = 0
    threads: int = 1
    others: Mapping[str, object] = field(default_factory=dict)

    def fit(
        self,
        features: NDArray[np.float32],
        truth: NDArray[np.floating[Any]],
        weight: NDArray[np.floating[Any]] | None = None,
        categorical: Sequence[int] = (),
    ) -> Booster:
        """Fit trees to rows of features; ``categorical`` are the columns that hold codes 0, 1, 2, …; NaN is missing."""
        if features.ndim != 2 or not len(features) or len(features) != len(truth):
            raise InputError(f"Got features {features.shape} and truth {truth.shape}; give one truth for each of n > 0 rows.")
        lightgbm = require("lightgbm", extra="train", purpose="Fitting trees")
        parameters = {
            "objective": self.objective,
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.least_in_leaf,
            "seed": self.seed,
            "num_threads": self.threads,
            "deterministic": True,
            "force_col_wise": True,
            "verbose": -1,
        } | dict(self.others)
        rows = lightgbm.Dataset(features, truth, weight=weight, categorical_feature=list(categorical))
        booster: Booster = lightgbm.train(parameters, rows, num_boost_round=self.rounds)
        return booster


class Trees:
    """Trees that were written by `to_onnx`; onnxruntime runs them on one thread."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._input = session.get_inputs()[0]

    @classmethod
    def load(cls, data: bytes) -> "Trees":
        """Read trees from the bytes of an ONNX model."""
        runtime = require("onnxruntime", extra="train", purpose="Serving trees")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(f"These {len(data)} bytes are no ONNX model of trees: write them with to_onnx.") from error
        return cls(session)

    @property
    def columns(self) -> int:
        """How many features a row has."""
        return int(self._input.shape[1])

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row."""
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise InputError(f"Got features of shape {features.shape}; these trees take (rows, {self.columns}).")
        if not len(features):
            return np.zeros(0)
        rows = np.ascontiguousarray(features, dtype=np.float32)
        (values,) = self._session.run(None, {self._input.name: rows})
        return np.asarray(values, dtype=np.float64).reshape(len(rows))


def to_onnx(booster: Booster) -> bytes:
    """A fitted regression booster as an ONNX model: ``features`` (rows, columns) float32 → ``value`` (rows, 1)."""
    model = booster.dump_model()
    _refuse_what_has_no_equal(model)
    nodes = _Nodes()
    for tree in model["tree_info"]:
        nodes.start_tree()
        nodes.add(tree["tree_structure"])
    onnx = require("onnx", extra="train", purpose="Writing trees")
    make, numbers = onnx.helper, onnx.TensorProto
    ensemble = make.make_node(
        "TreeEnsembleRegressor", ["features"], ["value"], domain="ai.onnx.ml", n_targets=1, **nodes.attributes()
    )
    graph = make.make_graph(
        [ensemble],
        "trees",
        [make.make_tensor_value_info("features", numbers.FLOAT, ["rows", model["max_feature_idx"] + 1])],
        [make.make_tensor_value_info("value", numbers.FLOAT, ["rows", 1])],
    )
    opsets = [make.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    written = make.make_model(graph, opset_imports=opsets, producer_name="foretell", ir_version=_IR_VERSION)
    return bytes(written.SerializeToString(deterministic=True))


def _refuse_what_has_no_equal(model: Mapping[str, Any]) -> None:
    objective = str(model.get("objective", "none"))
    if objective.split(" ")[0] not in OBJECTIVES or "sqrt" in objective.split(" "):
        raise ModelError(f"Trees of the objective {objective!r} cannot be written; fit one of {', '.join(OBJECTIVES)}.")
    if model.get("average_output"):
        raise ModelError("Trees that are averaged (boosting=rf) cannot be written; fit with boosting=gbdt.")
    if not model["tree_info"]:
        raise ModelError("A booster without trees cannot be written; fit at least one round.")
    if any("leaf_coeff" in node for tree in model["tree_info"] for node in _walk(tree["tree_structure"])):
        raise ModelError("Trees with linear leaves cannot be written; fit without linear_tree.")


def _walk(root: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = [root]
    for node in found:
        found += [node[child] for child in ("left_child", "right_child") if child in node]
    return found


@dataclass
class _Nodes:
    """The node table of an ONNX ensemble as it grows; ids count from 0 in every tree."""

    trees: int = 0
    size: int = 0
    rows: list[tuple[int, int, int, float, str, int, int, int]] = field(default_factory=list)
    leaves: list[tuple[int, int, float]] = field(default_factory=list)

    def start_tree(self) -> None:
        self.trees += 1
        self.size = 0

    def add(self, node: Mapping[str, Any]) -> int:
        """Enter a node and all below it; its id."""
        tree, first = self.trees - 1, self.size
        if "split_index" not in node:
            self.size += 1
            self.rows.append((tree, first, 0, 0.0, "LEAF", 0, 0, 0))
            self.leaves.append((tree, first, float(node["leaf_value"])))
            return first
        bounds, nan_left = _bounds(node)
        self.size += len(bounds)
        left, right = self.add(node["left_child"]), self.add(node["right_child"])
        # NaN is below no bound: it goes right by itself, and left where the first bound that leads there says so
        takes_nan = [goes_left for _, goes_left in bounds].index(True) if nan_left else -1
        for place, (bound, goes_left) in enumerate(bounds):
            otherwise = right if place + 1 == len(bounds) else first + place + 1
            below = left if goes_left else right
            feature, takes = int(node["split_feature"]), int(place == takes_nan)
            self.rows.append((tree, first + place, feature, bound, "BRANCH_LEQ", below, otherwise, takes))
        return first

    def attributes(self) -> dict[str, list[Any]]:
        names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                 "missing_value_tracks_true")  # fmt: skip
        # onnxruntime takes the first row of a tree for its root
        table = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*sorted(self.rows)))}
        tree_ids, node_ids, weights = (list(column) for column in zip(*self.leaves))
        return table | {
            "target_treeids": tree_ids,
            "target_nodeids": node_ids,
            "target_ids": [0] * len(weights),
            "target_weights": weights,
        }


Bounds = list[tuple[float, bool]]


def _bounds(node: Mapping[str, Any]) -> tuple[Bounds, bool]:
    """A split as ascending bounds, each with whether what lies up to it goes left (beyond all: right); NaN goes left?"""
    if node["decision_type"] == "==":
        return _category_bounds(sorted({int(code) for code in str(node["threshold"]).split("||")})), False
    threshold, default_left = float(node["threshold"]), bool(node["default_left"])
    bound = _round_down(threshold)
    if node["missing_type"] == "NaN":
        return [(bound, True)], default_left
    if node["missing_type"] == "None":  # where fitting saw no NaN, LightGBM takes one for 0
        return [(bound, True)], threshold >= 0.0
    edges = sorted({bound, _just_below(-_ZERO), _ZERO})
    sides = [(edge, default_left if -_ZERO <= edge <= _ZERO else edge <= bound) for edge in edges]
    while sides and not sides[-1][1]:
        sides.pop()
    return sides, default_left


def _category_bounds(codes: Sequence[int]) -> Bounds:
    """The runs of neighbouring codes; what lies between 2 and 3 counts as 2, between −1 and 0 as 0, as in LightGBM.

    >>> [(round(bound, 3), goes_left) for bound, goes_left in _category_bounds([0, 1, 5])]
    [(-1.0, False), (2.0, True), (5.0, False), (6.0, True)]
    """
    found: Bounds = []
    for code in codes:
        low, high = (-1.0 if code == 0 else _just_below(code)), _just_below(code + 1)
        if found and found[-1][0] == low:
            found[-1] = (high, True)
        else:
            found += [(low, False), (high, True)]
    return found


def _just_below(value: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(-np.inf)))


def _round_down(value: float) -> float:
    """The largest float32 that is not above a value.

    >>> _round_down(0.5), _round_down(0.1) <= 0.1
    (0.5, True)
    """
    with np.errstate(over="ignore"):
        nearest = float(np.float32(value))
    return nearest if nearest <= value else _just_below(nearest)
