"""Lab: recipes: the papers' graph networks as one network with switches; a recipe for each name.

DIPPM (Panner Selvam, Brorsson, 2023) with its GCN, GAT, GIN and MLP; TraPPM (thesis of Panner Selvam, chapter 5); NNLQP
(Liu et al., 2022); BRP-NAS (Dudziak et al., 2020). ``docs/predictors-from-papers.md`` says what is theirs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from foretell.errors import UnknownNameError
from foretell.registry import did_you_mean
from foretell.units import GIGA, KILO, MEGA, MIB
from lab.papers.graph_networks.arrays import (
    BOUNDED_ONE_HOT,
    BOUNDED_WIDTH,
    CLASSED_ONE_HOT,
    CLASSED_WIDTH,
    CLASSES,
    DIPPM_COLUMNS,
    DIPPM_WIDTH,
    OPERATOR_COLUMNS,
    TARGET_COLUMNS,
    TRAPPM_COLUMNS,
    TRAPPM_WIDTH,
    GraphArrays,
)

Block = Literal["none", "sage", "gcn", "gat", "gin", "brp"]
Nodes = Literal["none", "dippm", "classed", "trappm", "operators", "bounded"]
_ALL_OPERATORS = len(OPERATOR_COLUMNS)
NODE_WIDTHS = {
    "none": 0, "dippm": DIPPM_WIDTH, "classed": CLASSED_WIDTH, "trappm": TRAPPM_WIDTH, "operators": _ALL_OPERATORS,
    "bounded": BOUNDED_WIDTH,
}  # fmt: skip
ONE_HOTS = {
    "none": 0, "dippm": len(CLASSES), "classed": CLASSED_ONE_HOT, "trappm": _ALL_OPERATORS, "operators": _ALL_OPERATORS,
    "bounded": BOUNDED_ONE_HOT,
}  # fmt: skip
TRUTHS = ("latency_ms", "memory_mib", "device_memory_mib", "energy_j", "power_w")


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained.

    ``blocks`` × ``layers`` graph layers of ``width`` (ReLU after each, dropout after a block); a ``readout``; beside it
    the ``whole`` columns and the target vector; ``dense`` layers; one output for each target. The readout ``bound`` has
    the sum over nodes, and two means in which a node weighs its share of the bound and of the bytes. The ``embedding``
    is that of TraPPM's encoder: frozen, trained on, replaced by zeros, or none. With ``ratio``, latency and energy are
    learned as ratios to the bound of the graph, and by bound memories to its bytes. The error of ``chosen_by`` chooses
    the epoch; the mean over all targets where it is none of them. ``published`` means raw inputs and raw targets (times
    ``units``) after −logsigmoid, as in the papers' code, instead of standardised logarithms.
    """

    nodes: Nodes = "dippm"
    block: Block = "sage"
    blocks: int = 3
    layers: int = 2
    width: int = 512
    heads: int = 1
    normalise: bool = True
    direction: Literal["forward", "mutual", "backward"] = "forward"
    readout: Literal["sum", "mean", "bound"] = "sum"
    whole: tuple[str, ...] = DIPPM_COLUMNS
    dense: int = 3
    dropout: float = 0.05
    embedding: Literal["none", "frozen", "trained", "zeros"] = "none"
    encoder_widths: tuple[int, ...] = (1024, 512, 512, 512)
    encoder_epochs: int = 400
    encoder_rate: float = 5e-4
    encoder_dropout: float = 0.5
    last_relu: bool = True
    targets: tuple[str, ...] = ("latency_ms", "energy_j", "device_memory_mib", "memory_mib")
    units: tuple[float, ...] = ()
    loss: Literal["huber", "mse", "l1", "relative"] = "huber"
    rate: float = 1e-3
    schedule: Literal["cosine", "constant", "plateau"] = "cosine"
    weight_decay: float = 0.0
    epochs: int = 500
    patience: int = 60
    batch: int = 64
    ratio: bool = False
    chosen_by: str = "latency_ms"
    published: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the whole graph that it reads: its own, and the target vector."""
        return (*self.whole, *TARGET_COLUMNS)

    def to_json(self) -> str:
        """The recipe as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """The recipe that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


_DIPPM = Recipe(nodes="classed", batch=32, ratio=True)
_MEMORIES = ("memory_mib", "device_memory_mib")
_NNLQP = Recipe(
    nodes="trappm", blocks=2, layers=1, direction="mutual", whole=TRAPPM_COLUMNS, dense=2,
    targets=("latency_ms", *_MEMORIES, "power_w"), loss="relative",
)  # fmt: skip
RECIPES: Mapping[str, Recipe] = {
    "dippm": _DIPPM,
    "gcn": replace(_DIPPM, block="gcn"),
    "gat": replace(_DIPPM, block="gat"),
    "gin": replace(_DIPPM, block="gin"),
    "mlp": replace(
        _DIPPM, nodes="none", block="none", whole=(*TRAPPM_COLUMNS, "convolutions", "dense", "relu"), dense=2,
        targets=TRUTHS,
    ),
    "nnlqp": _NNLQP,
    "trappm": replace(_NNLQP, direction="forward", loss="mse", embedding="frozen"),
    "brp-nas": Recipe(
        nodes="operators", block="brp", blocks=4, layers=1, width=600, direction="backward", dense=0, dropout=0.002,
        whole=("batch", "input_side"), targets=("latency_ms",), loss="l1", rate=4e-4, schedule="plateau",
        weight_decay=5e-4, epochs=250, patience=35,
    ),
}  # fmt: skip

# few labels need not teach what can be told: what each node takes at least, and its share of the bytes
BY_BOUND: Mapping[str, Any] = {
    "nodes": "bounded", "readout": "bound", "ratio": True, "normalise": False, "loss": "l1", "dropout": 0.1,
}  # fmt: skip
_MEGABYTES = MIB / MEGA
_ONCE: Mapping[str, Any] = {"published": True, "batch": 1, "schedule": "constant", "ratio": False}
_AS_DIPPM = {
    **_ONCE, "nodes": "dippm", "rate": 2.754e-5, "targets": ("latency_ms", "energy_j", "device_memory_mib"),
    "units": (KILO, 10.0, _MEGABYTES),
}  # fmt: skip
_AS_TRAPPM = {
    **_ONCE, "epochs": 100, "targets": ("latency_ms", "device_memory_mib", "power_w"), "units": (1.0, _MEGABYTES, 1.0),
}  # fmt: skip
# where the papers' code differs
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "dippm": _AS_DIPPM,
    "gcn": _AS_DIPPM,
    "gat": _AS_DIPPM,
    "gin": _AS_DIPPM,
    "mlp": {**_AS_DIPPM, "nodes": "none", "whole": DIPPM_COLUMNS, "dense": 3},
    "nnlqp": _AS_TRAPPM,
    "trappm": _AS_TRAPPM,
    "brp-nas": {**_ONCE, "whole": (), "schedule": "plateau", "units": (1.0,)},
}


def find_recipe(name: str, *, published: bool = False) -> Recipe:
    """The recipe of a name: ours, or as in the paper's code.

    >>> find_recipe("dippm").rate, find_recipe("dippm", published=True).rate
    (0.001, 2.754e-05)
    """
    if name not in RECIPES:
        raise UnknownNameError(f"Unknown graph network {name!r}.{did_you_mean(name, RECIPES)}")
    return replace(RECIPES[name], **PUBLISHED[name]) if published else RECIPES[name]


@dataclass(frozen=True)
class Stack:
    """Several graphs as one without edges between them: the inputs of a network."""

    nodes: NDArray[np.float32]
    edges: NDArray[np.int64]
    graph_index: NDArray[np.int64]
    whole: NDArray[np.float32]


def node_matrix(graph: GraphArrays, recipe: Recipe) -> NDArray[np.float32]:
    """The rows of a graph's nodes in the layout of a recipe."""
    if recipe.nodes == "dippm":
        return graph.dippm_nodes
    if recipe.nodes == "classed":
        return graph.classed_nodes
    if recipe.nodes == "bounded":
        return graph.bounded_nodes
    if recipe.nodes == "trappm":
        return graph.trappm_nodes
    return graph.operator_nodes if recipe.nodes == "operators" else np.zeros((len(graph), 0), np.float32)


def whole_matrix(graphs: Sequence[GraphArrays], recipe: Recipe) -> NDArray[np.float32]:
    """One row for each graph: the columns that a recipe reads.

    As published, DIPPM's MACs are in units of 1e9, and TraPPM's six numbers are standardised by their own mean and
    deviation, graph by graph.
    """
    rows = np.array([graph.whole_of(recipe.columns) for graph in graphs]).reshape(len(graphs), len(recipe.columns))
    if recipe.published and recipe.whole == TRAPPM_COLUMNS:
        # as in TraPPM's code: six numbers of one graph are standardised together, whatever their units
        own = rows[:, : len(recipe.whole)]
        deviation = own.std(axis=1, keepdims=True)
        rows[:, : len(recipe.whole)] = (own - own.mean(axis=1, keepdims=True)) / np.where(deviation > 0, deviation, 1)
    elif recipe.published and "macs" in recipe.whole:
        rows[:, recipe.whole.index("macs")] /= GIGA
    return rows.astype(np.float32)


def stack(graphs: Sequence[GraphArrays], recipe: Recipe) -> Stack:
    """The inputs of a network for several graphs."""
    counts = np.array([len(graph) for graph in graphs], np.int64)
    starts = np.cumsum(counts) - counts
    edges = [graph.edges + start for graph, start in zip(graphs, starts)]
    return Stack(
        np.concatenate([node_matrix(graph, recipe) for graph in graphs]),
        np.concatenate(edges, axis=1),
        np.repeat(np.arange(len(graphs), dtype=np.int64), counts),
        whole_matrix(graphs, recipe),
    )
