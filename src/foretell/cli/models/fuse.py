"""Cli: ``foretell fuse``."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli import options
from foretell.errors import ForetellError, InputError
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

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
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Write a picture of the kernels to this file.", show_default=False)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="The device whose times the picture shows [h200; none for onnxruntime].",
            show_default=False,
        ),
    ] = None,
    trust: options.Trust = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Predict which operators of MODEL a compiler fuses into one kernel. Nothing is compiled."""
    from foretell.predictors.fusion.kernel_graph import find_kernels
    from foretell.workflows.workload import load_graph

    if device is not None and svg is None:
        raise InputError(
            f"--device {device} only sets the times in the picture. Name the file of the picture with --svg."
        )

    with working(f"Reading {model}"):
        graph = load_graph(
            model, input_shape=inputs, batch_size=batch_size, dtype=dtype, trust=trust, use_cache=not no_cache
        )
        kernels = find_kernels(graph, runtime)
        if svg is not None:
            _draw(svg, graph, kernels, f"{model} under {runtime}", runtime, device)
    groups = [tuple(graph.nodes[position].op for position in kernel) for kernel in kernels]
    if as_json:
        names = [tuple(graph.nodes[position].name for position in kernel) for kernel in kernels]
        groups_json = [{"operators": operators, "nodes": nodes} for operators, nodes in zip(groups, names)]
        head = {"model": model, "runtime": runtime, "operators": len(graph.nodes), "kernels": len(groups)}
        typer.echo(json.dumps(head | {"groups": groups_json}, indent=1))
        return
    typer.echo(f"{printable(model)} under {runtime}: {len(graph.nodes)} operators in {len(groups)} kernels")
    counts = Counter(groups)
    for operators, count in counts.most_common(most):
        typer.echo(f"{count:6}  {printable(_pattern(operators))}")
    if len(counts) > most:
        typer.echo(f"        and {len(counts) - most} more patterns; --most shows them")
    if svg is not None:
        typer.echo(f"picture: {printable(str(svg))}")


def _draw(svg: Path, graph: Graph, kernels: list[tuple[int, ...]], name: str, runtime: str, device: str | None) -> None:
    """Write the picture.

    The times in it are those of a GPU. ONNX Runtime was measured on CPUs, so its picture has times only if the user
    names a device.
    """
    from foretell.predictors.fusion.kernel_graph import make_kernel_graph, time_nodes
    from foretell.rendering.svg.kernel_graph import draw

    times = None
    try:
        if device is not None or runtime != "onnxruntime":
            times = time_nodes(graph, device or "h200", runtime)
    except (ForetellError, OSError):
        if device is not None:
            raise  # without times the picture is still useful, unless the user asked for them by naming a device
    title = f"{name}: {len(graph.nodes)} operators in {len(kernels)} kernels"
    try:
        write_whole(svg, draw(make_kernel_graph(graph, kernels, times), title).encode())
    except OSError as error:
        raise InputError(f"Cannot write the picture {svg}: {error.strerror}. Choose another --svg.") from error


def _pattern(operators: tuple[str, ...]) -> str:
    """The operators in one line; of many, only the first ones and the total."""
    shown = " ".join(operators[:_SHOWN_OPERATORS])
    return f"{shown} … {len(operators)} in all" if len(operators) > _SHOWN_OPERATORS else shown
