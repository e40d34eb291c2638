"""Predictors: gradient-boosted trees, fitted with LightGBM and served as ONNX without it.

G. Ke et al.: LightGBM, NeurIPS 2017. A booster becomes one ``TreeEnsemble`` node (ai.onnx.ml 5) in float32. LightGBM
compares float64 thresholds, so thresholds are rounded down: every float32 value then falls on the same side as in
LightGBM. A set of categories stays one node that tests membership.

Limits: only objectives whose raw score is the prediction can be written. Codes of categories must be whole numbers:
LightGBM truncates 2.5 to 2, here it is in no set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError
from foretell.optional import available, require
from foretell.predictors.tree_tables import TreeTables

# objectives whose raw score is the prediction
OBJECTIVES = ("regression", "regression_l1", "huber", "fair", "quantile", "mape")
_OPSETS = {"": 17, "ai.onnx.ml": 5}
_IR_VERSION = 9
_WALKED_ROWS = 300  # making a session takes about as long as walking so many rows
_UP_TO, _MEMBER, _SUM = 0, 6, 1  # as the ONNX operator numbers them


class Booster(Protocol):
    """The part of a LightGBM booster that is used here."""

    def dump_model(self) -> dict[str, Any]:
        """The trees as nested dictionaries."""
        ...

    def predict(self, data: Any) -> Any:
        """Its own predictions."""
        ...


@dataclass(frozen=True)
class TreeFit:
    """How trees are fitted; ``others`` are further parameters of LightGBM. Equal data and seed give equal trees."""

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
        """Fit trees to rows; ``categorical`` are the columns that hold codes 0, 1, 2, …; NaN means missing."""
        if features.ndim != 2 or not len(features) or len(features) != len(truth):
            raise InputError(
                f"Got features {features.shape} and truth {truth.shape}; give n > 0 rows with one truth each."
            )
        lightgbm = require("lightgbm", extra="train", purpose="Fitting trees")
        parameters = {
            "objective": self.objective,
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.least_in_leaf,
            "seed": self.seed,
            "num_threads": self.threads,
            # equal data and seed give equal trees
            "deterministic": True,
            "force_col_wise": True,
            "verbose": -1,
        } | dict(self.others)
        rows = lightgbm.Dataset(features, truth, weight=weight, categorical_feature=list(categorical))
        booster: Booster = lightgbm.train(parameters, rows, num_boost_round=self.rounds)
        return booster


class Trees:
    """Trees that `to_onnx` wrote: numpy walks them; onnxruntime, where it is installed, runs them once that pays."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._tables = TreeTables.read(data)
        self._walked = 0
        self._session: Any = None

    @classmethod
    def load(cls, data: bytes) -> "Trees":
        """Read trees from the bytes of an ONNX model."""
        return cls(data)

    @property
    def columns(self) -> int:
        """How many features a row has."""
        return self._tables.columns

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """One value a row."""
        if features.ndim != 2 or features.shape[1] != self.columns:
            raise InputError(f"Got features of shape {features.shape}; these trees take (rows, {self.columns}).")
        if not len(features):
            return np.zeros(0)
        rows = np.ascontiguousarray(features, dtype=np.float32)
        # count over all calls: a process that keeps predicting gets a session
        self._walked += len(rows)
        if self._session is None and (self._walked <= _WALKED_ROWS or not available("onnxruntime")):
            return self._tables.predict(rows)
        if self._session is None:
            self._session = _session(self._data)
        (values,) = self._session.run(None, {"features": rows})
        return np.asarray(values, dtype=np.float64).reshape(len(rows))


def _session(data: bytes) -> Any:
    runtime = require("onnxruntime", extra="train", purpose="Serving trees")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # the graph is one node: looking for optimisations takes longer than a hundred predictions, and finds none
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime refuses these {len(data)} bytes of trees: write them with to_onnx.") from error


def to_onnx(booster: Booster) -> bytes:
    """A fitted regression booster as an ONNX model: ``features`` (rows, columns) float32 → ``value`` (rows, 1)."""
    model = booster.dump_model()
    _check_supported(model)
    nodes = _Nodes()
    roots = [nodes.add(tree["tree_structure"]) for tree in model["tree_info"]]
    onnx = require("onnx", extra="train", purpose="Writing trees")
    make, numbers = onnx.helper, onnx.TensorProto
    attributes = {
        name: onnx.numpy_helper.from_array(value, name) if isinstance(value, np.ndarray) else value
        for name, value in nodes.attributes().items()
    }
    ensemble = make.make_node(
        "TreeEnsemble", ["features"], ["value"], domain="ai.onnx.ml", n_targets=1, aggregate_function=_SUM,
        tree_roots=roots, **attributes,
    )  # fmt: skip
    graph = make.make_graph(
        [ensemble],
        "trees",
        [make.make_tensor_value_info("features", numbers.FLOAT, ["rows", model["max_feature_idx"] + 1])],
        [make.make_tensor_value_info("value", numbers.FLOAT, ["rows", 1])],
    )
    opsets = [make.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    written = make.make_model(graph, opset_imports=opsets, producer_name="foretell", ir_version=_IR_VERSION)
    return bytes(written.SerializeToString(deterministic=True))


def _check_supported(model: Mapping[str, Any]) -> None:
    """Refuse a booster that a ``TreeEnsemble`` cannot express."""
    objective = str(model.get("objective", "none"))
    if objective.split(" ")[0] not in OBJECTIVES or "sqrt" in objective.split(" "):
        raise ModelError(
            f"Trees with the objective {objective!r} cannot be written as ONNX; use one of {', '.join(OBJECTIVES)}."
        )
    if model.get("average_output"):
        raise ModelError("Trees that are averaged (boosting=rf) cannot be written; fit with boosting=gbdt.")
    if not model["tree_info"]:
        raise ModelError("A booster without trees cannot be written; fit at least one round.")
    nodes = [node for tree in model["tree_info"] for node in _walk(tree["tree_structure"])]
    if any("leaf_coeff" in node for node in nodes):
        raise ModelError("Trees with linear leaves cannot be written; fit without linear_tree.")
    if any(node.get("missing_type") == "Zero" for node in nodes):
        raise ModelError("Trees that take 0 for missing cannot be written; fit without zero_as_missing, give NaN.")


def _walk(root: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    nodes = [root]
    for node in nodes:
        # the list grows while the loop runs: a breadth-first walk
        nodes += [node[child] for child in ("left_child", "right_child") if child in node]
    return nodes


@dataclass(frozen=True, slots=True)
class _Node:
    feature: int
    mode: int
    bound: float
    takes_nan: bool
    children: tuple[int, int]  # where the test is true, and where it is false
    are_leaves: tuple[bool, bool]


@dataclass(frozen=True)
class _Nodes:
    """The tables of an ONNX ensemble as they grow; a node comes before all nodes below it."""

    nodes: dict[int, _Node] = field(default_factory=dict)
    leaves: list[float] = field(default_factory=list)
    members: list[float] = field(default_factory=list)

    def add(self, node: Mapping[str, Any]) -> int:
        """Add a node and all nodes below it; return its position."""
        position = len(self.nodes)
        if _is_leaf(node):  # a tree without splits: the operator needs a node, whose two children are the same leaf
            leaf = self._child(node)
            self.nodes[position] = _Node(0, _UP_TO, 0.0, False, (leaf, leaf), (True, True))
            return position
        feature, mode, bound, takes_nan = int(node["split_feature"]), _MEMBER, 0.0, False
        if node["decision_type"] == "==":  # NaN is in no set, so it goes right, as in LightGBM
            self.members.extend([*(float(code) for code in str(node["threshold"]).split("||")), np.nan])
        else:
            # where LightGBM saw no NaN while fitting, it treats one as 0
            takes_nan = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0.0
            mode, bound = _UP_TO, _round_down(node["threshold"])
        sides = (node["left_child"], node["right_child"])
        # a placeholder, so that this node has its position before its children take theirs
        self.nodes[position] = _Node(feature, mode, bound, takes_nan, (0, 0), (_is_leaf(sides[0]), _is_leaf(sides[1])))
        children = (self._child(sides[0]), self._child(sides[1]))
        self.nodes[position] = replace(self.nodes[position], children=children)
        return position

    def _child(self, node: Mapping[str, Any]) -> int:
        if not _is_leaf(node):
            return self.add(node)
        self.leaves.append(float(node["leaf_value"]))
        return len(self.leaves) - 1

    def attributes(self) -> dict[str, list[int] | NDArray[Any]]:
        """The attributes of the operator."""
        nodes = self.nodes.values()
        table: dict[str, list[int] | NDArray[Any]] = {
            "nodes_featureids": [node.feature for node in nodes],
            "nodes_modes": np.array([node.mode for node in nodes], np.uint8),
            "nodes_splits": np.array([node.bound for node in nodes], np.float32),
            "nodes_truenodeids": [node.children[0] for node in nodes],
            "nodes_falsenodeids": [node.children[1] for node in nodes],
            "nodes_trueleafs": [int(node.are_leaves[0]) for node in nodes],
            "nodes_falseleafs": [int(node.are_leaves[1]) for node in nodes],
            "nodes_missing_value_tracks_true": [int(node.takes_nan) for node in nodes],
            "leaf_targetids": [0] * len(self.leaves),
            "leaf_weights": np.array(self.leaves, np.float32),
        }
        return table | ({"membership_values": np.array(self.members, np.float32)} if self.members else {})


def _is_leaf(node: Mapping[str, Any]) -> bool:
    return "split_index" not in node


def _round_down(value: float) -> float:
    """The largest float32 that is not above a value.

    >>> _round_down(0.5), _round_down(0.1) <= 0.1
    (0.5, True)
    """
    with np.errstate(over="ignore"):
        nearest = float(np.float32(value))
    return nearest if nearest <= value else float(np.nextafter(np.float32(nearest), np.float32(-np.inf)))
