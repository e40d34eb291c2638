"""Lab: what the language model of chapter 7 reads and writes: summaries, prompts of three kinds, latencies as digits.

A summary is the thesis' template (section 7.7.3), shorter. A prompt names the platform, and describes the model by a
graph embedding, in words, or as JSON (section 7.4.1). The thesis writes the embedding first and the question after it;
here the question is first, so that its part of the work is done once for all graphs of a batch.

A latency is four digits: the power of ten of its microseconds, then three digits of its size. Each digit is a token.

    12.3 ms = 1.23 × 10⁴ µs → 4123
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from lab.papers.graph_networks.arrays import CLASSES, FURTHER_CLASSES, WHOLE_COLUMNS, GraphArrays

KINDS = ("graph", "text", "json")
DIGITS = 4
SUMMARISE = "Summarise the graph. <graph>"
_MICRO = 1e3
_NAMES = (*CLASSES, *FURTHER_CLASSES)
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_KERNEL, _STRIDE = 10, 0  # columns of attributes


def written(ms: float) -> str:
    """A latency as digits.

    >>> written(12.34), written(0.0209), written(0.9996)
    ('4123', '1209', '3100')
    """
    power = math.floor(math.log10(ms * _MICRO))
    size = round(ms * _MICRO / 10.0 ** (power - 2))
    if size == 1000:
        power, size = power + 1, 100
    if not 0 <= power <= 9:
        raise ValueError(f"{ms} ms cannot be written: write 1 µs to 10,000 s.")
    return f"{power}{size}"


def parsed(text: str) -> float | None:
    """The latency that digits say, in ms; None for everything else.

    >>> parsed("4123"), parsed("4023"), parsed("41a3"), parsed("412")
    (12.3, None, None, None)
    """
    if len(text) != DIGITS or not (text.isascii() and text.isdigit()) or text[1] == "0":
        return None
    return float(f"{text[1]}.{text[2:]}e{text[0]}") / _MICRO


def question(platform: str) -> str:
    """The prompt before the description."""
    return f"Predict the inference time on {platform}. <graph>"


def summary(graph: GraphArrays, layers: int = 4) -> str:
    """What a graph is, in a sentence and the commonest kinds of layers, with their numbers and sums."""
    batch, nodes, edges, macs, parameters = (_whole(graph, name) for name in WHOLE_COLUMNS[:5])
    lines = [
        f" {nodes:.0f} nodes, {edges:.0f} edges, batch {batch:.0f}, {_short(macs)} MACs, {_short(parameters)} weights."
    ]
    classes = layer_classes(graph)
    for number, count in Counter(classes.tolist()).most_common(layers):
        of_kind = graph.costs[classes == number].astype(np.float64).sum(axis=0)
        lines.append(f" {_NAMES[number]}: {count}, {_short(of_kind[0])} MACs, {_short(of_kind[1])} weights.")
    return "".join(lines)


def described(graph: GraphArrays, kind: str, most_nodes: int = 40) -> str:
    """The description of a graph in a prompt: nothing beside its embedding, words, or JSON of its first nodes."""
    if kind == "graph":
        return ""
    if kind == "text":
        return f"{summary(graph)}</graph>"
    makers: dict[int, list[int]] = {}
    for maker, reader in graph.edges.T.tolist():
        makers.setdefault(reader, []).append(maker)
    nodes = []
    for place, number in enumerate(layer_classes(graph)[:most_nodes].tolist()):
        node: dict[str, object] = {"op": _NAMES[number], "out": _shape(graph.output_shapes[place])}
        if graph.attributes[place, _KERNEL]:
            node |= {"kernel": int(graph.attributes[place, _KERNEL]), "stride": int(graph.attributes[place, _STRIDE])}
        node["from"] = makers.get(place, [])
        nodes.append(node)
    return f" {json.dumps(nodes, separators=(',', ':'))}</graph>"


def layer_classes(graph: GraphArrays) -> np.ndarray:
    """The kind of each node, as a place in DIPPM's classes and those that were added to them."""
    return np.asarray(graph.classed_nodes[:, : len(_NAMES)].argmax(axis=1))


def all_texts(
    platforms: Sequence[str], graphs: Sequence[GraphArrays], variants: Sequence[GraphArrays], layers: int
) -> Iterator[str]:
    """Every text whose tokens the model has to keep."""
    yield SUMMARISE
    yield from (question(platform) for platform in platforms)
    yield from (summary(graph, layers) for graph in (*graphs, *variants))
    yield from (described(graph, kind) for graph in graphs for kind in KINDS)
    yield " 0123456789.TGMk, </graph>"


def _whole(graph: GraphArrays, name: str) -> float:
    return float(graph.whole[WHOLE_COLUMNS.index(name)])


def _shape(axes: np.ndarray) -> list[int]:
    return [int(size) for size in axes if size > 0]


def _short(number: float) -> str:
    for size, suffix in _SUFFIXES:
        if number >= size:
            return f"{number / size:.3g}{suffix}".replace("e+03", "000")
    return f"{number:.0f}"
