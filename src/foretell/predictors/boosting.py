"""Predictors: gradient-boosted trees, fitted with LightGBM and turned into arrays that are served without it.

G. Ke et al.: LightGBM, NeurIPS 2017. `foretell.predictors.trees` predicts in float32. LightGBM compares float64
thresholds, so thresholds are rounded down: every float32 value then falls on the same side as in LightGBM. A set of
categories stays one node that tests membership.

Limits: only objectives whose raw score is the prediction can be written. Codes of categories must be whole numbers:
LightGBM truncates 2.5 to 2, here it is in no set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError
from foretell.optional import require
from foretell.predictors.trees import Trees

# objectives whose raw score is the prediction
OBJECTIVES = ("regression", "regression_l1", "huber", "fair", "quantile", "mape")


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


def trees_of(booster: Booster) -> Trees:
    """The trees of a fitted regression booster as arrays. LightGBM is not needed to predict with them."""
    model = booster.dump_model()
    _check_supported(model)
    nodes = _Nodes()
    roots = [nodes.add(tree["tree_structure"]) for tree in model["tree_info"]]
    return nodes.trees(roots, model["max_feature_idx"] + 1)


def _check_supported(model: Mapping[str, Any]) -> None:
    """Refuse a booster whose predictions are not the sum of its leaves."""
    objective = str(model.get("objective", "none"))
    if objective.split(" ")[0] not in OBJECTIVES or "sqrt" in objective.split(" "):
        raise ModelError(
            f"Trees with the objective {objective!r} cannot be written; use one of {', '.join(OBJECTIVES)}."
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


@dataclass(frozen=True)
class _Nodes:
    """The arrays of an ensemble as they grow; a node comes before all nodes below it, and a leaf is −1 − its number."""

    feature: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    takes_nan: list[bool] = field(default_factory=list)
    children: list[tuple[int, int]] = field(default_factory=list)  # where the test is false, and where it is true
    code_set: list[int] = field(default_factory=list)
    sets: list[list[int]] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)

    def add(self, root: Mapping[str, Any]) -> int:
        """Add a tree; return the position of its root."""
        if _is_leaf(root):  # a tree without splits: a root whose two children are the same leaf
            leaf = self._child(root)
            return self._append(0, 0.0, False, (leaf, leaf), -1)
        return self._child(root)

    def _child(self, node: Mapping[str, Any]) -> int:
        if _is_leaf(node):
            self.leaves.append(float(node["leaf_value"]))
            return -len(self.leaves)
        bound, takes_nan, code_set = 0.0, False, -1
        if node["decision_type"] == "==":  # NaN is in no set, so it goes right, as in LightGBM
            code_set = len(self.sets)
            self.sets.append([int(code) for code in str(node["threshold"]).split("||")])
        else:
            # where LightGBM saw no NaN while fitting, it treats one as 0
            takes_nan = node["default_left"] if node["missing_type"] == "NaN" else node["threshold"] >= 0.0
            bound = _round_down(node["threshold"])
        # appended before its children, so that it has the smaller position
        position = self._append(int(node["split_feature"]), bound, takes_nan, (0, 0), code_set)
        is_true = self._child(node["left_child"])
        self.children[position] = (self._child(node["right_child"]), is_true)
        return position

    def _append(self, feature: int, bound: float, takes_nan: bool, children: tuple[int, int], code_set: int) -> int:
        self.feature.append(feature)
        self.bound.append(bound)
        self.takes_nan.append(takes_nan)
        self.children.append(children)
        self.code_set.append(code_set)
        return len(self.feature) - 1

    def trees(self, roots: Sequence[int], columns: int) -> Trees:
        """The arrays as they are served."""
        sets = np.zeros((len(self.sets), 1 + max((code for codes in self.sets for code in codes), default=0)), np.bool_)
        for number, codes in enumerate(self.sets):
            sets[number, codes] = True
        return Trees(
            columns,
            np.array(roots, np.int32),
            np.array(self.feature, np.int32),
            np.array(self.bound, np.float32),
            np.array(self.takes_nan, np.bool_),
            np.array(self.children, np.int32),
            np.array(self.code_set, np.int32),
            sets,
            np.array(self.leaves, np.float32),
        )


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
