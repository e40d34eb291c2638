"""predictors: which edges of a graph a compiler fuses, and so which nodes run as one kernel.

LILOU (Q. Liang, H. Wang, P. Shenoy) classifies edges, then unites what they join. Here trees classify, on an edge, its
ends and what is around them: the same features for all compilers, trees for each. PyTorch's eager mode fuses nothing
but what one call of it does: there the origins of nodes answer.
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
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.fusion.edges import CATEGORIES, EDGE_COLUMNS, EDGE_SCHEMA, RUNTIMES, Edges, extract_edges
from foretell.predictors.trees import Booster, TreeFit, Trees, to_onnx

EAGER = RUNTIMES[0]
SHIPPED = "partitioner.zip"
# the label is 0 or 1, and trees that tell its mean tell which is likelier
FIT = TreeFit(
    rounds=400, leaves=127, learning_rate=0.08, least_in_leaf=20,
    others={"feature_fraction": 0.5, "bagging_fraction": 0.7, "bagging_freq": 1, "cat_smooth": 10},
)  # fmt: skip
_LIKELY = 0.45  # about as many edges are wrongly fused as are wrongly not
_ORIGIN = EDGE_COLUMNS.index("same_origin")
_RUNTIME, _CARD = EDGE_COLUMNS.index("runtime"), "card.json"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # equal trees give equal files


@dataclass(frozen=True)
class Partition:
    """The edges of a graph, which of them are fused, and of every node the first node of its group."""

    edges: Edges
    fused: NDArray[np.bool_]
    groups: tuple[int, ...]

    @property
    def kernels(self) -> list[tuple[int, ...]]:
        """The nodes that run as one kernel, by their positions, in the order in which kernels begin."""
        members: dict[int, list[int]] = {}
        for node, group in enumerate(self.groups):
            members.setdefault(group, []).append(node)
        return [tuple(nodes) for nodes in members.values()]


class Partitioner:
    """Trees by runtime that tell of an edge whether the compiler fuses it."""

    def __init__(self, trees: Mapping[str, Trees], card: dict[str, Any]) -> None:
        self.trees = trees
        self.card = card

    @classmethod
    def load(cls, data: bytes) -> "Partitioner":
        """Read what `write` wrote; fitted to other features than today's, it is refused."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                card = json.loads(archive.read(_CARD))
                schema = card["schema"]
                there = [runtime for runtime in RUNTIMES if _file(runtime) in archive.namelist()]
                trees = {runtime: archive.read(_file(runtime)) for runtime in there}
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are no fitted partitioner: {error}.") from error
        if schema != EDGE_SCHEMA:
            raise ModelError("This partitioner was fitted to other features; fit it again: foretell train.")
        return cls({runtime: Trees.load(content) for runtime, content in trees.items()}, card)

    @classmethod
    def shipped(cls) -> "Partitioner":
        """The one that the package brings."""
        data = read_shipped(SHIPPED)
        if data is None:
            raise ModelError(f"The package lacks {SHIPPED}: install foretell again, or fit it: foretell train.")
        return cls.load(data)

    def partition(self, graph: Graph, runtime: str) -> Partition:
        """What runs as one kernel of a graph under a runtime: one of `RUNTIMES`."""
        edges = extract_edges(graph, runtime)
        fused = self.classify(edges)
        return Partition(edges, fused, unite(len(graph.nodes), edges, fused))

    def classify(self, edges: Edges) -> NDArray[np.bool_]:
        """Which edges are fused."""
        fused = edges.features[:, _ORIGIN] > 0
        for number in np.unique(edges.features[:, _RUNTIME]).astype(int).tolist():
            own, runtime = edges.features[:, _RUNTIME] == number, RUNTIMES[number]
            if runtime in self.trees:
                fused[own] = _told_once(self.trees[runtime], edges.features[own]) > _LIKELY
            elif runtime != EAGER:
                raise ModelError(
                    f"This partitioner knows nothing of {runtime}; it was fitted to {', '.join(self.trees)}."
                )
        return np.asarray(fused)


def _told_once(trees: Trees, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """What trees tell of rows; layers repeat, and equal rows are told once."""
    bytes_of = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    _, first, place = np.unique(bytes_of, return_index=True, return_inverse=True)
    return np.asarray(trees.predict(rows[first]))[place]


def _file(runtime: str) -> str:
    return f"edges-{runtime}.onnx"


def unite(nodes: int, edges: Edges, fused: NDArray[np.bool_]) -> tuple[int, ...]:
    """Of every node the first node that fused edges join it with."""
    parents = list(range(nodes))

    def find(node: int) -> int:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    for source, target in zip(edges.sources[fused].tolist(), edges.targets[fused].tolist()):
        first, second = sorted((find(source), find(target)))
        parents[second] = first
    return tuple(find(node) for node in range(nodes))


def fit_edges(features: NDArray[np.float32], fused: NDArray[np.bool_], fit: TreeFit = FIT) -> Booster:
    """Trees on labelled edges."""
    return fit.fit(features, fused.astype(np.float64), None, CATEGORIES)


def is_fused(booster: Booster, features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """What fitted trees say of edges."""
    return np.asarray(booster.predict(features)) > _LIKELY


def write(boosters: Mapping[str, Booster], card: dict[str, Any]) -> bytes:
    """A partitioner as one file, from trees by runtime."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in (
            (_CARD, json.dumps({**card, "schema": EDGE_SCHEMA}, indent=1, sort_keys=True).encode()),
            *((_file(runtime), to_onnx(booster)) for runtime, booster in boosters.items()),
        ):
            info = zipfile.ZipInfo(name, _LONG_AGO)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return data.getvalue()
