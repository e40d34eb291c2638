"""Predictors: the partitioner: which edges of a graph a compiler fuses, and so which nodes run as one kernel.

Idea, after LILOU (Q. Liang, H. Wang, P. Shenoy): classify every edge of the graph as fused or not, then unite the nodes
that fused edges connect (union–find). LILOU classifies with a graph network; here gradient-boosted trees do, on
features of the edge, of its two ends and of the nodes around them (`foretell.predictors.fusion.edges`). The features
are the same for all compilers, and each compiler has trees of its own. The labels come from compilers that reported
their kernels. PyTorch's eager mode fuses only what one call computes; there no trees are needed, the origin of the
nodes decides.

Limits: edges are decided one by one, so the groups can contradict each other; `foretell.predictors.fusion.kernel_graph`
splits groups that form cycles. One wrong edge merges two kernels. A compiler changes from version to version, and the
trees know the versions that were collected.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.graph import Graph
from foretell.predictors.boosting import Booster, TreeFit, trees_of
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.fusion.edges import CATEGORIES, EDGE_COLUMNS, EDGE_SCHEMA, RUNTIMES, Edges, extract_edges
from foretell.predictors.trees import Trees

EAGER = RUNTIMES[0]
_ONNX_RUNTIME, _PUT_TOGETHER = "onnxruntime", frozenset({"Gelu", "LayerNormalization"})
SHIPPED = "partitioner.zip"
# a regression on labels 0 and 1: the predicted mean is the probability of fusion
FIT = TreeFit(
    rounds=400, leaves=127, learning_rate=0.08, least_in_leaf=20,
    others={"feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "cat_smooth": 10},
)  # fmt: skip
_THRESHOLD = 0.45  # here about as many edges are wrongly fused as are wrongly not
_ORIGIN = EDGE_COLUMNS.index("same_origin")
_RUNTIME, _CARD = EDGE_COLUMNS.index("runtime"), "card.json"
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal trees give equal files


@dataclass(frozen=True)
class Partition:
    """The edges of a graph, which of them are fused, and for every node the first node of its group."""

    edges: Edges
    fused: NDArray[np.bool_]
    groups: tuple[int, ...]

    @property
    def kernels(self) -> list[tuple[int, ...]]:
        """For each kernel the positions of its nodes, in the order of the kernels' first nodes."""
        members: dict[int, list[int]] = {}
        for node, group in enumerate(self.groups):
            members.setdefault(group, []).append(node)
        return [tuple(nodes) for nodes in members.values()]


class Partitioner:
    """For each runtime the trees that predict whether its compiler fuses an edge."""

    def __init__(self, trees: Mapping[str, Trees], card: dict[str, Any]) -> None:
        self.trees = trees
        self.card = card

    @classmethod
    def load(cls, data: bytes) -> "Partitioner":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                card = json.loads(archive.read(_CARD))
                schema = card["schema"]
                runtimes = [runtime for runtime in RUNTIMES if _file(runtime) in archive.namelist()]
                trees = {runtime: archive.read(_file(runtime)) for runtime in runtimes}
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted partitioner: {error}.") from error
        if schema != EDGE_SCHEMA:
            raise ModelError(
                "This partitioner was fitted to other features than today's; fit it again: foretell train."
            )
        return cls({runtime: Trees.load(content) for runtime, content in trees.items()}, card)

    @classmethod
    def shipped(cls) -> "Partitioner":
        """The partitioner that the package ships."""
        data = read_shipped(SHIPPED)
        if data is None:
            raise ModelError(f"The package lacks {SHIPPED}: install foretell again, or fit it: foretell train.")
        return cls.load(data)

    def partition(self, graph: Graph, runtime: str) -> Partition:
        """The kernels of a graph under a runtime, one of `RUNTIMES`."""
        edges = extract_edges(graph, runtime)
        fused = self.classify(edges)
        if runtime == _ONNX_RUNTIME:
            fused |= _spelled_out(graph, edges)
        return Partition(edges, fused, unite(len(graph.nodes), edges, fused))

    def classify(self, edges: Edges) -> NDArray[np.bool_]:
        """Which edges are fused."""
        # the answer for eager mode; for compilers the trees overwrite it below
        fused = edges.features[:, _ORIGIN] > 0
        for number in np.unique(edges.features[:, _RUNTIME]).astype(int).tolist():
            own, runtime = edges.features[:, _RUNTIME] == number, RUNTIMES[number]
            if runtime in self.trees:
                fused[own] = _predict_distinct(self.trees[runtime], edges.features[own]) > _THRESHOLD
            elif runtime != EAGER:
                raise ModelError(f"This partitioner was not fitted to {runtime}, only to {', '.join(self.trees)}.")
        return np.asarray(fused)


def _predict_distinct(trees: Trees, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """The prediction of the trees for rows; layers repeat, so each distinct row is predicted once."""
    # each row viewed as one opaque value, which `np.unique` sorts faster than rows
    keys = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return np.asarray(trees.predict(rows[first]))[inverse]


def _spelled_out(graph: Graph, edges: Edges) -> NDArray[np.bool_]:
    """Edges inside an operator that a file spells as small nodes, and ONNX Runtime puts together again.

    The graphs that taught the trees have each of these operators as one node, so the trees cannot know them.
    """
    ends = [(graph.nodes[one], graph.nodes[other]) for one, other in zip(edges.sources, edges.targets)]
    return np.array([one.origin_op in _PUT_TOGETHER and one.origin == other.origin for one, other in ends], np.bool_)


def _file(runtime: str) -> str:
    return f"edges-{runtime}.npz"


def unite(nodes: int, edges: Edges, fused: NDArray[np.bool_]) -> tuple[int, ...]:
    """For every node the first node that fused edges connect it with: union–find with path halving."""
    parents = list(range(nodes))

    def find_root(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for source, target in zip(edges.sources[fused].tolist(), edges.targets[fused].tolist()):
        # the smaller position becomes the root, so that a group is named by its first node
        first, second = sorted((find_root(source), find_root(target)))
        parents[second] = first
    return tuple(find_root(node) for node in range(nodes))


def fit_edges(features: NDArray[np.float32], fused: NDArray[np.bool_], fit: TreeFit = FIT) -> Booster:
    """Fit trees to labelled edges."""
    return fit.fit(features, fused.astype(np.float64), None, CATEGORIES)


def is_fused(booster: Booster, features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which edges the fitted trees call fused."""
    return np.asarray(booster.predict(features)) > _THRESHOLD


def write(boosters: Mapping[str, Booster], card: dict[str, Any]) -> bytes:
    """A partitioner as one file, from the trees of each runtime."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in (
            (_CARD, json.dumps({**card, "schema": EDGE_SCHEMA}, indent=1, sort_keys=True).encode()),
            *((_file(runtime), trees_of(booster).to_bytes()) for runtime, booster in boosters.items()),
        ):
            info = zipfile.ZipInfo(name, _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return data.getvalue()
