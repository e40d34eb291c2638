"""Lab: scales: the constants that standardise features and truths, from the training side alone."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.units import MIB
from lab.papers.graph_networks.arrays import TARGET_COLUMNS, GraphArrays
from lab.papers.graph_networks.recipes import NODE_WIDTHS, ONE_HOTS, Recipe, node_matrix, whole_matrix
from lab.papers.graph_networks.weights import Weights

Sample = tuple[GraphArrays, Mapping[str, float | None]]
_BOUNDED = ("latency_ms", "energy_j")  # both grow with the work
_SIZED = ("memory_mib", "device_memory_mib")
_LEAST_MIB = 50.0
_LEAST_SPREAD = 1e-6


def sample_scales(samples: Sequence[Sample], recipe: Recipe) -> Weights:
    """The constants of nodes, whole graphs, readout and targets."""
    graphs = [graph for graph, _ in samples]
    scales = column_scales("whole", whole_matrix(graphs, recipe), recipe)
    if recipe.block != "none":
        scales |= node_scales("nodes", graphs, recipe)
        scales["readout.scale"] = np.array([1.0 if recipe.published else _readout_scale(graphs, recipe)], np.float32)
    return scales | _target_scales(log_truths(samples, recipe), recipe)


def _readout_scale(graphs: Sequence[GraphArrays], recipe: Recipe) -> float:
    """A factor that brings sums over nodes near 1; rows of length 1 have entries of about 1/√width."""
    mean_nodes = max(float(np.mean([len(graph) for graph in graphs])), 1.0)
    return (math.sqrt(recipe.width) if recipe.block == "sage" and recipe.normalise else 1.0) / mean_nodes


def _target_scales(logs: NDArray[np.float64], recipe: Recipe) -> Weights:
    absent = [name for name, column in zip(recipe.targets, logs.T) if not np.isfinite(column).any()]
    if absent:
        raise InputError(f"No training sample has a truth for {', '.join(absent)}: leave it out of the targets.")
    if recipe.published:
        units = np.array(recipe.units or (1.0,) * len(recipe.targets))
        return {"targets.shift": -np.log(units).astype(np.float32)}
    deviation = np.nanstd(logs, axis=0)
    return {
        "targets.shift": np.nanmean(logs, axis=0).astype(np.float32),
        "targets.scale": np.where(deviation > 1e-6, deviation, 1.0).astype(np.float32),
    }


def node_scales(name: str, graphs: Iterable[GraphArrays], recipe: Recipe) -> Weights:
    """The constants of the nodes of many graphs; one-hot columns are not scaled."""
    width, first = NODE_WIDTHS[recipe.nodes], ONE_HOTS[recipe.nodes]
    if recipe.published or first == width:
        return {}
    count, total, squares = 0, np.zeros(width - first), np.zeros(width - first)
    for graph in graphs:
        logs = _log(node_matrix(graph, recipe)[:, first:])
        # running sums: the nodes of all graphs do not fit into memory together
        count, total, squares = count + len(logs), total + logs.sum(axis=0), squares + (logs**2).sum(axis=0)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
    plain = np.zeros(first)
    return {
        f"{name}.logged": np.concatenate([plain, np.ones(width - first)]).astype(np.float32),
        f"{name}.shift": np.concatenate([plain, mean]).astype(np.float32),
        f"{name}.scale": np.concatenate([plain + 1, _inverse(deviation)]).astype(np.float32),
    }


def column_scales(name: str, rows: NDArray[np.float32], recipe: Recipe, least: float = _LEAST_SPREAD) -> Weights:
    """The constants of the columns of many graphs; as published, only the target vector has logarithms.

    A column whose logarithm hardly moves (by ``least`` at most) is ignored.
    """
    if recipe.published:
        targets = np.array([column in TARGET_COLUMNS for column in recipe.columns], np.float32)
        return {"whole.logged": targets} if name == "whole" else {}
    logs = _log(rows)
    return {
        f"{name}.logged": np.ones(rows.shape[1], np.float32),
        f"{name}.shift": logs.mean(axis=0).astype(np.float32),
        f"{name}.scale": _inverse(logs.std(axis=0), least).astype(np.float32),
    }


def log_truths(samples: Sequence[Sample], recipe: Recipe) -> NDArray[np.float64]:
    """Natural logarithms of the truths, or of their ratios to the bound, one row for each sample; NaN where unknown."""
    # 0 is no measurement either: its logarithm does not exist
    values = np.array([[truth.get(name) or np.nan for name in recipe.targets] for _, truth in samples], np.float64)
    return np.log(np.where(values > 0, values, np.nan)) - log_bounds([graph for graph, _ in samples], recipe)


def log_bounds(graphs: Sequence[GraphArrays], recipe: Recipe) -> NDArray[np.float64]:
    """What is taken from the logarithm of each target: that of the bound, or 0 for what is no ratio."""
    if not recipe.ratio:
        return np.zeros((len(graphs), len(recipe.targets)))
    if recipe.readout == "bound":
        times, sizes = (np.log([base(graph) for graph in graphs])[:, None] for base in (_node_bounds_ms, _moved_mib))
        return np.asarray(times * _among(recipe, _BOUNDED) + sizes * _among(recipe, _SIZED), np.float64)
    bounds = np.log([graph.bound_ms for graph in graphs])[:, None]
    return np.asarray(bounds * _among(recipe, _BOUNDED), np.float64)


def _among(recipe: Recipe, names: Sequence[str]) -> NDArray[np.float64]:
    return np.array([float(name in names) for name in recipe.targets])


def _node_bounds_ms(graph: GraphArrays) -> float:
    return float(graph.node_bounds_ms.sum())


def _moved_mib(graph: GraphArrays) -> float:
    """What all nodes read and write; the least part of a memory that does not grow with the network is added."""
    return float(graph.whole_of(("memory_bytes",))[0]) / MIB + _LEAST_MIB


def _log(values: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = values.astype(np.float64)
    return np.asarray(np.sign(exact) * np.log2(1.0 + np.abs(exact)), np.float64)


def _inverse(deviation: NDArray[np.float64], least: float = _LEAST_SPREAD) -> NDArray[np.float64]:
    """1 / deviation; 0 for a column that is constant in training, so that it is ignored later."""
    return np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > least)
