"""Lab: a network as the flattened list of its layers and the flattened matrix of who feeds whom.

Idea. As Keras shows a model: a layer is a node with weights (a dense layer, a convolution), and the input is a node
too. A layer has its kind, as an indicator, and its number of weights; activations belong to the layer before them. The
adjacency matrix says which layer reads which. Both are flattened, after padding to the largest model, and that is all
that the predictor gets.

Where the paper is silent: the number of weights enters as a logarithm, because it spans eight decades, and the batch
size is one more number, because here it differs between examples. Vectors are kept as their nonzero places and values:
the matrix of a model of 300 layers has 90,000 places and 300 ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.graph import Graph

INPUT = "Input"
_STATE = ("parameter", "constant")


@dataclass(frozen=True)
class Layers:
    """The layers of a model in order: kinds, numbers of weights, and pairs (from, to) of layers that are connected."""

    kinds: tuple[str, ...]
    weights: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.kinds)


def layers_of(graph: Graph) -> Layers:
    """The input and all nodes with weights; what lies between them connects them."""
    kinds, weights = [INPUT], [0]
    edges: set[tuple[int, int]] = set()
    # by tensor the layers that it comes from
    sources: dict[str, frozenset[int]] = {name: frozenset({0}) for name in graph.inputs}
    for node in graph.nodes:
        before = frozenset().union(*(sources.get(name, frozenset()) for name in node.inputs if name))
        own = [graph.tensors[name] for name in node.inputs if name and graph.tensors[name].kind == "parameter"]
        if own:
            place = len(kinds)
            kinds.append(node.op)
            weights.append(sum(tensor.elements for tensor in own))
            edges |= {(source, place) for source in before}
            before = frozenset({place})
        for name in node.outputs:
            if name:
                sources[name] = before
    return Layers(tuple(kinds), tuple(weights), tuple(sorted(edges)))


@dataclass(frozen=True)
class Flattening:
    """Where each kind, weight and pair of layers goes in a vector; made from the models that teach."""

    kinds: Mapping[str, int]
    most: int
    members: int = 1

    @classmethod
    def of(cls, models: Sequence[Layers], members: int = 1) -> "Flattening":
        """The vector that all of these models fit into; ``members`` of them stand side by side."""
        kinds = sorted({kind for model in models for kind in model.kinds})
        return cls({kind: place for place, kind in enumerate(kinds)}, max(map(len, models)), members)

    @property
    def width(self) -> int:
        """The length of a vector."""
        return self.members * (self._attributes + self.most**2 + 1)

    @property
    def _attributes(self) -> int:
        return self.most * (len(self.kinds) + 1)

    def vector(self, models: Sequence[tuple[Layers, int]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Nonzero places and values for co-located models with their batch sizes; layers beyond the largest are cut."""
        places: list[int] = []
        values: list[float] = []
        each = self.width // self.members
        for member, (model, batch_size) in enumerate(models):
            start = member * each
            for number, (kind, weights) in enumerate(zip(model.kinds[: self.most], model.weights, strict=False)):
                at = start + number * (len(self.kinds) + 1)
                if kind in self.kinds:
                    places.append(at + self.kinds[kind])
                    values.append(1.0)
                if weights:
                    places.append(at + len(self.kinds))
                    values.append(float(np.log2(1 + weights)) / 10)
            for source, target in model.edges:
                if source < self.most and target < self.most:
                    places.append(start + self._attributes + source * self.most + target)
                    values.append(1.0)
            places.append(start + each - 1)
            values.append(float(np.log2(batch_size)) / 10 + 0.1)
        return np.array(places, np.int64), np.array(values, np.float32)
