"""Lab: does an encoder separate families (Fig. 5.4)? ``python -m lab.papers.trappm.embedding SET OUT ENCODER``.

The thesis shows a t-SNE of its embeddings, coloured by family. Here is a number beside the picture: for each graph, is
the nearest one of another architecture of the same family? The same is asked of a random encoder, and of the six
static features, which nobody had to train. The picture has the first two principal components, in an SVG file.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import architecture_of
from foretell.files import write_whole
from lab.papers.dippm.sets import Labelled, family_of, read_set
from lab.papers.graph_networks.arrays import TRAPPM_COLUMNS
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.trappm.encoders import Plan, read_encoder

Values = NDArray[np.float64]
_COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#3a7d44",
    "#edae49",
    "#6a4c93",
    "#00798c",
    "#8d6b94",
    "#c06014",
    "#444444",
    "#9bc53d",
)
_SHOWN, _WIDTH, _HEIGHT = 420, 620, 400


def embeddings(rows: Sequence[Labelled], recipe: Recipe, weights: Mapping[str, NDArray[np.float32]]) -> Values:
    """The mean of an encoder's rows over the nodes of each graph."""
    from lab.papers.graph_networks.forward import embed
    from lab.papers.graph_networks.tensors import DeviceGraphs, TorchOperations, to_tensors, torch

    graphs = DeviceGraphs.place([row.graph for row in rows], recipe, "cpu")
    ops = TorchOperations(to_tensors(dict(weights), "cpu"))
    with torch.no_grad():
        parts = [embed(ops, recipe, graphs.pick(part)) for part in graphs.parts(np.arange(len(graphs)))]
    return np.asarray(torch.cat(parts).numpy(), np.float64) / graphs.node_counts[:, None]


def static(rows: Sequence[Labelled]) -> Values:
    """Logarithms of the six static features."""
    return np.log1p(np.array([row.graph.whole_of(TRAPPM_COLUMNS) for row in rows], np.float64))


def purity(points: Values, families: Sequence[str], architectures: Sequence[str]) -> float:
    """The share of points whose nearest one of another architecture has the same family.

    >>> purity(np.array([[0.0], [0.1], [5.0], [5.1]]), ["a", "a", "b", "b"], ["1", "2", "3", "4"])
    1.0
    """
    scaled = (points - points.mean(axis=0)) / np.where(points.std(axis=0) > 1e-9, points.std(axis=0), 1.0)
    squares = (scaled**2).sum(axis=1)
    distances = squares[:, None] + squares[None, :] - 2 * scaled @ scaled.T
    own = np.array(architectures)
    distances[own[:, None] == own[None, :]] = np.inf
    kinds = np.array(families)
    return float(np.mean(kinds[distances.argmin(axis=1)] == kinds))


def components(points: Values) -> tuple[Values, float]:
    """The first two principal components, and their share of the variance."""
    centred = points - points.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    return left[:, :2] * sizes[:2], float((sizes[:2] ** 2).sum() / (sizes**2).sum())


def picture(points: Values, families: Sequence[str], title: str) -> str:
    """An SVG of points coloured by family; at most `_SHOWN` of them, by chance."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(points))[:_SHOWN])
    low, high = np.percentile(points, [1, 99], axis=0)
    places = np.clip((points - low) / np.maximum(high - low, 1e-9), 0, 1) * (_WIDTH - 160, _HEIGHT - 50) + (10, 40)
    colours = {family: _COLOURS[i % len(_COLOURS)] for i, (family, _) in enumerate(Counter(families).most_common())}

    def parts() -> Iterator[str]:
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
        yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        yield f'<text x="10" y="22" font-size="14">{escape(title)}</text>'
        for family, colour in colours.items():
            yield f'<g fill="{colour}">'
            own = (places[i] for i in chosen if families[i] == family)
            yield "".join(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3"/>' for x, y in own) + "</g>"
        for number, (family, colour) in enumerate(colours.items()):
            y = 50 + 18 * number
            yield f'<circle cx="{_WIDTH - 130}" cy="{y}" r="5" fill="{colour}"/>'
            yield f'<text x="{_WIDTH - 118}" y="{y + 4}" font-size="12">{escape(family)}</text>'
        yield "</svg>"

    return "\n".join(parts()) + "\n"


def main() -> None:
    """Print the shares, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.prepare.")
    parser.add_argument("out", type=Path, help="The folder of python -m lab.papers.trappm.encoders.")
    parser.add_argument("encoder", help="The name of an encoder, such as linear-0-0.")
    parser.add_argument("--width", type=int, help="Of a narrow encoder.")
    parser.add_argument("--by-bound", action="store_true", help="The encoder reads nodes that know their bound.")
    parser.add_argument("--svg", type=Path, help="Where to write the picture.")
    options = parser.parse_args()
    from lab.papers.trappm.pretraining import random_encoder

    rows = [row for row in read_set(options.set) if family_of(row.spec)]
    families = [str(family_of(row.spec)) for row in rows]
    architectures = [architecture_of(row.spec) for row in rows]
    encoder = read_encoder(options.out, options.encoder)
    recipe = replace(Plan(encoder_width=options.width, by_bound=options.by_bound).recipe(), last_relu=encoder.last_relu)
    random = random_encoder([row.graph for row in rows], recipe, 0, "cpu")
    points = {
        options.encoder: embeddings(rows, recipe, encoder.weights),
        "random": embeddings(rows, recipe, random.weights), "six static features": static(rows),
    }  # fmt: skip
    commonest = Counter(families).most_common(1)[0]
    sys.stdout.write(f"{len(rows)} graphs of {len(set(families))} families, {commonest[1]} of {commonest[0]}\n")
    for name, own in points.items():
        share = 100 * purity(own, families, architectures)
        _, two = components(own)
        sys.stdout.write(f"{name}: {share:.1f} % have their family nearest; two components have {100 * two:.0f} %\n")
    if options.svg:
        plane, two = components(points[options.encoder])
        title = f"TraPPM's embedding of ten families: two principal components, {100 * two:.0f} % of the variance"
        write_whole(options.svg, picture(plane, families, title).encode())


if __name__ == "__main__":
    main()
