"""Cli: ``foretell fuse``."""

import json
from collections import Counter
from pathlib import Path

import click

from foretell.cli import options
from foretell.errors import ForetellError, InputError
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

_SHOWN_OPERATORS = 6


@click.command()
@options.model
@click.option("--runtime", default="inductor", help="inductor, onnxruntime or eager.")
@options.batch_size
@options.inputs
@click.option("--dtype", help="Cast the model first: fp16, bf16, …")
@click.option("--most", type=click.IntRange(min=1), default=20, help="Rows of the table.")
@click.option("--svg", type=options.OutputFile(".svg"), help="Write a picture of the kernels to this file.")
@click.option("--boxes", type=click.IntRange(min=1), default=36, help="Kernels in the picture; repeats go first.")
@click.option("--device", "-d", help="The device whose times the picture shows [h200; none for onnxruntime].")
@options.reading
@options.as_json
def run(
    model: str,
    runtime: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str | None,
    most: int,
    svg: Path | None,
    boxes: int,
    device: str | None,
    trust: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Predict which operators of MODEL a compiler fuses into one kernel. Nothing is compiled."""
    from foretell.devices import find_device
    from foretell.predictors.fusion.kernel_graph import check_runtime, find_kernels
    from foretell.workflows.workload import load_graph

    if device is not None and svg is None:
        raise InputError(
            f"--device {device} only sets the times in the picture. Name the file of the picture with --svg."
        )

    check_runtime(runtime)
    if device is not None:
        find_device(device)
    with working(f"Reading {model}"):
        graph = load_graph(
            model,
            input_shape=list(inputs) or None,
            batch_size=batch_size,
            dtype=dtype,
            trust=trust,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
        kernels = find_kernels(graph, runtime)
        if svg is not None:
            _draw(svg, graph, kernels, f"{model} under {runtime}", runtime, device, boxes)
    groups = [tuple(graph.nodes[position].op for position in kernel) for kernel in kernels]
    if as_json:
        names = [tuple(graph.nodes[position].name for position in kernel) for kernel in kernels]
        groups_json = [{"operators": operators, "nodes": nodes} for operators, nodes in zip(groups, names)]
        head = {"model": model, "runtime": runtime, "operators": len(graph.nodes), "kernels": len(groups)}
        click.echo(json.dumps(head | {"groups": groups_json}, indent=1))
        return
    click.echo(f"{printable(model)} under {runtime}: {len(graph.nodes)} operators in {len(groups)} kernels")
    counts = Counter(groups)
    for operators, count in counts.most_common(most):
        click.echo(f"{count:6}  {printable(_pattern(operators))}")
    if len(counts) > most:
        click.echo(f"        and {len(counts) - most} more patterns; --most shows them")
    if svg is not None:
        click.echo(f"picture: {printable(str(svg))}")


def _draw(
    svg: Path, graph: Graph, kernels: list[tuple[int, ...]], name: str, runtime: str, device: str | None, boxes: int
) -> None:
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
        write_whole(svg, draw(make_kernel_graph(graph, kernels, times), title, boxes).encode())
    except OSError as error:
        raise InputError(f"Cannot write the picture {svg}: {error.strerror}. Choose another --svg.") from error


def _pattern(operators: tuple[str, ...]) -> str:
    """The operators in one line; of many, only the first ones and the total."""
    shown = " ".join(operators[:_SHOWN_OPERATORS])
    return f"{shown} … {len(operators)} in all" if len(operators) > _SHOWN_OPERATORS else shown
