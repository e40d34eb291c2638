"""cli: ``foretell fuse``."""

import json
from collections import Counter
from typing import Annotated

import typer

from foretell.cli import options
from foretell.cli.printable import printable
from foretell.cli.progress import working

_SHOWN_OPERATORS = 6


def run(
    model: options.Model,
    runtime: Annotated[str, typer.Option("--runtime", help="inductor, onnxruntime or eager.")] = "inductor",
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Cast the model first: fp16, bf16, …", show_default=False)
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Rows of the table.")] = 20,
    trust: options.Trust = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Tell which operators of MODEL a compiler fuses into one kernel: predicted, nothing is compiled."""
    from foretell.workflows.fusion import fuse
    from foretell.workflows.predict import load_graph

    with working(f"Reading {model}"):
        graph = load_graph(
            model, input_shape=inputs, batch_size=batch_size, dtype=dtype, trust=trust, use_cache=not no_cache
        )
        groups = fuse(graph, runtime)
    if as_json:
        found = [{"operators": group.operators, "nodes": group.nodes} for group in groups]
        head = {"model": model, "runtime": runtime, "operators": len(graph.nodes), "kernels": len(groups)}
        typer.echo(json.dumps(head | {"groups": found}, indent=1))
        return
    typer.echo(f"{printable(model)} under {runtime}: {len(graph.nodes)} operators in {len(groups)} kernels")
    counts = Counter(group.operators for group in groups)
    for operators, count in counts.most_common(most):
        typer.echo(f"{count:6}  {printable(_pattern(operators))}")
    if len(counts) > most:
        typer.echo(f"        and {len(counts) - most} more patterns; --most shows them")


def _pattern(operators: tuple[str, ...]) -> str:
    """Operators in a row; of many the first ones, and how many more there are."""
    shown = " ".join(operators[:_SHOWN_OPERATORS])
    return f"{shown} … {len(operators)} in all" if len(operators) > _SHOWN_OPERATORS else shown
