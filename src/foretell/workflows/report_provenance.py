"""Workflows: where the numbers of a report come from, and the command that makes it again."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from foretell.advisors.carbon import load_carbon
from foretell.advisors.prices import load_prices
from foretell.graph import Graph
from foretell.predictors.fitted_files import judged_errors, shipped_index
from foretell.records import Prediction
from foretell.rendering.html.report_content import AdviceRow, Provenance, Source
from foretell.workflows.advise import Renting

ANY_MODEL = "MODEL"
PAGE = "report.html"


def provenance(
    graph: Graph, prediction: Prediction, rows: Sequence[AdviceRow], renting: Renting, command: str
) -> Provenance:
    """Where the numbers of a report come from; ``rows`` are the advised places, whose prices are cited."""
    card: Mapping[str, Any] = shipped_index().get(prediction.device, {}).get(prediction.predictor, {})
    return Provenance(
        version=metadata.version("foretell"),
        made=datetime.now(UTC).date().isoformat(),
        graph_hash=graph.hash,
        nodes=len(graph.nodes),
        inputs=tuple(f"{name}: {'x'.join(map(str, graph.tensors[name].shape)) or '1'}" for name in graph.inputs),
        trained_on=card.get("workloads"),
        held_out=judged_errors(prediction.device, prediction.predictor),
        sources=_sources(rows, renting),
        command=command,
    )


def _sources(rows: Sequence[AdviceRow], renting: Renting) -> tuple[Source, ...]:
    """The sources of the prices and power grids of some rows, each once, with dates."""
    prices = {f"{price.cloud} {price.instance} ({price.region})": price for price in load_prices(renting.prices)}
    # Dictionaries as ordered sets: by source the dates or regions that it covers.
    carbon, sources = load_carbon(), dict[tuple[str, str], dict[str, None]]()
    for row in rows:
        price = prices.get(row.instance)
        if price is None:
            continue
        sources.setdefault(("prices", price.source), {})[price.date] = None
        if row.kg_co2e is not None:
            grid = carbon.intensity(cloud=price.cloud, region=price.region, country=renting.country)
            place, _, source = grid.note.partition(": ")
            sources.setdefault(("carbon of the grid", source), {})[place] = None
    return tuple(Source(kind, tuple(about), text) for (kind, text), about in sorted(sources.items(), reverse=True))


def remaking_command(model: object, options: Mapping[str, object]) -> str:
    """The command line for some options; those that are None, False or empty are left out.

    >>> remaking_command("my model.onnx", {"--slo-ms": 5.0, "--input": ["3x8x8", "m=4"], "--trust": True})
    "foretell report 'my model.onnx' --slo-ms 5 --input 3x8x8 --input m=4 --trust -o report.html"
    """
    line = ["foretell", "report", model if isinstance(model, str) else ANY_MODEL]
    for name, value in options.items():
        if value is True:
            line.append(name)
        elif isinstance(value, list | tuple):
            line += [part for item in value for part in (name, str(item))]
        elif value not in (None, False, ""):
            line += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join([*line, "-o", PAGE])
